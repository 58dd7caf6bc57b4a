//! The view that callbacks have of a run, and the changes that they can make.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::TensorData;
use distribute_core::checkpoint::{Checkpoint, Section};
use distribute_core::collectives::stragglers::Standing;
use distribute_core::{Error, Mirrored, Result, SourceState, StateKind, Strategy, TrainState};
use serde_json::Value;

use super::data_state;
use super::divergence::{Checksums, compare, compare_sums, is_alone, of_state, sums};
use super::exact::Exact;
use super::meter::Meter;
use super::objective::Pass;
use super::ranks::{Lap, Ranks};
use super::snapshot::{Own, RunMetadata, Sent, of_all, snapshot_of};
use super::worker_sync::Failed;
use super::{EpochRecord, FitError, Logs, Mode, Outcome, Position};

/// The progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Where the run would continue if it ended now. In `on_epoch_end` of a complete epoch that
    /// is already the next epoch.
    pub position: Position,
    /// Optimizer steps so far, also those before a resume.
    pub step: u64,
    /// The epochs that were asked for.
    pub epochs: usize,
    /// Global batches of an epoch, if known.
    pub batches_per_epoch: Option<usize>,
    /// Whether there is validation data.
    pub has_validation: bool,
    /// Validation batches done, while validating.
    pub validation_batches: usize,
    /// Validation batches in all, if known.
    pub validation_batches_in_all: Option<usize>,
}

/// The state of a callback, which it gets back after a resume.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallbackState {
    /// Anything but tensors.
    pub value: Value,
    /// Tensors by name.
    pub tensors: BTreeMap<String, TensorData>,
}

/// Something that happens around the steps of [`Fit`](super::Fit): progress, checkpoints,
/// schedules (Keras: `keras.callbacks.Callback`).
///
/// Callbacks are called in the order they were added, on the thread that called
/// [`Fit::run`](super::Fit::run), between steps: what they do is time that no replica trains.
/// `&mut callback` is one too: it lends a callback to a run, so that it can be looked at
/// afterwards.
///
/// An error of a callback ends the run with that error, after the callbacks that save checkpoints
/// have saved what was trained. With several workers one whose callback fails is enough: all end
/// after the same update, one later than the running one, and save together; this worker's run
/// returns the error, the others' return
/// [`Error::Stopped`](distribute_core::Error::Stopped) with its text. A callback that has failed is
/// not called any more; the others are, until the end. Nothing is saved for an error of the group
/// itself (a lost worker, replicas that differ), or if a callback fails in the middle of what all
/// workers do together.
///
/// ```
/// use distribute_core::Result;
/// use distribute_fit::{Callback, Control, EpochRecord, Outcome};
///
/// /// Stops as soon as the accuracy is good enough.
/// struct GoodEnough(f64);
///
/// impl Callback for GoodEnough {
///     fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
///         if record.logs.get("val_accuracy").is_some_and(|accuracy| accuracy >= self.0) {
///             run.stop(Outcome::Requested { why: "good enough".to_string() });
///         }
///         Ok(())
///     }
/// }
/// ```
#[auto_impl::auto_impl(&mut)]
#[expect(unused_variables, reason = "the names say what a method gets")]
pub trait Callback {
    /// Before the first step; after a resume everything is restored.
    ///
    /// # Errors
    /// Ends the run.
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        Ok(())
    }

    /// Before the first batch of an epoch; also when a run resumes in the middle of one.
    ///
    /// # Errors
    /// Ends the run.
    fn on_epoch_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        Ok(())
    }

    /// After every global batch.
    ///
    /// [`Control::logs`] reads the loss from the devices, which waits for the step; a callback
    /// that does not ask costs nothing.
    ///
    /// # Errors
    /// Ends the run.
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        Ok(())
    }

    /// After every global batch of the validation data.
    ///
    /// # Errors
    /// Ends the run.
    fn on_validation_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        Ok(())
    }

    /// After an epoch and its validation. Not called for an epoch that was cut short by
    /// [`Control::stop`]; called for the part of an epoch before
    /// [`Outcome::MaxSteps`].
    ///
    /// # Errors
    /// Ends the run.
    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        Ok(())
    }

    /// After the last step, however training ended; not after an error.
    ///
    /// # Errors
    /// Ends the run.
    fn on_train_end(&mut self, outcome: &Outcome, run: &mut Control<'_>) -> Result<()> {
        Ok(())
    }

    /// Whether this callback saves checkpoints. Such callbacks come after all others, so that
    /// they save what the others have seen; at the end of training they come before, so that they
    /// save what was trained.
    fn saves(&self) -> bool {
        false
    }

    /// A name for what [`state`](Self::state) gives, if it should be kept in checkpoints.
    fn state_name(&self) -> Option<&'static str> {
        None
    }

    /// What to keep in a checkpoint.
    fn state(&self) -> CallbackState {
        CallbackState::default()
    }

    /// Takes back what [`state`](Self::state) gave, before `on_train_begin` of a resumed run.
    ///
    /// # Errors
    /// If it is not this callback's state.
    fn restore_state(&mut self, state: CallbackState) -> Result<()> {
        Ok(())
    }
}

