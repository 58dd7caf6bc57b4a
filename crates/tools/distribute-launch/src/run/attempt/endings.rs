//! Reactions of an attempt to the end of a process.

use crate::job::task::{Role, Task};
use crate::posts::PostBody;
use crate::report::outcome::Ending;
use crate::run::attempt::Attempt;
use crate::run::attempt::phase::{Phase, SETTLE};
use crate::run::attempt::worker_restarts::WorkerDeath;
use crate::run::pause::after;
use crate::run::session::Session;
use crate::run::start::Starter;

impl Attempt<'_> {
    /// A process has ended; its descendants may still be shutting down.
    pub(super) fn ended(&mut self, index: usize, first: Ending, session: &Session<'_>) {
        let process = self.members.get_mut(index);
        let ending = process.filter(|process| process.ending.is_none());
        if let Some(ending) = ending.and_then(|process| process.ended(first)) {
            self.have_ended(index, ending, session);
        }
    }

    /// Sends due requests to end.
    pub(super) fn go_on_asking(&mut self, session: &Session<'_>) {
        for (index, ending) in self.members.go_on_asking() {
            self.have_ended(index, ending, session);
        }
    }

    /// A process and its descendants have ended.
    fn have_ended(&mut self, index: usize, ending: Ending, session: &Session<'_>) {
        let Some(process) = self.members.get_mut(index) else {
            return;
        };
        process.ending = Some(ending);
        let (task, is_asked) = (process.task, process.asked.is_some());
        let (leading, is_running) = (
            self.members.leading(),
            self.phase.current() == Phase::Running,
        );
        if leading == Role::Chief && task.role == Role::Worker {
            if is_running && !is_asked && ending != Ending::Exit(0) {
                let again = self.restarts.count(index);
                // Avoids a restart that cannot help, and tells the chief at once.
                let is_last = ending.is_final() || again >= session.job.restarts_max;
                let pause = if is_last {
                    SETTLE
                } else {
                    after(again + 1, session.job.restart_pause).max(SETTLE)
                };
                self.restarts.push(WorkerDeath { index, ending }, pause);
            }
            return;
        }
        if !is_asked && ending.is_failure() {
            self.members.add_failure(index, ending);
            session.post(PostBody::Failed(task, ending));
            self.settle();
        } else if ending.is_preempted() && is_running {
            session.post(PostBody::Preempted);
            self.enter(Phase::Preempting);
        }
        let is_last = task.role == leading && self.members.have_ended(leading);
        if is_last && self.phase.is_under_way() {
            match &session.group {
                Some(group) => group.post(PostBody::WorkersDone),
                None => self.finish(),
            }
        }
    }

    /// Starts a dead worker again, if its restarts are not used up.
    pub(super) fn restart_worker(
        &mut self,
        death: WorkerDeath,
        session: &mut Session<'_>,
        starter: &Starter<'_, '_, '_>,
    ) {
        let WorkerDeath { index, ending } = death;
        let Some(process) = self.members.get_mut(index) else {
            return;
        };
        let task = process.task;
        let most = if ending.is_final() {
            0
        } else {
            session.job.restarts_max
        };
        let Some(again) = self.restarts.count_restart(index, most) else {
            self.log(&format!("{task}: {ending}; the job goes on without it"));
            return self.give_up_worker(task, death, session, starter.workers());
        };
        // Descendants of the dead worker may still hold its port.
        process.kill();
        self.log(&format!(
            "{task}: {ending}; starting it again alone, restart {again} of {most}"
        ));
        match starter.start(session.guard, index, again) {
            Ok(started) => {
                let old = self.members.replace(index, started);
                session.guard.reap(old);
            }
            Err(error) => self.abort_job(error),
        }
    }

    /// A worker is gone for good. Fails the job when none is left.
    fn give_up_worker(
        &mut self,
        task: Task,
        WorkerDeath { index, ending }: WorkerDeath,
        session: &Session<'_>,
        workers: usize,
    ) {
        match &session.group {
            Some(group) => group.post(PostBody::WorkerGone(task, ending)),
            None if self.restarts.give_up() == workers => {
                self.members.add_failure(index, ending);
                self.settle();
            }
            None => {}
        }
    }
}
