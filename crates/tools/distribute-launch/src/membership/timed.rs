//! The members of a job, with this process' clock.

use std::time::Instant;

use crate::membership::{AttemptEnd, Decision, Membership, Rules};

/// The state machine, and the time at which the job began.
pub struct TimedMembership {
    machine: Membership,
    begun: Instant,
}

impl TimedMembership {
    /// The job begins now.
    pub fn new(rules: Rules) -> TimedMembership {
        TimedMembership {
            machine: Membership::new(rules),
            begun: Instant::now(),
        }
    }

    pub fn note_arrival(&mut self, host: usize) {
        self.machine.note_arrival(host);
    }

    pub fn note_loss(&mut self, host: usize) {
        self.machine.note_loss(host, self.begun.elapsed());
    }

    pub fn note_leaving(&mut self, host: usize) {
        self.machine.note_leaving(host, self.begun.elapsed());
    }

    /// Returns whether the job goes on without a slow host.
    pub fn note_slow(&mut self, host: usize, place: Option<usize>) -> bool {
        self.machine.note_slow(host, place)
    }

    pub fn take_save_request(&mut self) -> bool {
        self.machine.take_save_request()
    }

    /// Takes the hosts that are to be told that the job goes on without them.
    pub fn take_refused(&mut self) -> Vec<usize> {
        self.machine.take_refused()
    }

    pub fn ended(&mut self, end: AttemptEnd) {
        self.machine.ended(end, self.begun.elapsed());
    }

    /// The next decision, and the time of the next one if it is to wait.
    pub fn decide(&mut self) -> (Decision, Option<Instant>) {
        let decision = self.machine.decide(self.begun.elapsed());
        let until = match &decision {
            Decision::Wait(until) => until.map(|until| self.begun + until),
            Decision::Start(_) | Decision::End(_) => None,
        };
        (decision, until)
    }
}
