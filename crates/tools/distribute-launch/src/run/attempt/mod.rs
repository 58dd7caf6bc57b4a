//! One attempt: all processes are started, watched until none is left, and stopped if need be.
//!
//! The calling thread decides. Each process has one thread that waits for its end and one that
//! reads its output; both end with it and are joined here. The calling thread also starts the
//! processes, because on Linux they die with the thread that started them.

mod endings;
mod members;
mod phase;
mod posts;
mod slow_workers;
mod transitions;
mod worker_restarts;

use std::collections::BTreeSet;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use crate::detached;
use crate::error::{LaunchError, Result};
use crate::events::Event;
use crate::hosts::wait::WaitOutcome;
use crate::job::cluster::Token;
use crate::membership::Plan;
use crate::posts::PostBody;
use crate::process::leftovers::{self, Marks};
use crate::process::orphans;
use crate::report::attempt::AttemptResult;
use crate::report::console::Screen;
use crate::run::session::Session;
use crate::run::start::Starter;
use crate::thread_scope::ThreadScope;
use members::Members;
use phase::AttemptPhase;
use slow_workers::SlowWorkers;
use worker_restarts::WorkerRestarts;

/// How often to check that the guard still runs.
const GUARD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

struct Attempt<'a> {
    members: Members,
    phase: AttemptPhase,
    restarts: WorkerRestarts,
    slow: SlowWorkers,
    broken: Option<LaunchError>,
    screen: &'a Screen,
}

/// Runs the job's processes once; `places` are the places of this host's workers.
pub fn run(
    session: &mut Session<'_>,
    plan: &Plan,
    places: &[usize],
) -> Result<WaitOutcome<AttemptResult>> {
    session.memory.keep(places);
    let tasks = session.job.tasks(places.len());
    // Reserved until the attempt is over: a worker that is restarted alone keeps its port.
    let ports = session.ports(&tasks)?;
    let place = match session.attempt_cluster(plan, tasks, &ports)? {
        WaitOutcome::Done(place) => place,
        WaitOutcome::Stopped(signal) => return Ok(WaitOutcome::Stopped(signal)),
        WaitOutcome::HostLost => return Ok(WaitOutcome::HostLost),
    };
    let mark = Token::random()?;
    session.replace_ended_guard()?;
    session.guard.begin_attempt(&mark);
    let (stop, stopper) = pipe_with(PipeFlags::CLOEXEC).map_err(LaunchError::system("no pipe"))?;
    ThreadScope::run(|threads| {
        // Dropped at the end, on every path: then all processes are dead, the pipe is closed, and
        // no thread waits any more.
        let stopper = stopper;
        let mut attempt = Attempt {
            members: Members::new(place.cluster.leading()),
            phase: AttemptPhase::new(session.job.grace),
            restarts: WorkerRestarts::default(),
            slow: SlowWorkers::new(session.job.drop_after),
            broken: None,
            screen: session.screen,
        };
        let starter = Starter::new(threads, session, &place, &mark, &stop, plan.start, places);
        let started = starter.and_then(|starter| {
            attempt.start(session, &starter)?;
            Ok(starter)
        });
        match &started {
            Ok(starter) => attempt.watch(session, starter),
            Err(_) => attempt.kill(),
        }
        let started = started.map(drop);
        attempt.end_leftovers(&mark);
        drop(stopper);
        session.guard.attempt_ended();
        started?;
        attempt.end(session).map(WaitOutcome::Done)
    })
}

