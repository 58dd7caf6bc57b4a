//! Keeps the state of the last step in memory that outlives the process.

use distribute_core::Result;

use super::model_checkpoint::check_finite;
use crate::snapshot::Sent;
use crate::{Callback, CallbackState, Control, EpochRecord, FitError, StateMemory};

/// Keeps the training state of the last step in memory that outlives this process, so that the job
/// goes on from that step when a worker is lost, without a disk.
///
/// All workers have the callback, each with its own [`StateMemory`], and write after the same
/// steps. Each worker writes:
///
/// - what is the same on all replicas, as [`ModelCheckpoint`](super::ModelCheckpoint) saves it;
/// - what its replicas have as their own (running statistics, gradients of micro-batches);
/// - what the replicas of one other worker have as their own. That worker sends it: it is the
///   worker before or, with several workers for each launcher, a worker of another launcher.
///
/// So nothing is lost when all workers of one launcher are lost with its memory. What is the same
/// on all replicas is kept as long as one worker is left.
///
/// Each time the training state is copied to host memory and from there into the memory of the
/// launcher, and the workers exchange what is sent. That memory holds two states for each worker.
/// Weights that are not finite are not written, nor is a state that is not the same on all replicas
/// of a worker alone; one that differs from worker to worker is not gone on with.
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

    /// Writes after every `steps`-th optimizer step; 0 counts as 1. When a worker is lost, the
    /// steps since the last write are run again.
    pub fn every_steps(mut self, steps: u64) -> Self {
        self.every = steps.max(1);
        self
    }

    fn write(&mut self, run: &mut Control<'_>) -> Result<()> {
        // States that differ from worker to worker are not gone on with (`StateMemory::agree`).
        if run
            .strategy()
            .workers()
            .is_none_or(|it| it.num_workers() == 1)
        {
            run.check_same_state()?;
        }
        let mut checkpoint = run.common_checkpoint(CallbackState::default())?;
        // All workers have the same weights, so all of them return here or none.
        if check_finite(&checkpoint).is_err() {
            return Ok(());
        }
        let own = run.own_tensors()?;
        // All workers come to the same answer.
        let is_any = run.state.accumulation().0 > 0 || own.iter().any(|own| !own.is_empty());
        if let Some(workers) = run.strategy().workers().filter(|_| is_any) {
            let sent = Sent {
                said: (),
                own: own.clone(),
            };
            let sent = sent.shift(CALL, workers, self.memory.distance)?;
            let of_neighbour = sent.into_iter().flat_map(|sent| sent.own);
            checkpoint.tensors.extend(of_neighbour.flatten());
        }
        checkpoint.tensors.extend(own.into_iter().flatten());
        self.memory.write(&checkpoint)
    }
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
        // So that workers which have just joined hold the state as well.
        match run.progress().step {
            0 => Ok(()),
            _ => self.write(run),
        }
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        if run.reached_multiple_of(self.every) {
            self.write(run)
        } else {
            Ok(())
        }
    }

    /// Writes again, so that a run that goes on from here does not validate the epoch once more.
    fn on_epoch_end(&mut self, _: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        self.write(run)
    }

    fn saves(&self) -> bool {
        true
    }
}
