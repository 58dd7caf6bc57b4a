//! One attempt: all processes are started, watched until none is left, and stopped if need be.
//!
//! The calling thread decides. Each process has one thread that waits for its end and one that
//! reads its output; they end with it, and all are joined here. The calling thread also starts the
//! processes, because on Linux they die with the thread that started them.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;

use crate::cluster::Token;
use crate::console::Screen;
use crate::events::Event;
use crate::launcher_group::WaitOutcome;
use crate::leftovers::{self, Marks};
use crate::outcome::WRONG_USAGE;
use crate::process::Process;
use crate::report::AttemptResult;
use crate::session::Session;
use crate::start::{LastLines, Starter};
use crate::thread_scope::ThreadScope;
use crate::verdict::{Verdict, root_cause};
use crate::wire::{Post, PostBody};
use crate::worker_restarts::{WorkerDeath, WorkerRestarts};
use crate::{Ending, LaunchError, Result, Role, Task};

/// After a failure the others are left alone this long, because the system may tell of the death
/// that made them fail a little later than of their own.
const SETTLE: Duration = Duration::from_millis(100);

/// How often it is looked whether the guard is there.
const GUARD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What the processes of an attempt are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The workers, or the chief with them, are at work.
    Running,
    /// A process has failed; which others have?
    Settling,
    /// A process has exited with 42; the others are expected to.
    Preempting,
    /// The workers, or the chief, are done; the evaluator may finish.
    Finishing,
    /// All have got SIGTERM.
    Stopping,
    /// All have got SIGKILL.
    Killing,
}

struct Attempt<'a, 's> {
    processes: Vec<Process>,
    outputs: Vec<LastLines>,
    /// The role whose processes end the job when they end.
    leading: Role,
    restarts: WorkerRestarts,
    phase: Phase,
    /// When the phase is over, if it has an end.
    until: Option<Instant>,
    /// The processes that failed without having been asked to stop, in the order of observation.
    failures: Vec<(usize, Ending)>,
    broken: Option<LaunchError>,
    grace: Duration,
    restart: u32,
    screen: &'a Screen<'s>,
}

/// Runs the job's processes once.
pub fn run(session: &mut Session<'_, '_>, restart: u32) -> Result<WaitOutcome<AttemptResult>> {
    // Until the attempt is over: a worker that starts again alone keeps its port.
    let ports = session.ports()?;
    let place = match session.attempt_cluster(restart, &ports)? {
        WaitOutcome::Done(place) => place,
        WaitOutcome::Stopped(signal) => return Ok(WaitOutcome::Stopped(signal)),
    };
    let mark = Token::random()?;
    session.replace_ended_guard()?;
    session.guard.begin_attempt(&mark);
    let (stop, stopper) = pipe_with(PipeFlags::CLOEXEC).map_err(LaunchError::system("no pipe"))?;
    ThreadScope::run(|threads| {
        // Dropped at the end of the work, whatever the way to it: then all processes are dead, the
        // pipe is closed, and no thread has anything left to wait for.
        let stopper = stopper;
        let mut attempt = Attempt {
            processes: Vec::new(),
            outputs: Vec::new(),
            leading: place.cluster.leading(),
            restarts: WorkerRestarts::default(),
            phase: Phase::Running,
            until: None,
            failures: Vec::new(),
            broken: None,
            grace: session.job.grace,
            restart,
            screen: session.screen,
        };
        let starter = Starter::new(threads, session, (&place, &mark), &stop, restart);
        let started = starter.and_then(|starter| {
            attempt.start(session, &starter)?;
            Ok(starter)
        });
        match &started {
            Ok(starter) => attempt.watch(session, starter),
            Err(_) => attempt.kill(),
        }
        let started = started.map(drop);
        let groups = attempt.processes.iter().map(|process| process.pid);
        let groups = groups.collect();
        let marks = Marks {
            mark: mark.clone(),
            groups,
        };
        leftovers::end(&marks, attempt.grace_left());
        drop(stopper);
        session.guard.attempt_ended();
        started?;
        let last_lines = std::mem::take(&mut attempt.outputs);
        let last_lines = last_lines.into_iter();
        let last_lines = last_lines.map(|output| output.recv().unwrap_or_default());
        let last_lines: Vec<_> = last_lines.collect();
        attempt.end(session, last_lines).map(WaitOutcome::Done)
    })
}

