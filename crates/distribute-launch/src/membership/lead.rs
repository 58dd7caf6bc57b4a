//! The members of a job by the clock of this process.

use std::time::Instant;

use crate::membership::{AttemptEnd, Decision, Membership, Rules};

/// The state machine, and when the job began.
pub struct Lead {
    machine: Membership,
    begun: Instant,
}

impl Lead {
    /// The job begins now.
    pub fn new(rules: Rules) -> Lead {
        Lead {
            machine: Membership::new(rules),
            begun: Instant::now(),
        }
    }

    pub fn came(&mut self, host: usize) {
        self.machine.came(host);
    }

    pub fn lost(&mut self, host: usize) {
        self.machine.lost(host, self.begun.elapsed());
    }

    pub fn leaves(&mut self, host: usize) {
        self.machine.leaves(host, self.begun.elapsed());
    }

    pub fn wants_save(&mut self) -> bool {
        self.machine.wants_save()
    }

    /// The hosts that are to be told that the job goes on without them.
    pub fn take_refused(&mut self) -> Vec<usize> {
        self.machine.take_refused()
    }

    pub fn ended(&mut self, end: AttemptEnd) {
        self.machine.ended(end, self.begun.elapsed());
    }

    /// What happens next, and the moment until which nothing does.
    pub fn decide(&mut self) -> (Decision, Option<Instant>) {
        let decision = self.machine.decide(self.begun.elapsed());
        let until = match &decision {
            Decision::Wait(until) => until.map(|until| self.begun + until),
            Decision::Start(_) | Decision::End(_) => None,
        };
        (decision, until)
    }
}
