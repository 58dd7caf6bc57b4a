//! Which parameters of a model are trained, and what a training state does when others are: a layer
//! was frozen or unfrozen, or has got adapters.

use burn::module::{Flag, Module, Param};

use super::TrainState;
use crate::nest::different_structure;
use crate::parameters::{self, Parameter, Walk};
use crate::random::draws_at_random;
use crate::{Error, Result, RunningStatistics};

impl<M: Module + 'static> TrainState<M> {
    /// Whether the names are the paths of the parameters that the model trains.
    pub(super) fn names_are_current(&self) -> bool {
        let mut names = self.names.iter();
        let same = parameters::visit_trained(&self.model, |_, path, _| match names.next() {
            Some(name) if name == path => Ok(()),
            _ => Err(different_structure()),
        });
        same.is_ok() && names.next().is_none()
    }

    /// Follows a model of which other parameters are trained than before. Slots go by the paths of
    /// the parameters: what is trained as before keeps its slots, what is new begins anew, and what
    /// is frozen has its slots back when it is trained again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] in the middle of an update of several micro-batches, and for a
    /// state on parameter servers; [`Error::NotCompilable`] in a compiled step. They name the first
    /// parameter.
    pub(super) fn follow_model(&mut self) -> Result<()> {
        if self.names_are_current() {
            return Ok(());
        }
        let now = names(&self.model);
        let change = change(&self.names, &now);
        if self.placement.captured().is_some() {
            let instead = "freeze and unfreeze layers between steps, in `Mirrored::update`";
            return Err(Error::not_compilable(change, instead));
        }
        if self.is_remote() {
            return Err(Error::invalid(format!(
                "{change}, but parameter servers were told what is trained when the training state \
                 was made: freeze and unfreeze layers before `TrainState::new`, or make a new state \
                 of the model"
            )));
        }
        if let (waiting @ 1.., of) = self.accumulation() {
            return Err(Error::invalid(format!(
                "{change}, but the gradients of {waiting} of {of} micro-batches wait for the rest \
                 of their update: freeze and unfreeze layers between updates"
            )));
        }
        self.placement.slots_mut().follow(&self.names, &now);
        self.names = now.into();
        self.statistics = RunningStatistics::of(&self.model);
        self.draws = draws_at_random(&self.model);
        Ok(())
    }

    /// What a program of the model depends on beside its tensors: which parameters are trained, and
    /// which layers are in training.
    pub(super) fn trained_parts(&self) -> String {
        let mut flags = Flags(String::new());
        // Nothing here fails.
        let _ = parameters::visit(&self.model, &mut flags);
        format!("{} {}", self.names.join(","), flags.0)
    }
}

/// The paths of the trainable parameters.
pub(super) fn names(model: &impl Module) -> Vec<String> {
    let mut names = Vec::new();
    let outcome = parameters::visit_trained(model, |_, path, _| {
        names.push(path.to_string());
        Ok(())
    });
    debug_assert!(outcome.is_ok(), "nothing here fails");
    names
}

/// The first parameter of which it has changed whether it is trained.
fn change(before: &[String], now: &[String]) -> String {
    let frozen = before.iter().find(|name| !now.contains(name));
    let new = now.iter().find(|name| !before.contains(name));
    match (new, frozen) {
        (Some(name), _) => format!("the parameter `{name}` is trained, and was not before"),
        (None, Some(name)) => format!("the parameter `{name}` is frozen, and was trained before"),
        (None, None) => "the parameters of the model are in another order".to_string(),
    }
}

/// Collects whether the parts of a module are in training, one letter for each.
struct Flags(String);

impl Walk for &mut Flags {
    fn parameter(&mut self, _: Parameter<'_>) -> Result<()> {
        Ok(())
    }

    fn flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.0.push(if flag.is_enabled() { 't' } else { 'f' });
        flag
    }
}