/// The training state without its model's type.
pub(super) trait AnyState {
    fn tensors(&self) -> Result<BTreeMap<String, TensorData>>;
    /// Whether the optimizer keeps moving averages of the weights.
    fn has_averages(&self) -> bool;
    /// Whether the variables live on parameter servers.
    fn is_remote(&self) -> bool;
    /// The values of their own that the local replicas with these ids have.
    fn own_tensors(&self, ids: &[usize]) -> Result<Vec<Own>>;
    /// Hands out the model's tensors by their paths, one after the other.
    fn each_parameter(&self, visit: &mut dyn FnMut(&str, TensorData) -> Result<()>) -> Result<()>;
    /// The checksums of what all replicas have alike, of each local one; of one where the newest
    /// copy is on the devices of compiled steps.
    fn checksums(&self, is_compiled: bool) -> Result<Vec<Checksums>>;
    /// The updates that the loss scale has left out.
    fn skipped_steps(&self) -> u64;
    /// Replaces all tensors after the same number of updates.
    fn replace(&mut self, tensors: &BTreeMap<String, TensorData>) -> Result<()>;
    /// How many micro-batches wait, and how many make an update.
    fn accumulation(&self) -> (usize, usize);
    /// The values that are equal on all replicas.
    fn snapshot(&self) -> Result<Checkpoint>;
}

impl<M: Module + 'static> AnyState for Mirrored<TrainState<M>> {
    fn tensors(&self) -> Result<BTreeMap<String, TensorData>> {
        Ok(self.save()?.1)
    }

    fn has_averages(&self) -> bool {
        self.host_metadata().has_averages()
    }

    fn is_remote(&self) -> bool {
        self.host_metadata().is_remote()
    }

    fn own_tensors(&self, ids: &[usize]) -> Result<Vec<Own>> {
        if AnyState::is_remote(self) {
            Ok(Vec::new())
        } else {
            Mirrored::own_tensors(self, ids)
        }
    }

    fn each_parameter(&self, visit: &mut dyn FnMut(&str, TensorData) -> Result<()>) -> Result<()> {
        self.primary()?.read_leaves(&mut |leaf| match leaf.kind {
            StateKind::Parameter | StateKind::Statistic => visit(leaf.path, leaf.read()?),
            _ => Ok(()),
        })
    }

    fn checksums(&self, is_compiled: bool) -> Result<Vec<Checksums>> {
        of_state(self, is_compiled)
    }

    fn skipped_steps(&self) -> u64 {
        self.host_metadata().loss_scale().skipped_steps()
    }

    fn replace(&mut self, tensors: &BTreeMap<String, TensorData>) -> Result<()> {
        let step = self.host_metadata().step();
        self.update(|state| state.load_tensors(tensors, step))
    }

    fn accumulation(&self) -> (usize, usize) {
        self.host_metadata().accumulation()
    }

    fn snapshot(&self) -> Result<Checkpoint> {
        let optimizer = self.host_metadata().optimizer();
        let (step, tensors) = self.save()?;
        Ok(snapshot_of(Some(optimizer), step, tensors))
    }
}

