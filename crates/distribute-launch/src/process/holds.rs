//! Processes that are stopped for a moment, to see whether another one passes a signal on to them.
//!
//! Nothing tells afterwards what signals a process has got. While it is stopped, a signal that it
//! is sent stays with it, where the system shows it; it takes the signal when it goes on.

use std::collections::BTreeMap;

use rustix::process::Signal;

use crate::process::leftovers;
use crate::process::table::{self, Identity};

/// Who is stopped, and waits for a signal of one kind.
pub struct Holds {
    signal: Signal,
    /// Whether all their threads have been seen to stand still.
    held: BTreeMap<Identity, bool>,
}

impl Holds {
    pub fn new(signal: Signal) -> Holds {
        Holds {
            signal,
            held: BTreeMap::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Stops a process. One that somebody else has stopped is left alone.
    pub fn stop(&mut self, identity: Identity) {
        if !self.held.contains_key(&identity) && !table::is_stopped(identity.number) {
            self.held.insert(identity, false);
            leftovers::send(identity, Signal::STOP);
        }
    }

    /// Whether some run that were told to stop.
    pub fn are_stopping(&mut self) -> bool {
        for (identity, is_still) in &mut self.held {
            *is_still = *is_still || table::is_stopped(identity.number);
        }
        self.held.values().any(|is_still| !is_still)
    }

    /// Whether this one is held and stands still.
    pub fn is_still(&self, identity: Identity) -> bool {
        self.held.get(&identity).copied().unwrap_or(false)
    }

    /// Those that somebody has sent the signal, or has made go on, as one does that sends signals
    /// to stopped processes. They go on.
    pub fn take_reached(&mut self) -> Vec<Identity> {
        let signal = self.signal.as_raw();
        let is_reached = |(one, is_still): (&Identity, &bool)| {
            let is_reached = table::is_pending(one.number, signal)
                || *is_still && !table::is_stopped(one.number);
            is_reached.then_some(*one)
        };
        let reached: Vec<Identity> = self.held.iter().filter_map(is_reached).collect();
        reached.iter().for_each(|one| self.release(*one));
        reached
    }

    /// Has one go on.
    pub fn release(&mut self, identity: Identity) {
        if self.held.remove(&identity).is_some() {
            leftovers::send(identity, Signal::CONT);
        }
    }

    /// Has all go on.
    pub fn release_all(&mut self) {
        for (identity, _) in std::mem::take(&mut self.held) {
            leftovers::send(identity, Signal::CONT);
        }
    }
}
