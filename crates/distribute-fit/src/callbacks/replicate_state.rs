//! Keeps the state of the last step in memory that outlives the process.

use burn::tensor::TensorData;
use distribute_core::{Error, Result};

use super::model_checkpoint::check_finite;
use crate::statistics::{named, values};
use crate::{Callback, CallbackState, Control, EpochRecord, FitError, StateMemory};

/// Keeps the training state of the last step in memory that outlives this process, so that the job
/// goes on from that step when a worker is lost, without a disk.
///
/// All workers have the callback, each with its own [`StateMemory`], and write after the same
/// steps: all that [`ModelCheckpoint`](super::ModelCheckpoint) saves, the running statistics of
/// the worker's own replicas, and those of the replicas of a second worker, which sends them: the
/// one before or, with several workers for each launcher, one of another launcher. So the state
/// is whole when the workers of one launcher are lost with its memory. What all replicas have
/// alike is whole as long as one worker is left.
///
/// It costs, after each such step, a copy of the training state to host memory, a copy of it into
/// the memory, and a small exchange between the workers; the memory holds two states for each
/// worker. Weights that are not finite are not written.
#[derive(Debug)]
#[must_use]
pub struct ReplicateState {
    memory: StateMemory,
    every: u64,
}

const CALL: &str = "the state of replicas";

impl ReplicateState {
    /// Writes into this memory after every step.
    pub fn new(memory: StateMemory) -> Self {
        Self { memory, every: 1 }
    }

    /// Writes after every `steps`-th optimizer step; 0 counts as 1. What is lost with a worker are
    /// the steps after the last of these.
    pub fn every_steps(mut self, steps: u64) -> Self {
        self.every = steps.max(1);
        self
    }

    fn write(&mut self, run: &mut Control<'_>) -> Result<()> {
        let mut checkpoint = run.common_checkpoint(CallbackState::default())?;
        // All workers have the same weights, so all of them find the same.
        if check_finite(&checkpoint).is_err() {
            return Ok(());
        }
        let ids: Vec<usize> = run.strategy().replicas().iter().map(|r| r.id).collect();
        let own = run.state.own_statistics()?;
        let paths: Vec<String> = match own.first() {
            Some(first) => first.iter().map(|(path, _)| path.clone()).collect(),
            // A model without any.
            None => return self.memory.write(&checkpoint),
        };
        let mut lists: Vec<Vec<TensorData>> = own.into_iter().map(values).collect();
        let mut all: Vec<_> = ids.iter().copied().zip(lists.clone()).collect();
        if let Some(workers) = run.strategy().workers() {
            let ids: Vec<i64> = ids.iter().map(|id| *id as i64).collect();
            let count = ids.len();
            lists.insert(0, vec![TensorData::new(ids, [count])]);
            let sent = workers.shift(CALL, self.memory.distance, &lists)?;
            all.extend(of_neighbour(sent)?);
        }
        for (replica, values) in all {
            let own = paths.iter().cloned().zip(values).collect();
            checkpoint.tensors.extend(named(replica, own));
        }
        self.memory.write(&checkpoint)
    }
}

/// What the worker before has sent: the ids of its replicas, and a list for each.
fn of_neighbour(lists: Vec<Vec<TensorData>>) -> Result<Vec<(usize, Vec<TensorData>)>> {
    let mut lists = lists.into_iter();
    let unreadable = || Error::invalid("the worker before sent a state that cannot be read");
    let ids = lists.next().and_then(|first| first.into_iter().next());
    let ids = ids.and_then(|ids| ids.try_into_vec::<i64>().ok());
    let ids = ids.filter(|ids| ids.len() == lists.len());
    let named = ids.ok_or_else(unreadable)?.into_iter().zip(lists);
    named
        .map(|(id, list)| Ok((usize::try_from(id).map_err(|_| unreadable())?, list)))
        .collect()
}

impl Callback for ReplicateState {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        let strategy = run.strategy();
        let why = match (strategy.tracer().is_some(), run.state.is_remote()) {
            (true, _) => "its steps are compiled, and the newest state is on the device",
            (_, true) => "the variables live on parameter servers, which save them themselves",
            _ => "",
        };
        if !why.is_empty() {
            let strategy = strategy.name();
            return Err(FitError::StateNotReplicated { strategy, why }.into());
        }
        // Those that joined have it from now on too.
        match run.progress().step {
            0 => Ok(()),
            _ => self.write(run),
        }
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        match run.reached_multiple_of(self.every) {
            true => self.write(run),
            false => Ok(()),
        }
    }

    /// The epoch is not validated again.
    fn on_epoch_end(&mut self, _: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        self.write(run)
    }

    fn saves(&self) -> bool {
        true
    }
}