/// The part of a run that does not depend on the types of model and data.
pub(super) struct Run {
    pub(super) strategy: Arc<dyn Strategy>,
    pub(super) progress: Progress,
    pub(super) max_steps: Option<u64>,
    /// The number of updates before the last batch.
    pub(super) step_before: u64,
    pub(super) meter: Meter,
    pub(super) learning_rate: f64,
    /// The learning rate of the last update.
    pub(super) last_learning_rate: f64,
    pub(super) seed: u64,
    pub(super) global_batch_size: Option<usize>,
    /// How many replicas the run has, and has had before it was resumed.
    pub(super) all_replicas: BTreeSet<usize>,
    /// After how many updates the replicas compare their states, beside saves.
    pub(super) check_replicas: Option<u64>,
    /// At which updates another replica computes the gradients of one again.
    pub(super) recompute: Option<u64>,
    /// The update after which all replicas had the same state, when they last compared for a save.
    pub(super) same_at: Option<u64>,
    pub(super) stop: Option<Outcome>,
    /// The error of a callback, which ends the run as soon as all workers know of it.
    pub(super) failure: Option<Error>,
    /// The first worker whose callback has failed, and what it says, once all know.
    pub(super) failed: Option<Failed>,
    /// Whether all workers end because of it, and have finished their exchanges.
    pub(super) all_end: bool,
    /// The ranks, if there are several to compare.
    pub(super) ranks: Option<Ranks>,
    /// How often they are compared.
    pub(super) compare_ranks: Duration,
    /// Where the training data is, if epoch and batch do not say it.
    pub(super) data: Option<Arc<dyn SourceState>>,
}

impl Run {
    /// Keeps the first error of a callback of this worker and asks all to stop for it. Errors after
    /// which the workers cannot do anything together end the run at once.
    ///
    /// # Errors
    /// Such an error.
    pub(super) fn keep(&mut self, error: Error) -> Result<()> {
        if !leaves_workers(&error) {
            return Err(error);
        }
        match &self.failure {
            None => {
                let why = error.to_string();
                self.stop.get_or_insert(Outcome::Requested { why });
                self.failure = Some(error);
            }
            // The one that matters is the first one.
            Some(_) => tracing::debug!(%error, "another callback failed as well"),
        }
        Ok(())
    }

    /// Counts a batch, after which `step` updates were made.
    pub(super) fn count_batch(&mut self, step: u64) {
        self.progress.position.batches += 1;
        self.step_before = self.progress.step;
        self.progress.step = step;
    }

    /// Refuses, on all workers, a state that is not the same on all replicas. All workers call it
    /// after the same update; the same state is compared once.
    ///
    /// # Errors
    /// [`FitError::Diverged`](super::FitError::Diverged), a device that cannot be read, and those
    /// of a call between workers.
    pub(super) fn check_same_state(&mut self, state: &dyn AnyState) -> Result<()> {
        if let Some(own) = self.to_compare(state)? {
            compare(&*self.strategy, self.progress.step, own)?;
            self.same_at = Some(self.progress.step);
        }
        Ok(())
    }

    /// [`check_same_state`](Self::check_same_state) when it is due by the number of updates. What
    /// changes the state afterwards, before it is saved, is compared again then.
    ///
    /// # Errors
    /// As `check_same_state`.
    pub(super) fn check_replicas(&self, state: &dyn AnyState) -> Result<()> {
        let is_due = |every: u64| self.reached_multiple_of(every);
        if !self.check_replicas.is_some_and(is_due) || is_alone(&*self.strategy, state.is_remote())
        {
            return Ok(());
        }
        let step = self.progress.step;
        let _phase =
            tracing::trace_span!(target: "distribute::phase", "check_replicas", step).entered();
        let own = state.checksums(self.strategy.tracer().is_some())?;
        compare(&*self.strategy, step, own)
    }

    /// Whether the last batch took the number of updates to, or past, a multiple of `every`.
    pub(super) fn reached_multiple_of(&self, every: u64) -> bool {
        let every = every.max(1);
        self.progress.step / every > self.step_before / every
    }

    /// The checksums of the local replicas, if all have to compare them: there are several, and
    /// have not after this update.
    fn to_compare(&self, state: &dyn AnyState) -> Result<Option<Vec<Checksums>>> {
        let strategy = &self.strategy;
        if is_alone(&**strategy, state.is_remote()) || self.same_at == Some(self.progress.step) {
            return Ok(None);
        }
        state.checksums(strategy.tracer().is_some()).map(Some)
    }

    /// The time since the last lap was for this.
    pub(super) fn lap(&mut self, lap: Lap) {
        if let Some(ranks) = &mut self.ranks {
            ranks.lap(lap);
        }
    }

