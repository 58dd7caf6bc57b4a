//! A training state whose tensors and slots live in a [`RemoteStore`].

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;

use super::placement::{Placement, Slots, has_slots};
use super::update::all_names;
use super::{Applied, TrainState};
use crate::checkpoint::Section;
use crate::remote::{Pushed, RemoteSpec, RemoteState, RemoteStore, RemoteVersion};
use crate::remote_model::{put_values, tensors_of};
use crate::replicate::ReplicateExt;
use crate::running_statistics::finite_or;
use crate::{Error, Gradients, Mirrored, ReplicaContext, Result, current_strategy};

/// The state's place in the store, and what of it is here.
#[derive(Clone)]
pub(super) struct Remote {
    state: Arc<dyn RemoteState>,
    /// Of the model's tensors in visit order.
    known: Vec<RemoteVersion>,
    is_trained: Arc<[bool]>,
    /// The running statistics as the store has them, as far as is known here, and their places
    /// among the model's tensors.
    statistics: Vec<Tensor<1>>,
    places: Arc<[usize]>,
    /// A learning rate that was set here and that the store does not know yet.
    learning_rate: Option<f64>,
    /// The store has all.
    slots: Slots,
}

impl Remote {
    /// The versions of the trained tensors.
    fn base(&self) -> Vec<RemoteVersion> {
        let all = self.known.iter().zip(&*self.is_trained);
        let trained = all.filter(|(_, is_trained)| **is_trained);
        trained.map(|(version, _)| version.clone()).collect()
    }

    /// Sends what steps have moved the running statistics by. Those that are not finite were left
    /// behind by a batch without examples, which moves nothing.
    fn send_statistics<M: Module>(&mut self, state: &TrainState<M>) -> Result<()> {
        let moved = finite_or(state.statistics.read(&state.model), &self.statistics)?;
        let pairs = moved.iter().zip(&self.statistics);
        let changes = self.places.iter().zip(pairs).map(|(place, (new, old))| {
            let change = new.clone() - old.clone();
            let change = change.try_into_data().map_err(Error::internal)?;
            Ok((*place, change))
        });
        self.state.add(changes.collect::<Result<_>>()?)?;
        self.statistics = moved;
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        if let Some(learning_rate) = self.learning_rate {
            self.state.set_learning_rate(learning_rate)?;
            self.learning_rate = None;
        }
        Ok(())
    }
}

impl<M: Module + 'static> Placement<M> for Remote {
    /// Sends gradients where the state lives; the values here stay as they are.
    fn apply(
        &mut self,
        state: &mut TrainState<M>,
        _: &ReplicaContext,
        mut gradients: Gradients,
    ) -> Result<Applied> {
        state.prepare(&mut gradients)?;
        self.send()?;
        let (dense, rows) = gradients.into_values()?;
        match self.state.push(dense, &self.base(), rows)? {
            Pushed::Applied { step } => {
                self.send_statistics(state)?;
                state.step = state.step.max(step);
                Ok(Applied::Updated)
            }
            Pushed::Dropped => Ok(Applied::Dropped),
        }
    }

    has_slots!();

    fn store(&self) -> Option<&dyn RemoteState> {
        Some(&*self.state)
    }

    fn refresh(&mut self, state: &mut TrainState<M>) -> Result<()> {
        self.send()?;
        let pulled = self.state.pull(&self.known)?;
        let changed = pulled.changed.into_iter();
        let changed = changed.map(|(index, version, value)| ((index, version), (index, value)));
        let (versions, values): (Vec<_>, Vec<_>) = changed.unzip();
        // What was not sent, by a step that has failed, is taken back.
        let statistics = self.statistics.clone();
        state.statistics.write(&state.model, statistics)?;
        if !values.is_empty() {
            put_values(&mut state.model, &state.statistics, values)?;
            self.statistics = state.statistics.read(&state.model);
        }
        for (index, version) in versions {
            if let Some(known) = self.known.get_mut(index) {
                *known = version;
            }
        }
        state.step = pulled.step;
        state.learning_rate = pulled.learning_rate.unwrap_or(state.learning_rate);
        Ok(())
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.learning_rate = Some(learning_rate);
        if let Err(error) = self.send() {
            // It is kept, and sent before the next pull or push.
            tracing::debug!(%error, "the store does not know the new learning rate yet");
        }
    }

    fn send_learning_rate(&mut self) -> Result<()> {
        self.send()
    }
}

