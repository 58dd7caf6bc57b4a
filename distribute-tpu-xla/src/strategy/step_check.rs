//! That all processes of a system run the same steps.
//!
//! Devices that run different programs combine what does not belong together, and do not notice. So
//! a program of several processes gathers its own number from all replicas, and no result of a step
//! is read before these are equal. Nothing waits for it earlier: steps still follow each other
//! without a pause.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::TpuError;
use crate::pjrt::Buffer;
use crate::sync::lock;

/// The started steps of a strategy, and their state.
#[derive(Debug)]
pub(crate) struct StepChecks {
    /// The process of each replica.
    processes: Vec<usize>,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Steps that were started.
    started: u64,
    /// Steps that were not compared yet, oldest first.
    pending: VecDeque<StartedStep>,
    /// The first that was not the same everywhere; nothing can be read after it.
    failed: Option<TpuError>,
}

/// A step that runs, or has run.
#[derive(Debug)]
struct StartedStep {
    step: u64,
    /// The numbers of the programs that all replicas run, once it has ended.
    numbers: Buffer,
    /// What this process called it with.
    arguments: Arc<str>,
}

impl StepChecks {
    pub(crate) fn new(processes: Vec<usize>, timeout: Duration) -> Self {
        Self {
            processes,
            timeout,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Refuses to start a step after one that was not the same everywhere.
    pub(crate) fn check(&self) -> Result<(), TpuError> {
        self.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// Notes a started step, and checks steps that have ended. Returns the step's number.
    pub(crate) fn started(&self, numbers: Buffer, arguments: &Arc<str>) -> Result<u64, TpuError> {
        let mut state = self.lock();
        state.started += 1;
        let step = state.started;
        state.pending.push_back(StartedStep {
            step,
            numbers,
            arguments: Arc::clone(arguments),
        });
        while let Some(first) = state.pending.front() {
            if !first.numbers.ready_event()?.is_ready()? {
                break;
            }
            self.compare_first(&mut state)?;
        }
        Ok(step)
    }

    /// Waits until the steps up to this one have ended and were the same on all processes.
    ///
    /// # Errors
    /// [`TpuError::DifferentPrograms`], now and ever after, if they were not.
    pub(crate) fn verify(&self, step: u64) -> Result<(), TpuError> {
        let mut state = self.lock();
        state.failed.clone().map_or(Ok(()), Err)?;
        let due = |state: &State| {
            state
                .pending
                .front()
                .is_some_and(|first| first.step <= step)
        };
        while due(&state) {
            self.compare_first(&mut state)?;
        }
        Ok(())
    }

    fn compare_first(&self, state: &mut State) -> Result<(), TpuError> {
        let Some(first) = state.pending.front() else {
            return Ok(());
        };
        if !first.numbers.wait_timeout(self.timeout)? {
            let limit = self.timeout;
            return Err(TpuError::Timeout { limit });
        }
        let numbers = first.numbers.to_vec::<u32>()?;
        let (numbers, _) = numbers.as_chunks::<2>();
        let differs = numbers.iter().position(|number| *number != numbers[0]);
        let (Some(step), Some(replica)) = (state.pending.pop_front(), differs) else {
            return Ok(());
        };
        let error = TpuError::DifferentPrograms {
            process: self.processes.get(replica).copied().unwrap_or(replica),
            difference: "it runs another one of the compiled steps".to_string(),
            arguments: step.arguments.to_string(),
        };
        state.failed = Some(error.clone());
        Err(error)
    }
}

/// The number of a program, which tells it from others.
pub(crate) fn number_of(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