    pub(super) fn limit_reached(&self) -> bool {
        let step = self.progress.step;
        self.max_steps.is_some_and(|limit| step >= limit)
    }

    /// Batch `batch` of the running epoch.
    pub(super) fn pass(&self, mode: Mode, batch: usize) -> Pass {
        Pass {
            mode,
            seed: self.seed,
            epoch: self.progress.position.epoch,
            batch,
        }
    }
}

/// A run, as a callback sees it.
pub struct Control<'a> {
    run: &'a mut Run,
    pub(super) state: &'a mut dyn AnyState,
    /// Where the state of the callback is kept.
    key: Option<&'a str>,
    /// The callbacks before and after this one.
    others: [&'a [Slot<'a>]; 2],
}

impl Control<'_> {
    /// The progress of the run.
    pub fn progress(&self) -> Progress {
        self.run.progress
    }

    /// Whether the last batch took the number of updates to, or past, a multiple of `every`: for
    /// what is done every `every` steps. Steps that run in other processes may count several
    /// updates at once, and micro-batches none.
    pub fn reached_multiple_of(&self, every: u64) -> bool {
        self.run.reached_multiple_of(every)
    }

    /// The averages of this epoch so far (in `on_epoch_begin` and later, training data only).
    ///
    /// Reads what was not read yet from the devices and waits for it. With several workers every
    /// worker may call it when it likes: of the batches that the workers have not put together yet
    /// (at most 32) it counts this worker's part. The epoch's record holds the averages over all.
    ///
    /// # Errors
    /// If the objective's values cannot be read or differ in structure.
    pub fn logs(&mut self) -> Result<Logs> {
        Ok(self.run.meter.so_far()?.logs())
    }

    /// The averages of this epoch so far over all workers. All workers call it after the same
    /// batch; it blocks until they have. Without several workers the same as
    /// [`logs`](Self::logs).
    ///
    /// # Errors
    /// As [`logs`](Self::logs), and a worker that was lost or does not come before the deadline.
    pub fn logs_of_all_workers(&mut self) -> Result<Logs> {
        Ok(self.run.meter.read()?.logs())
    }

    /// The loss of [`logs`](Self::logs); `None` before the first example.
    ///
    /// # Errors
    /// As [`logs`](Self::logs).
    pub fn loss_so_far(&mut self) -> Result<Option<f64>> {
        Ok(self.run.meter.so_far()?.loss())
    }

    /// What all replicas have as their own, by the names in a checkpoint, and whether what was
    /// trained is useless on one of the workers, so that nothing is to be saved. That is all that a
    /// save needs of the other workers: all call it together, and make one exchange.
    ///
    /// # Errors
    /// On all workers for a state that is not the same on all replicas.
    pub(super) fn own_of_all(&mut self) -> Result<(Own, bool)> {
        self.run.meter.read()?;
        let checksums = self.run.to_compare(self.state)?.unwrap_or_default();
        let is_useless = matches!(self.run.stop, Some(Outcome::NotFinite { .. }));
        let sent = Sent {
            said: (is_useless, sums(&checksums)),
            own: self.own_tensors()?,
        };
        let all = sent.gather(
            "what replicas have for a checkpoint",
            self.strategy().workers(),
        )?;
        let (mut compared, mut own, mut is_useless) = (Vec::new(), Vec::new(), false);
        for sent in all {
            is_useless |= sent.said.0;
            compared.push(sent.said.1);
            own.extend(sent.own);
        }
        if !is_useless {
            let step = self.run.progress.step;
            compare_sums(self.strategy(), step, &compared, checksums)?;
            self.run.same_at = Some(step);
        }
        Ok((of_all(own), is_useless))
    }

    /// Refuses, on all workers, a state that is not the same on all replicas.
    pub(super) fn check_same_state(&mut self) -> Result<()> {
        self.run.check_same_state(self.state)
    }

    /// What each local replica has as its own.
    pub(super) fn own_tensors(&self) -> Result<Vec<Own>> {
        let replicas = self.strategy().replicas().iter();
        let ids: Vec<usize> = replicas.map(|replica| replica.id).collect();
        self.state.own_tensors(&ids)
    }

    /// A copy of the model's tensors, by name (`model/..`).
    pub(super) fn model(&self) -> Result<Own> {
        let mut model = Own::new();
        self.state.each_parameter(&mut |path, value| {
            model.insert(Section::Model.name(path), value);
            Ok(())
        })?;
        Ok(model)
    }

    /// The updates so far that the loss scale has left out, because gradients were not finite; 0
    /// without one.
    pub fn skipped_steps(&self) -> u64 {
        self.state.skipped_steps()
    }

    /// How the ranks of several workers stand, by rank, in the last interval of
    /// [`Fit::compare_ranks`](super::Fit::compare_ranks): the same on all workers. Empty with one
    /// worker, and before two intervals have passed. Costs nothing.
    pub fn standings(&self) -> &[Standing] {
        self.run.ranks.as_ref().map_or(&[], Ranks::standings)
    }

    /// The run's strategy.
    pub fn strategy(&self) -> &dyn Strategy {
        &*self.run.strategy
    }

    /// Ends training after the running batch (or epoch, from `on_epoch_end`). The first reason
    /// stays, unless a later one is [`Outcome::NotFinite`]: then nothing may be saved. With several
    /// workers one that asks is enough, and all end after the same update, one later than the
    /// running one.
    pub fn stop(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::NotFinite { .. } => self.run.stop = Some(outcome),
            _ => _ = self.run.stop.get_or_insert(outcome),
        }
    }

    /// Why training is going to end, if it is.
    pub fn stopping(&self) -> Option<&Outcome> {
        self.run.stop.as_ref()
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        self.run.learning_rate
    }

    /// Sets the learning rate of the next steps. Costs nothing: the replicas take it over when
    /// they start their next step. With several workers every worker's callback must set the same;
    /// they compare it between epochs.
    pub fn set_learning_rate(&mut self, learning_rate: f64) {
        self.run.learning_rate = learning_rate;
    }

    /// A copy of all tensors of the training state, by name (`model/..`, `optimizer/..`). Waits
    /// for the device.
    ///
    /// # Errors
    /// If the device cannot be read.
    pub fn tensors(&self) -> Result<BTreeMap<String, TensorData>> {
        self.state.tensors()
    }

    /// Replaces the model's parameters on all replicas; slots and step stay. With several workers
    /// every worker's callback must do it, with the same parameters.
    ///
    /// # Errors
    /// If `parameters` belong to another model. The state is unchanged then.
    pub fn set_parameters(&mut self, parameters: &BTreeMap<String, TensorData>) -> Result<()> {
        let mut tensors = self.state.tensors()?;
        tensors.retain(|name, _| !Section::Model.has(name));
        tensors.extend(parameters.clone());
        self.state.replace(&tensors)
    }

    /// Everything that is needed to continue the run from here, see
    /// [`Fit::resume_from`](super::Fit::resume_from). `own` is the state of the calling callback,
    /// the others are asked for theirs. Waits for the device. With several workers all of them
    /// call it after the same batch.
    ///
    /// # Errors
    /// If the device cannot be read.
    pub fn checkpoint(&mut self, own: CallbackState) -> Result<Checkpoint> {
        let (of_all, _) = self.own_of_all()?;
        let mut checkpoint = self.common_checkpoint(own)?;
        checkpoint.tensors.extend(of_all);
        Ok(checkpoint)
    }

    /// [`checkpoint`](Self::checkpoint) without what each replica has as its own.
    pub(super) fn common_checkpoint(&mut self, own: CallbackState) -> Result<Checkpoint> {
        let sums = self.run.meter.read()?.clone();
        let mut checkpoint = self.state.snapshot()?;
        let (waiting, micro_batches) = self.state.accumulation();
        let position = self.run.progress.position;
        checkpoint.metadata.epoch = position.epoch as u64;
        checkpoint.metadata.batches_into_epoch = position.batches as u64;
        checkpoint.metadata.seed = self.run.seed;
        let mut states = BTreeMap::new();
        let own = self.key.map(|key| (key, own));
        let others = self.others.into_iter().flatten();
        let others = others.filter_map(|slot| Some((slot.key.as_deref()?, slot.callback.state())));
        for (key, state) in others.chain(own) {
            let named = state.tensors.into_iter();
            let named = named.map(|(name, data)| (Section::Callback.name_in(key, &name), data));
            checkpoint.tensors.extend(named);
            states.insert(key.to_string(), state.value);
        }
        let metadata = RunMetadata {
            learning_rate: self.run.learning_rate,
            last_learning_rate: Some(Exact(self.run.last_learning_rate)),
            micro_batches,
            waiting,
            global_batch_size: self.run.global_batch_size,
            replicas: self.run.strategy.num_replicas_in_sync(),
            all_replicas: self.run.all_replicas.clone(),
            sums,
            callbacks: states,
        };
        metadata.store(&mut checkpoint)?;
        data_state::store(self.run.data.as_ref(), position, &mut checkpoint)?;
        Ok(checkpoint)
    }
}