impl<M> TrainState<M> {
    /// Tells the store a learning rate that was set here; does nothing without one. Blocks.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn send_learning_rate(&mut self) -> Result<()> {
        self.placement.send_learning_rate()
    }
}

impl<M: Module + 'static> TrainState<M> {
    /// Takes over the newest values, if the state lives on parameter servers; does nothing under
    /// other strategies, and between the micro-batches of one update.
    ///
    /// A run with `&mut Mirrored<TrainState<_>>` does this first. A step that applies gradients
    /// several times calls it in between, so that the second gradient is one of the updated model.
    /// Blocks.
    ///
    /// # Errors
    /// The errors of the store; the state is unchanged then.
    pub fn refresh(&mut self) -> Result<()> {
        if self.is_accumulating() {
            return Ok(());
        }
        self.with_placement(|placement, state| placement.refresh(state))
    }

    /// Hands the tensors to a store and takes over what it has of them.
    pub(super) fn attach(&mut self, store: &dyn RemoteStore, path: &str) -> Result<()> {
        if self.loss_scale.is_dynamic() {
            return Err(Error::invalid(
                "the state has a dynamic loss scale, and is on parameter servers: workers that \
                 train asynchronously would each have another one; use `LossScale::fixed(..)`, or \
                 a strategy that keeps the state in its replicas",
            ));
        }
        if self.optimizer.burn().is_some() {
            return Err(Error::invalid(format!(
                "the optimizer {} is one of burn, which updates whole parameters, and parameter \
                 servers update parts: use an optimizer of `distribute_core::optim`, with \
                 `RateFactors` for groups with learning rates of their own",
                self.optimizer.name()
            )));
        }
        self.optimizer.check_parameters(&all_names(&self.model)?)?;
        let tensors = tensors_of(&self.model, &self.statistics)?;
        let paths = self.statistics.paths().iter();
        let places = paths.filter_map(|path| {
            let name = Section::Model.name(path);
            tensors.iter().position(|tensor| tensor.name == name)
        });
        let places = places.collect();
        let is_trained: Arc<[bool]> = tensors.iter().map(|tensor| tensor.is_trained).collect();
        let state = store.state(RemoteSpec {
            path,
            tensors,
            optimizer: Some(&*self.optimizer),
        })?;
        self.placement = Box::new(Remote {
            state,
            known: vec![RemoteVersion::new(); is_trained.len()],
            is_trained,
            statistics: self.statistics.read(&self.model),
            places,
            learning_rate: None,
            slots: Slots::new(self.names.len()),
        });
        self.refresh()
    }
}

impl<T: crate::Replicate> Mirrored<T> {
    /// Takes over the newest values of what lives on parameter servers; does nothing under other
    /// strategies. Evaluation outside of a run, and runs with `&Mirrored`, see the values of the
    /// last call or of the last run with `&mut Mirrored`. Blocks.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn refresh(&mut self) -> Result<()> {
        self.copies.forget_evaluated();
        let mut copies = self.copies.host.iter_mut();
        copies.try_for_each(|copy| copy.parts(|_, part| part.refresh_remote()))
    }
}

impl ReplicaContext {
    /// Sends gradients of rows of tables to the parameter servers, where no state is updated: for
    /// a model that is nothing but tables. Otherwise a state's
    /// [`apply_gradients`](crate::TrainState::apply_gradients) sends them with its own. Blocks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for gradients of a model too, and under a strategy without
    /// parameter servers; the errors of the servers.
    pub fn apply_row_gradients(&self, gradients: Gradients) -> Result<Applied> {
        if !gradients.is_empty() {
            return Err(Error::invalid(format!(
                "apply_row_gradients: there are also gradients of {} parameters of a model; hand \
                 all of them to `apply_gradients` of its state",
                gradients.len()
            )));
        }
        let strategy = current_strategy();
        let Some(store) = strategy.remote_store() else {
            return Err(Error::invalid(format!(
                "apply_row_gradients: the strategy `{}` has no parameter servers",
                strategy.name()
            )));
        };
        match store.push_rows(gradients.into_rows())? {
            Pushed::Applied { .. } => Ok(Applied::Updated),
            Pushed::Dropped => Ok(Applied::Dropped),
        }
    }
}
