//! Compiled steps: which there are, how often they run, and when there are too many.
//!
//! How a step becomes a graph is described in [`distribute_core::trace`]; this module keeps what is
//! compiled from graphs. A program belongs to a [`StepKey`]: the step's code, its training state,
//! and the shapes, element types and plain numbers of its arguments. A step that is called with
//! other shapes, for example with a short last batch, is compiled once more; one that keeps
//! changing costs a compilation in every call, so it is [reported](ProgramLimits). Programs go when
//! their training state has gone and another program comes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distribute_core::trace::{StepGroup, StepKey, StepProgram};
use distribute_core::{Error, Result};

use crate::sync::lock;

/// When a step counts as compiled too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramLimits {
    /// More programs of one step than this are a warning, each time one is added.
    pub warn_after: usize,
    /// More programs of one step than this are an error; none by default.
    pub most: Option<usize>,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self {
            warn_after: 5,
            most: None,
        }
    }
}

/// Counts of what a strategy has compiled and run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProgramStatistics {
    /// Different steps; a step on another training state counts as another one.
    pub steps: usize,
    /// Programs of all steps, also of training states that are gone.
    pub programs: usize,
    /// Programs beyond the first of each step: other shapes or numbers.
    pub recompilations: usize,
    /// Calls of `run` that found their program.
    pub hits: u64,
    /// The time that lowering and compiling took.
    pub compile_time: Duration,
}

/// The programs of one strategy.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    limits: ProgramLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    programs: HashMap<StepKey, Arc<StepProgram>>,
    /// How many programs each step has.
    groups: HashMap<StepGroup, usize>,
    statistics: ProgramStatistics,
}

impl Programs {
    pub(crate) fn new(limits: ProgramLimits) -> Self {
        Self {
            limits,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn find(&self, key: &StepKey) -> Option<Arc<StepProgram>> {
        let mut state = self.state();
        let found = state.programs.get(key).cloned();
        state.statistics.hits += u64::from(found.is_some());
        found
    }

    /// Asks whether one more program of this step is in order.
    pub(crate) fn admit(&self, key: &StepKey) -> Result<()> {
        let compiled = self.state().groups.get(key.group()).copied().unwrap_or(0);
        if self.limits.most.is_some_and(|most| compiled >= most) {
            return Err(Error::TooManyPrograms {
                compiled,
                last: key.arguments(),
            });
        }
        if compiled >= self.limits.warn_after {
            tracing::warn!(
                "a step is compiled for the {}th time, each time for other shapes or plain \
                 numbers; this time for {}",
                compiled + 1,
                key.arguments()
            );
        }
        Ok(())
    }

    /// Keeps a program, and drops programs whose training state is gone.
    pub(crate) fn keep(&self, key: StepKey, program: Arc<StepProgram>) {
        let mut state = self.state();
        state.programs.retain(|key, _| !key.group().is_over());
        state.groups.retain(|group, _| !group.is_over());
        let count = state.groups.entry(key.group().clone()).or_default();
        *count += 1;
        let is_first = *count == 1;
        state.statistics.programs += 1;
        if is_first {
            state.statistics.steps += 1;
        } else {
            state.statistics.recompilations += 1;
        }
        state.programs.insert(key, program);
    }

    pub(crate) fn compiled(&self, time: Duration) {
        self.state().statistics.compile_time += time;
    }

    pub(crate) fn statistics(&self) -> ProgramStatistics {
        self.state().statistics
    }
}
