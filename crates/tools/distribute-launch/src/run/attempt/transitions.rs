//! Transitions between the phases of an attempt.

use rustix::process::Signal;

use crate::error::LaunchError;
use crate::job::task::Role;
use crate::posts::PostBody;
use crate::run::attempt::Attempt;
use crate::run::attempt::phase::Phase;
use crate::run::session::Session;
use crate::signals;

impl Attempt<'_> {
    pub(super) fn enter(&mut self, phase: Phase) {
        self.phase.enter(phase);
        self.restarts.clear();
    }

    /// A process failed: waits a moment for other failures.
    pub(super) fn settle(&mut self) {
        if self.phase.is_under_way() || self.phase.current() == Phase::Finishing {
            self.enter(Phase::Settling);
        }
    }

    /// The workers or the chief are done: parameter servers are stopped, and the evaluator may
    /// evaluate the last checkpoint unless more checkpoints follow.
    pub(super) fn finish(&mut self) {
        let is_preempted = self.phase.current() == Phase::Preempting;
        if is_preempted || self.members.have_ended(Role::Evaluator) {
            return self.stop(Signal::TERM);
        }
        self.enter(Phase::Finishing);
        let grace = self.phase.grace();
        self.members
            .ask(Signal::TERM, grace, |task| task.role != Role::Evaluator);
    }

    /// The first signal to the launcher is passed on to all processes once, the second one kills
    /// them. A signal to the launcher of another host does not count: a scheduler signals all of
    /// them.
    pub(super) fn signalled(&mut self, signal: i32, session: &mut Session<'_>) {
        if session.begin_leaving(signal) {
            return session.post(PostBody::Leave);
        }
        session.post(PostBody::Stop(signal));
        let was_told = session.interrupted.is_some();
        session.note_signal(signal);
        if session.signals > 1 && signals::insists(signal) {
            self.kill();
        } else {
            if !was_told && !signals::insists(signal) {
                let name = signals::name(signal);
                self.log(&format!(
                    "the launcher got {name}: the processes are told to save and stop"
                ));
            }
            self.stop_by(signal);
        }
    }

    pub(super) fn stop_by(&mut self, signal: i32) {
        if !self.phase.is_ending() {
            let is_interrupt = signal == Signal::INT.as_raw();
            self.stop(if is_interrupt {
                Signal::INT
            } else {
                Signal::TERM
            });
        }
    }

    pub(super) fn phase_is_over(&mut self) {
        match self.phase.current() {
            Phase::Running | Phase::Preempting | Phase::Finishing => self.stop(Signal::TERM),
            Phase::Settling => {
                if let Some((task, ending)) = self.members.root_cause() {
                    self.log(&format!("{task}: {ending}; stopping the others"));
                }
                self.stop(Signal::TERM);
            }
            Phase::Stopping => self.kill(),
            Phase::Killing => {
                for (task, pid) in self.members.give_up() {
                    self.log(&format!(
                        "warning: {task} (pid {pid}) does not end, not even by SIGKILL: it is \
                         stuck in the system, on a file system that hangs or in a driver; the \
                         launcher goes on without waiting for it"
                    ));
                }
            }
        }
    }

    /// The launcher cannot go on: the job ends with this error.
    pub(super) fn abort_job(&mut self, error: LaunchError) {
        self.broken.get_or_insert(error);
        if !self.phase.is_ending() {
            self.stop(Signal::TERM);
        }
    }

    pub(super) fn log(&mut self, text: &str) {
        let logged = self.screen.log(text);
        logged.unwrap_or_else(|error| self.abort_job(error));
    }

    pub(super) fn stop(&mut self, signal: Signal) {
        self.enter(Phase::Stopping);
        self.members.ask(signal, self.phase.grace(), |_| true);
    }

    pub(super) fn kill(&mut self) {
        self.enter(Phase::Killing);
        self.members.kill();
    }
}
