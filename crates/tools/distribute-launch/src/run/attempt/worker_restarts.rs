//! Restarts of single workers. A job with a chief and parameter servers goes on when a
//! worker dies: the chief gives its work to others, and the worker is started again alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::report::outcome::Ending;

/// A dead worker, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerDeath {
    pub index: usize,
    pub ending: Ending,
}

/// Deaths that are still to be handled, and the counts of earlier ones.
#[derive(Default)]
pub struct WorkerRestarts {
    waiting: VecDeque<(Instant, WorkerDeath)>,
    /// How often each process was started again alone.
    again: Vec<u32>,
    /// How many workers are not started again.
    lost: usize,
}

impl WorkerRestarts {
    /// Handles a death after `wait`: the worker may have failed because the chief has just ended.
    pub fn push(&mut self, death: WorkerDeath, wait: Duration) {
        self.waiting.push_back((Instant::now() + wait, death));
    }

    /// How often the process with this number was started again alone.
    pub fn count(&self, index: usize) -> u32 {
        self.again.get(index).copied().unwrap_or(0)
    }

    /// When the first death is to be handled.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.iter().map(|(due, _)| *due).min()
    }

    /// Takes the first death that is due.
    pub fn pop(&mut self) -> Option<WorkerDeath> {
        let now = Instant::now();
        let at = self.waiting.iter().position(|(due, _)| *due <= now)?;
        self.waiting.remove(at).map(|(_, death)| death)
    }

    /// The job ends: no worker is started any more.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Counts one more start of the process with this number; `None` if there were `most` already.
    pub fn count_restart(&mut self, index: usize, most: u32) -> Option<u32> {
        if self.again.len() <= index {
            self.again.resize(index + 1, 0);
        }
        let again = self.again.get_mut(index)?;
        if *again >= most {
            return None;
        }
        *again += 1;
        Some(*again)
    }

    /// Counts a worker that is not started again; returns how many there are by now.
    pub fn give_up(&mut self) -> usize {
        self.lost += 1;
        self.lost
    }
}