impl Attempt<'_, '_> {
    fn start<'a: 'env, 's: 'env, 'env>(
        &mut self,
        session: &mut Session<'a, 's>,
        starter: &Starter<'_, '_, 'env>,
    ) -> Result<()> {
        for index in 0..starter.tasks().len() {
            let (process, output) = starter.start(session, index, 0)?;
            session.guard.group_started(process.pid);
            self.processes.push(process);
            self.outputs.push(output);
        }
        if self.leaders().next().is_none() {
            // The chief is on another host.
            session.post(self.restart, PostBody::WorkersDone);
        }
        Ok(())
    }

    /// Returns when all processes have ended.
    fn watch<'a: 'env, 's: 'env, 'env>(
        &mut self,
        session: &mut Session<'a, 's>,
        starter: &Starter<'_, '_, 'env>,
    ) {
        let is_running = |process: &Process| process.ending.is_none();
        // On a host without the chief, those that died may be all that it had.
        while self.processes.iter().any(is_running) || self.restarts.due().is_some() {
            let has_guard = session.guard.is_running();
            let guard_check = has_guard.then(|| Instant::now() + GUARD_CHECK_INTERVAL);
            let until = self.until.into_iter().chain(self.restarts.due());
            let until = until.chain(guard_check).min();
            let event = match until {
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    session.received.recv_timeout(left)
                }
                None => session.received.recv().map_err(RecvTimeoutError::from),
            };
            match event {
                Ok(Event::Ended { index, ending }) => self.ended(index, ending, session),
                Ok(Event::Signal(signal)) => {
                    session.post(self.restart, PostBody::Stop(signal));
                    self.signalled(signal, session);
                }
                Ok(Event::Post(post)) => self.handle_post(*post, session, starter.workers()),
                Ok(Event::Broken(error)) => self.abort_job(error),
                Err(_) => self.time_is_over(),
            }
            if let Err(error) = session.replace_ended_guard() {
                self.abort_job(error);
            }
            while let Some(death) = self.restarts.pop() {
                self.restart_worker(death, session, starter);
            }
        }
    }

    fn time_is_over(&mut self) {
        if self.until.is_some_and(|until| until <= Instant::now()) {
            self.phase_is_over();
        }
    }

    fn ended(&mut self, index: usize, ending: Ending, session: &Session<'_, '_>) {
        let Some(process) = self.processes.get_mut(index) else {
            return;
        };
        process.ending = Some(ending);
        let (task, is_asked) = (process.task, process.asked.is_some());
        if self.leading == Role::Chief && task.role == Role::Worker {
            if self.phase == Phase::Running && !is_asked && ending != Ending::Exit(0) {
                self.restarts.push(WorkerDeath { index, ending }, SETTLE);
            }
            return;
        }
        if !is_asked && ending.is_failure() {
            self.failures.push((index, ending));
            session.post(self.restart, PostBody::Failed(task, ending));
            self.settle();
        } else if ending.is_preempted() && self.phase == Phase::Running {
            session.post(self.restart, PostBody::Preempted);
            self.enter_phase(Phase::Preempting, self.grace);
        }
        let is_under_way = matches!(self.phase, Phase::Running | Phase::Preempting);
        if task.role == self.leading && is_under_way && self.leaders_are_done() {
            match &session.group {
                Some(group) => group.post(self.restart, PostBody::WorkersDone),
                None => self.finish(),
            }
        }
    }

    /// Starts a worker again that died, if it may be.
    fn restart_worker<'a: 'env, 's: 'env, 'env>(
        &mut self,
        death: WorkerDeath,
        session: &mut Session<'a, 's>,
        starter: &Starter<'_, '_, 'env>,
    ) {
        let WorkerDeath { index, ending } = death;
        let most = match ending == WRONG_USAGE {
            true => 0,
            false => session.job.restarts_max,
        };
        let task = self.processes[index].task;
        let Some(again) = self.restarts.count_restart(index, most) else {
            self.log(&format!("{task}: {ending}; the job goes on without it"));
            return self.give_up_worker(death, session, starter.workers());
        };
        self.log(&format!(
            "{task}: {ending}; starting it again alone, restart {again} of {most}"
        ));
        // What is left of its group may hold the port.
        self.processes[index].send(Signal::KILL);
        match starter.start(session, index, again) {
            Ok((process, output)) => {
                session.guard.group_started(process.pid);
                self.outputs[index] = output;
                let old = std::mem::replace(&mut self.processes[index], process);
                session.guard.reap(old);
            }
            Err(error) => self.abort_job(error),
        }
    }

    /// A worker is gone for good. A job without any has nobody to work for the chief.
    fn give_up_worker(&mut self, death: WorkerDeath, session: &Session<'_, '_>, workers: usize) {
        let WorkerDeath { index, ending } = death;
        match &session.group {
            Some(group) => {
                let task = self.processes[index].task;
                group.post(self.restart, PostBody::WorkerGone(task, ending));
            }
            None if self.restarts.give_up() == workers => {
                self.failures.push((index, ending));
                self.settle();
            }
            None => {}
        }
    }

    /// Acts on what a launcher has told all of them, this one included.
    fn handle_post(&mut self, post: Post, session: &mut Session<'_, '_>, workers: usize) {
        let Some(group) = &mut session.group else {
            return;
        };
        let item = post.item.clone();
        if let Err(error) = group.record(post) {
            return self.abort_job(error);
        }
        match item {
            PostBody::Failed(..) => self.settle(),
            PostBody::WorkerGone(task, ending)
                if self
                    .processes
                    .iter()
                    .any(|one| one.task.role == Role::Chief)
                    && group.is_last_worker(self.restart, task, workers) =>
            {
                // The host of that worker may not be watching any more.
                let own = self.processes.iter().position(|one| one.task == task);
                self.failures.extend(own.map(|index| (index, ending)));
                group.post(self.restart, PostBody::Failed(task, ending));
            }
            PostBody::Preempted if self.phase == Phase::Running => {
                self.enter_phase(Phase::Preempting, self.grace);
            }
            PostBody::WorkersDone
                if matches!(self.phase, Phase::Running | Phase::Preempting)
                    && group.workers_are_done(self.restart) =>
            {
                self.finish();
            }
            PostBody::Stop(signal) => {
                session.interrupted.get_or_insert(signal);
                self.stop_by(signal);
            }
            _ => {}
        }
    }

    /// Something failed: waits for what else has.
    fn settle(&mut self) {
        if matches!(
            self.phase,
            Phase::Running | Phase::Preempting | Phase::Finishing
        ) {
            self.enter_phase(Phase::Settling, SETTLE);
        }
    }

    fn leaders(&self) -> impl Iterator<Item = &Process> {
        let is_leading = |process: &&Process| process.task.role == self.leading;
        self.processes.iter().filter(is_leading)
    }

    fn leaders_are_done(&self) -> bool {
        self.leaders().all(|process| process.ending.is_some())
    }

    /// The workers or the chief are done: the others have nobody to work for any more, and the
    /// evaluator may evaluate the last checkpoint unless there will be more of them.
    fn finish(&mut self) {
        let is_preempted = self.phase == Phase::Preempting;
        let has_ended = |process: &Process| process.ending.is_some();
        let others = self.processes.iter();
        let mut evaluators = others.filter(|process| process.task.role == Role::Evaluator);
        if is_preempted || evaluators.all(has_ended) {
            return self.stop(Signal::TERM);
        }
        self.enter_phase(Phase::Finishing, self.grace);
        self.signal_processes(Signal::TERM, |task| task.role != Role::Evaluator);
    }

    /// The first signal to the launcher reaches everybody once, the second one kills. A signal to
    /// the launcher of another host does not count: a scheduler signals all of them.
    fn signalled(&mut self, signal: i32, session: &mut Session<'_, '_>) {
        session.interrupted.get_or_insert(signal);
        session.signals += 1;
        if session.signals > 1 {
            self.kill();
        } else {
            self.stop_by(signal);
        }
    }

    fn stop_by(&mut self, signal: i32) {
        if !matches!(self.phase, Phase::Stopping | Phase::Killing) {
            let is_interrupt = signal == Signal::INT.as_raw();
            self.stop(match is_interrupt {
                true => Signal::INT,
                false => Signal::TERM,
            });
        }
    }

    fn phase_is_over(&mut self) {
        match self.phase {
            Phase::Running | Phase::Preempting | Phase::Finishing => self.stop(Signal::TERM),
            Phase::Settling => {
                if let Some(index) = root_cause(&self.failures) {
                    let Process { task, ending, .. } = &self.processes[index];
                    let ending = ending.unwrap_or(Ending::Unknown);
                    self.log(&format!("{task}: {ending}; stopping the others"));
                }
                self.stop(Signal::TERM);
            }
            Phase::Stopping | Phase::Killing => self.kill(),
        }
    }

    fn log(&mut self, text: &str) {
        let logged = self.screen.log(text);
        logged.unwrap_or_else(|error| self.abort_job(error));
    }

    /// The launcher cannot do its part any more: the job ends with this error.
    fn abort_job(&mut self, error: LaunchError) {
        self.broken.get_or_insert(error);
        if !matches!(self.phase, Phase::Stopping | Phase::Killing) {
            self.stop(Signal::TERM);
        }
    }

    /// Asks everybody to end, whom nobody has asked yet.
    fn stop(&mut self, signal: Signal) {
        self.enter_phase(Phase::Stopping, self.grace);
        self.signal_processes(signal, |_| true);
    }

    fn signal_processes(&mut self, signal: Signal, is_meant: impl Fn(Task) -> bool) {
        let processes = self.processes.iter_mut();
        for process in processes.filter(|process| is_meant(process.task)) {
            if process.ending.is_none() && process.asked.is_none() {
                process.send(signal);
            }
        }
    }

    fn kill(&mut self) {
        self.phase = Phase::Killing;
        self.restarts.clear();
        self.until = None;
        for process in &mut self.processes {
            if process.ending.is_none() {
                process.send(Signal::KILL);
            }
        }
    }

    fn enter_phase(&mut self, phase: Phase, duration: Duration) {
        self.phase = phase;
        self.restarts.clear();
        self.until = Some(Instant::now() + duration);
    }

    /// How long what the processes have left in the background may take to end.
    fn grace_left(&self) -> Duration {
        match (self.phase, self.until) {
            (Phase::Killing, _) => Duration::ZERO,
            (Phase::Stopping, Some(until)) => until.saturating_duration_since(Instant::now()),
            _ => self.grace,
        }
    }

    /// Makes the attempt's result, or its error.
    fn end(
        &mut self,
        session: &mut Session<'_, '_>,
        last_lines: Vec<Vec<String>>,
    ) -> Result<AttemptResult> {
        // All have ended: who could be the last worker has been told before.
        let workers = usize::MAX;
        while let Ok(event) = session.received.try_recv() {
            match event {
                Event::Broken(error) => self.abort_job(error),
                Event::Signal(signal) => {
                    session.post(self.restart, PostBody::Stop(signal));
                    session.interrupted.get_or_insert(signal);
                    session.signals += 1;
                }
                Event::Post(post) => self.handle_post(*post, session, workers),
                Event::Ended { .. } => {}
            }
        }
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let verdict = self.verdict(session.interrupted.is_some());
        Ok(AttemptResult::new(verdict, &self.processes, last_lines))
    }

    fn verdict(&self, is_interrupted: bool) -> Verdict {
        if let Some(index) = root_cause(&self.failures) {
            return Verdict::Failed(index);
        }
        let mut endings = self.leaders().filter_map(|leader| leader.ending);
        if endings.all(|ending| ending == Ending::Exit(0)) {
            return Verdict::Succeeded;
        }
        let mut endings = self.leaders().filter_map(|leader| leader.ending);
        if is_interrupted && !endings.all(|ending| !ending.is_failure()) {
            return Verdict::Stopped;
        }
        Verdict::Preempted
    }
}