/// Whether the workers are there and have one state, so that they can still save it together.
fn leaves_workers(error: &Error) -> bool {
    let parted = error.wrapped().and_then(|error| error.downcast_ref());
    let is_of_group = matches!(
        error.root_cause(),
        Error::Collective(_)
            | Error::Diverged { .. }
            | Error::Poisoned { .. }
            | Error::ReplicaMissing { .. }
            | Error::Stopped { .. }
            | Error::WrongGradient(_)
    );
    !is_of_group && !matches!(parted, Some(FitError::Diverged { .. }))
}

/// The callbacks of a run.
pub(super) struct Callbacks<'a> {
    /// The callbacks; the ones that save checkpoints come last.
    slots: Vec<Slot<'a>>,
    /// How many of them save.
    pub(super) savers: usize,
}

/// Which callbacks are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that save checkpoints.
    Savers,
    /// All others.
    Others,
}

struct Slot<'a> {
    /// Where its state is kept; different for each callback.
    key: Option<String>,
    /// Whether the callback has failed, and is not called any more.
    has_failed: bool,
    callback: Box<dyn Callback + 'a>,
}

impl<'a> Callbacks<'a> {
    /// Puts those that save last.
    pub(super) fn new(mut callbacks: Vec<Box<dyn Callback + 'a>>) -> Self {
        callbacks.sort_by_key(|callback| callback.saves());
        let mut seen: HashMap<&'static str, usize> = HashMap::new();
        let savers = callbacks.iter().filter(|callback| callback.saves()).count();
        let slots = callbacks.into_iter().map(|callback| {
            let key = callback.state_name().map(|name| {
                let count = seen.entry(name).or_default();
                *count += 1;
                format!("{name}-{count}")
            });
            Slot {
                key,
                has_failed: false,
                callback,
            }
        });
        Self {
            slots: slots.collect(),
            savers,
        }
    }

