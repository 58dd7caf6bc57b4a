//! A job with a chief and parameter servers goes on when a worker dies: the chief gives the
//! worker's work to others, and the worker is started again alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::report::outcome::Ending;

/// A worker that died, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerDeath {
    pub index: usize,
    pub ending: Ending,
}

/// The deaths that are still to be acted on, and what has been done about earlier ones.
#[derive(Default)]
pub struct WorkerRestarts {
    waiting: VecDeque<(Instant, WorkerDeath)>,
    /// How often each process alone was started again.
    again: Vec<u32>,
    /// How many workers are not started again.
    lost: usize,
}

impl WorkerRestarts {
    /// Acts on the death later: a worker may have failed because the chief has just ended.
    pub fn push(&mut self, death: WorkerDeath, wait: Duration) {
        self.waiting.push_back((Instant::now() + wait, death));
    }

    /// How often the process with this number alone was started again.
    pub fn count(&self, index: usize) -> u32 {
        self.again.get(index).copied().unwrap_or(0)
    }

    /// When the first death is to be acted on.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.iter().map(|(due, _)| *due).min()
    }

    /// The first death whose time has come.
    pub fn pop(&mut self) -> Option<WorkerDeath> {
        let now = Instant::now();
        let at = self.waiting.iter().position(|(due, _)| *due <= now)?;
        self.waiting.remove(at).map(|(_, death)| death)
    }

    /// The job ends: nobody is started any more.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Counts one more start of the process with this number; nothing if there were `most` already.
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