impl Attempt<'_> {
    fn start(&mut self, session: &mut Session<'_>, starter: &Starter<'_, '_, '_>) -> Result<()> {
        for index in 0..starter.tasks().len() {
            self.members.push(starter.start(session.guard, index, 0)?);
        }
        if !self.members.has(self.members.leading()) {
            // The chief is on another host.
            session.post(PostBody::WorkersDone);
        }
        let group = session.group.as_ref();
        if group.is_some_and(|group| group.posts.is_asked_to_save()) {
            // This post came while the hosts got ready.
            self.ask_to_save();
        }
        Ok(())
    }

    /// Returns when all processes have ended.
    fn watch(&mut self, session: &mut Session<'_>, starter: &Starter<'_, '_, '_>) {
        // On a host without the chief, all processes may have died while restarts are due.
        while self.members.are_running() || self.restarts.due().is_some() {
            let has_guard = session.guard.is_running();
            let guard_check = has_guard.then(|| Instant::now() + GUARD_CHECK_INTERVAL);
            let asking = self
                .members
                .asking_interval()
                .map(|interval| Instant::now() + interval);
            let until = self.phase.deadline().into_iter().chain(self.restarts.due());
            let until = until.chain(self.slow.due());
            let event = match until.chain(guard_check).chain(asking).min() {
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    session.received.recv_timeout(left)
                }
                None => session.received.recv().map_err(RecvTimeoutError::from),
            };
            match event {
                Ok(Event::Ended { index, ending }) => self.ended(index, ending, session),
                Ok(Event::Signal(signal)) => self.signalled(signal, session),
                Ok(Event::Post(post)) => self.handle_post(*post, session, starter.workers()),
                Ok(Event::Broken(error)) => self.abort_job(error),
                Err(_) if self.phase.is_over() => self.phase_is_over(),
                Err(_) => {}
            }
            self.go_on_asking(session);
            self.look_for_slow_workers(session, starter);
            self.look_after_orphans(session);
            if let Err(error) = session.replace_ended_guard() {
                self.abort_job(error);
            }
            while let Some(death) = self.restarts.pop() {
                self.restart_worker(death, session, starter);
            }
        }
        orphans::adopt(false);
    }

    /// Reaps orphans of the processes, unless their endings are still needed.
    fn look_after_orphans(&self, session: &Session<'_>) {
        if self.members.asking_interval().is_none() {
            orphans::adopt(false);
            let own: Vec<Pid> = self
                .members
                .groups()
                .into_iter()
                .chain(session.guard.pid())
                .collect();
            orphans::reap(&own);
        }
    }

    /// Ends what the processes have left behind, on a thread of its own: the process table may not
    /// answer. Names what does not end.
    fn end_leftovers(&mut self, mark: &Token) {
        let marks = Marks {
            mark: mark.clone(),
            groups: self.members.groups(),
        };
        let (asked, given_up) = (self.members.asked(), self.members.given_up());
        let grace = self.phase.grace_left();
        let known = given_up.clone();
        let limit = grace + leftovers::LIMIT;
        let ended = detached::run("leftovers", limit, move || {
            leftovers::end(&marks, &asked, given_up, grace)
        });
        let stuck = ended.map(|stuck| stuck.difference(&known).copied().collect::<Vec<Pid>>());
        match stuck {
            Ok(stuck) if stuck.is_empty() => {}
            Ok(stuck) => {
                let numbers = stuck.iter().map(|pid| pid.as_raw_nonzero().get());
                let numbers: BTreeSet<i32> = numbers.collect();
                let numbers: Vec<String> = numbers.iter().map(i32::to_string).collect();
                self.log(&format!(
                    "warning: processes that the job has left (pid {}) do not end, not even by \
                     SIGKILL; the launcher goes on without waiting for them",
                    numbers.join(", ")
                ));
            }
            Err(error) => self.log(&format!(
                "warning: it is unknown whether processes of the job are left, as the system does \
                 not say which there are ({error}, {} s); the launcher goes on",
                limit.as_secs()
            )),
        }
    }

    /// Makes the attempt's result, or its error.
    fn end(&mut self, session: &mut Session<'_>) -> Result<AttemptResult> {
        let reports = self.members.reports(session.logs.files());
        // All have ended: the loss of the last worker has been posted before.
        let workers = usize::MAX;
        while let Ok(event) = session.received.try_recv() {
            match event {
                Event::Broken(error) => self.abort_job(error),
                Event::Signal(signal) if session.begin_leaving(signal) => {}
                Event::Signal(signal) => {
                    session.post(PostBody::Stop(signal));
                    session.note_signal(signal);
                }
                Event::Post(post) => self.handle_post(*post, session, workers),
                Event::Ended { .. } => {}
            }
        }
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let verdict = self.members.verdict(session.interrupted.is_some());
        Ok(AttemptResult::new(verdict, reports))
    }
}
