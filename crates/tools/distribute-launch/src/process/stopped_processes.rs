//! Stops processes for a moment, to see whether another process passes a signal on to them.
//!
//! The system does not record which signals a process has received. But a signal to a stopped
//! process stays pending, where the system shows it, until the process goes on.

use std::collections::BTreeMap;

use rustix::process::Signal;

use crate::process::leftovers;
use crate::process::table::{self, Identity};

/// The stopped processes, and the signal to watch for.
pub struct StoppedProcesses {
    signal: Signal,
    /// The processes, and whether all threads of each were seen to be stopped.
    stopped: BTreeMap<Identity, bool>,
}

impl StoppedProcesses {
    pub fn new(signal: Signal) -> StoppedProcesses {
        StoppedProcesses {
            signal,
            stopped: BTreeMap::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.stopped.is_empty()
    }

    /// Stops a process, unless it is stopped already.
    pub fn stop(&mut self, identity: Identity) {
        if !self.stopped.contains_key(&identity) && !table::is_stopped(identity.number) {
            self.stopped.insert(identity, false);
            leftovers::send(identity, Signal::STOP);
        }
    }

    /// Whether some processes still run that were told to stop.
    pub fn are_stopping(&mut self) -> bool {
        for (identity, is_still) in &mut self.stopped {
            *is_still = *is_still || table::is_stopped(identity.number);
        }
        self.stopped.values().any(|is_still| !is_still)
    }

    /// Whether this process was stopped here and stands still.
    pub fn is_still(&self, identity: Identity) -> bool {
        self.stopped.get(&identity).copied().unwrap_or(false)
    }

    /// Releases and returns the processes that another process has sent the signal to, or has
    /// made go on.
    pub fn take_signalled(&mut self) -> Vec<Identity> {
        let signal = self.signal.as_raw();
        let is_reached = |(one, is_still): (&Identity, &bool)| {
            let is_reached = table::is_pending(one.number, signal)
                || *is_still && !table::is_stopped(one.number);
            is_reached.then_some(*one)
        };
        let reached: Vec<Identity> = self.stopped.iter().filter_map(is_reached).collect();
        reached.iter().for_each(|one| self.release(*one));
        reached
    }

    /// Lets a process go on.
    pub fn release(&mut self, identity: Identity) {
        if self.stopped.remove(&identity).is_some() {
            leftovers::send(identity, Signal::CONT);
        }
    }

    /// Lets all processes go on.
    pub fn release_all(&mut self) {
        for (identity, _) in std::mem::take(&mut self.stopped) {
            leftovers::send(identity, Signal::CONT);
        }
    }
}