    /// Gives every callback its state of the checkpoint back.
    pub(super) fn restore(
        &mut self,
        checkpoint: &Checkpoint,
        mut states: BTreeMap<String, Value>,
    ) -> Result<()> {
        for Slot { key, callback, .. } in &mut self.slots {
            let Some((key, value)) = key.as_ref().and_then(|key| states.remove_entry(key)) else {
                continue;
            };
            let tensors = checkpoint.tensors.iter().filter_map(|(name, data)| {
                let (of, name) = Section::Callback.parts_of(name)?;
                (of == key).then(|| (name.to_string(), data.clone()))
            });
            let tensors = tensors.collect();
            callback.restore_state(CallbackState { value, tensors })?;
        }
        Ok(())
    }

    /// Calls callbacks in the order they were added, up to the first error that `failed` does not
    /// take. One that has failed is not called any more.
    pub(super) fn each(
        &mut self,
        which: Which,
        run: &mut Run,
        state: &mut dyn AnyState,
        mut call: impl FnMut(&mut dyn Callback, &mut Control<'_>) -> Result<()>,
        failed: fn(&mut Run, Error) -> Result<()>,
    ) -> Result<()> {
        let count = self.slots.len();
        let savers = count - self.savers;
        let called = match which {
            Which::Others => 0..savers,
            Which::Savers => savers..count,
        };
        for caller in called {
            let (before, rest) = self.slots.split_at_mut(caller);
            let Some((slot, after)) = rest.split_first_mut() else {
                break;
            };
            if slot.has_failed {
                continue;
            }
            let mut control = Control {
                run,
                state,
                key: slot.key.as_deref(),
                others: [before, after],
            };
            if let Err(error) = call(&mut *slot.callback, &mut control) {
                slot.has_failed = true;
                failed(control.run, error)?;
            }
        }
        Ok(())
    }
}
