//! The steps of a training run as closures on the workers.

use std::collections::VecDeque;
use std::fmt;

use distribute_core::Result;
use distribute_fit::{Mode, RemotePass, RemoteStep, RemoteSteps};

use super::TrainingData;
use crate::coordinator::{ClusterCoordinator, RemoteValue};
use crate::error::PsError;

/// Closures per worker that are scheduled and have not ended: one runs, the next is at hand.
const AHEAD: usize = 2;
/// How far the newest batch may lie before the oldest that has not ended: what is trained on while
/// a worker hangs until it counts as lost.
const LEAD: usize = 1024;

/// What is known of one kind of data.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    batches: Option<usize>,
    global_batch_size: Option<usize>,
}

/// Schedules the steps of a run. See [`fit`](super).
pub(super) struct Steps<'c> {
    coordinator: &'c ClusterCoordinator,
    step: String,
    train: Size,
    validation: Size,
    pass: Option<Pass>,
}

/// A pass that has begun.
struct Pass {
    of: RemotePass,
    /// The next batch to schedule.
    next: usize,
    /// How many closures may still be scheduled.
    left: u64,
    /// In the order of their batches.
    running: VecDeque<(usize, RemoteValue)>,
}

impl<'c> Steps<'c> {
    pub(super) fn new<B: distribute_core::Nest + Send>(
        coordinator: &'c ClusterCoordinator,
        step: &str,
        data: &TrainingData<B>,
    ) -> Self {
        let size = |mode| {
            let source = data.of(mode);
            Size {
                batches: source.and_then(|source| source.batches_per_epoch()),
                global_batch_size: source.and_then(|source| source.global_batch_size()),
            }
        };
        Self {
            coordinator,
            step: step.to_string(),
            train: size(Mode::Train),
            validation: size(Mode::Evaluate),
            pass: None,
        }
    }
}

impl Pass {
    /// Whether one more closure is to be scheduled now.
    fn has_room(&self, workers: usize) -> bool {
        let oldest = self.running.front().map_or(self.next, |(batch, _)| *batch);
        self.next < self.of.batches.end
            && self.left > 0
            && self.running.len() < AHEAD * workers.max(1)
            && self.next - oldest < LEAD
    }
}

impl RemoteSteps for Steps<'_> {
    fn batches(&self, mode: Mode) -> Option<usize> {
        match mode {
            Mode::Train => self.train.batches,
            _ => self.validation.batches,
        }
    }

    fn global_batch_size(&self) -> Option<usize> {
        self.train.global_batch_size
    }

    fn begin(&mut self, pass: RemotePass) -> Result<()> {
        // In a synchronous round this many gradients make one update.
        let round = self.coordinator.run_options().synchronous.unwrap_or(1) as u64;
        let left = pass.updates.map(|updates| updates.saturating_mul(round));
        self.pass = Some(Pass {
            next: pass.batches.start,
            left: left.unwrap_or(u64::MAX),
            running: VecDeque::new(),
            of: pass,
        });
        Ok(())
    }

    fn next(&mut self) -> Result<Option<RemoteStep>> {
        let Some(pass) = &mut self.pass else {
            return Ok(None);
        };
        while pass.has_room(self.coordinator.num_workers()) {
            let task = pass.of.task(pass.next);
            let value = self.coordinator.schedule(&self.step, task)?;
            pass.running.push_back((pass.next, value));
            pass.next += 1;
            pass.left -= 1;
        }
        if pass.running.is_empty() {
            self.pass = None;
            return Ok(None);
        }
        let ended = self
            .coordinator
            .wait_any(pass.running.iter().map(|(_, value)| value))?;
        let missing = || PsError::invalid("the coordinator waited for no closure");
        let (batch, value) = pass.running.remove(ended).ok_or_else(missing)?;
        let report = value.fetch()?;
        Ok(Some(RemoteStep { batch, report }))
    }

    fn stop(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.left = 0;
        }
    }
}

impl fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps")
            .field("step", &self.step)
            .field(
                "running",
                &self.pass.as_ref().map(|pass| pass.running.len()),
            )
            .finish_non_exhaustive()
    }
}
