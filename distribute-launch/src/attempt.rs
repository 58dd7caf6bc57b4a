//! One attempt: all processes are started, watched until none is left, and stopped if need be.
//!
//! The calling thread decides. Each process has one thread that waits for its end and one that
//! reads its output; they end with it, and all are joined here. The calling thread also starts the
//! processes, because on Linux they die with the thread that started them.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;

use crate::cluster::{Cluster, Token};
use crate::collapse::{self, Line};
use crate::console::Screen;
use crate::crew::Crew;
use crate::events::{Event, Events};
use crate::group::{Group, Place, Waited};
use crate::guard::Guard;
use crate::leftovers::{self, Marks};
use crate::logs::LogDirectory;
use crate::output::{Output, View};
use crate::process::{
    self, CONFIG_VARIABLE, MARK_VARIABLE, Process, RESTART_VARIABLE, TOKEN_VARIABLE,
};
use crate::report::Ended;
use crate::verdict::{Verdict, root_cause};
use crate::wire::{Item, Post};
use crate::{Ending, Job, LaunchError, Result, Role, Task};

/// The process whose output passes through.
const FIRST: Task = Task {
    role: Role::Worker,
    index: 0,
};
/// After a failure the others are left alone this long, because the system may tell of the death
/// that made them fail a little later than of their own.
const SETTLE: Duration = Duration::from_millis(100);
/// How many lines wait for the thread that shows them, before the processes wait.
const LINES_MAX: usize = 256;

/// What the attempts of a job share.
pub struct Session<'a, 's> {
    pub job: &'a Job,
    /// What this host starts, counted from 0.
    pub tasks: Vec<Task>,
    pub screen: &'a Screen<'s>,
    pub logs: &'a LogDirectory,
    pub guard: Guard,
    /// The launchers of the other hosts, if there are any.
    pub group: Option<Group>,
    pub events: Events,
    pub received: Receiver<Event>,
    /// The signal that told this launcher, or that of another host, to stop.
    pub interrupted: Option<i32>,
    /// How many signals this launcher got itself.
    pub signals: usize,
}

/// What the processes of an attempt are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The workers are at work.
    Running,
    /// A process has failed; which others have?
    Settling,
    /// A process has exited with 42; the others are expected to.
    Preempting,
    /// The workers are done; the evaluator may finish.
    Finishing,
    /// All have got SIGTERM.
    Stopping,
    /// All have got SIGKILL.
    Killing,
}

struct Attempt<'a, 's> {
    processes: Vec<Process>,
    phase: Phase,
    /// When the phase is over, if it has an end.
    until: Option<Instant>,
    /// Who failed without having been asked to stop, in the order of observation.
    failures: Vec<(usize, Ending)>,
    broken: Option<LaunchError>,
    grace: Duration,
    restart: u32,
    screen: &'a Screen<'s>,
}

impl Session<'_, '_> {
    /// Finds ports for the processes of this host, and what the other hosts have.
    fn place(&mut self, restart: u32) -> Result<Waited<Place>> {
        let loopback = Ipv4Addr::LOCALHOST.into();
        let address = self.group.as_ref().map_or(loopback, Group::own_address);
        let cluster = Cluster::reserve(&self.tasks, address)?;
        if let Some(group) = &mut self.group {
            return group.meet(restart, cluster, &self.received);
        }
        Ok(Waited::Done(Place {
            cluster,
            tasks: self.tasks.clone(),
            token: Token::random()?,
        }))
    }

    fn post(&self, restart: u32, item: Item) {
        if let Some(group) = &self.group {
            group.post(restart, item);
        }
    }
}

/// Runs the job's processes once.
pub fn run(session: &mut Session<'_, '_>, restart: u32) -> Result<Waited<Ended>> {
    let place = match session.place(restart)? {
        Waited::Done(place) => place,
        Waited::Stopped(signal) => return Ok(Waited::Stopped(signal)),
    };
    let mark = Token::random()?;
    session.guard.attempt(&mark)?;
    let (stop, stopper) = pipe_with(PipeFlags::CLOEXEC).map_err(LaunchError::system("no pipe"))?;
    Crew::work(|crew| {
        // Dropped at the end of the work, whatever the way to it: then all processes are dead, the
        // pipe is closed, and no thread has anything left to wait for.
        let stopper = stopper;
        let mut attempt = Attempt {
            processes: Vec::new(),
            phase: Phase::Running,
            until: None,
            failures: Vec::new(),
            broken: None,
            grace: session.job.grace,
            restart,
            screen: session.screen,
        };
        let outputs = attempt.start(crew, session, &place, &mark, &stop);
        match &outputs {
            Ok(_) => attempt.watch(session),
            Err(_) => attempt.kill(),
        }
        let groups = attempt.processes.iter().map(|process| process.pid);
        let groups = groups.collect();
        leftovers::end(&Marks { mark, groups }, attempt.grace_left());
        drop(stopper);
        session.guard.over();
        let last_lines = outputs?
            .into_iter()
            .map(|output| output.recv().unwrap_or_default());
        let last_lines: Vec<_> = last_lines.collect();
        attempt.end(session, last_lines).map(Waited::Done)
    })
}

impl Attempt<'_, '_> {
    /// Starts all processes, and for each the two threads. Returns those that read the output.
    fn start<'scope, 'env, 'a: 'env, 's: 'env>(
        &mut self,
        crew: &Crew<'scope, 'env>,
        session: &mut Session<'a, 's>,
        place: &Place,
        mark: &Token,
        stop: &'env OwnedFd,
    ) -> Result<Vec<Receiver<Vec<String>>>> {
        let lines = show_lines(crew, session, &place.tasks)?;
        let restart = self.restart.to_string();
        let mut outputs = Vec::new();
        for (index, task) in place.tasks.iter().copied().enumerate() {
            let (path, log) = session.logs.file(task, self.restart)?;
            let config = place.cluster.tf_config(task)?;
            let variables = [
                (CONFIG_VARIABLE, config.as_str()),
                (RESTART_VARIABLE, restart.as_str()),
                (TOKEN_VARIABLE, place.token.secret()),
                (MARK_VARIABLE, mark.secret()),
            ];
            let (process, pipes) =
                Process::start(session.job, task, &variables, path, session.guard.pipe())?;
            let pid = process.pid;
            self.processes.push(process);
            let view = match &lines {
                _ if task == FIRST => View::Through(session.screen),
                Some(lines) => View::Lines(lines.clone()),
                None => View::Nobody,
            };
            let output = Output::new(task, pipes, log, view, session.events.clone())
                .map_err(LaunchError::system("cannot read a process's output"))?;
            let (last_lines, receiver) = mpsc::sync_channel(1);
            outputs.push(receiver);
            crew.spawn(&format!("read {task}"), move || {
                let _gone = last_lines.send(output.run(stop.as_fd()));
            })?;
            let events = session.events.clone();
            crew.spawn(&format!("wait {task}"), move || {
                let ending = process::wait(pid);
                events.deliver(Event::Ended { index, ending });
            })?;
        }
        Ok(outputs)
    }

    /// Returns when all processes have ended.
    fn watch(&mut self, session: &mut Session<'_, '_>) {
        while self
            .processes
            .iter()
            .any(|process| process.ending.is_none())
        {
            let event = match self.until {
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    session.received.recv_timeout(left)
                }
                None => session.received.recv().map_err(RecvTimeoutError::from),
            };
            match event {
                Ok(Event::Ended { index, ending }) => self.ended(index, ending, session),
                Ok(Event::Signal(signal)) => {
                    session.post(self.restart, Item::Stop(signal));
                    self.signalled(signal, session);
                }
                Ok(Event::Post(post)) => self.posted(*post, session),
                Ok(Event::Broken(error)) => self.break_off(error),
                Err(_) => self.phase_is_over(),
            }
        }
    }

    fn ended(&mut self, index: usize, ending: Ending, session: &Session<'_, '_>) {
        let Some(process) = self.processes.get_mut(index) else {
            return;
        };
        process.ending = Some(ending);
        if process.asked.is_none() && ending.is_failure() {
            self.failures.push((index, ending));
            session.post(self.restart, Item::Failed(process.task, ending));
            self.settle();
        } else if ending.is_preempted() && self.phase == Phase::Running {
            session.post(self.restart, Item::Preempted);
            self.enter(Phase::Preempting, self.grace);
        }
        if matches!(self.phase, Phase::Running | Phase::Preempting) && self.workers_are_done() {
            match &session.group {
                Some(group) => group.post(self.restart, Item::WorkersDone),
                None => self.finish(),
            }
        }
    }

    /// Acts on what a launcher has told all of them, this one included.
    fn posted(&mut self, post: Post, session: &mut Session<'_, '_>) {
        let Some(group) = &mut session.group else {
            return;
        };
        let item = post.item.clone();
        if let Err(error) = group.take(post) {
            return self.break_off(error);
        }
        match item {
            Item::Failed(..) => self.settle(),
            Item::Preempted if self.phase == Phase::Running => {
                self.enter(Phase::Preempting, self.grace);
            }
            Item::WorkersDone
                if matches!(self.phase, Phase::Running | Phase::Preempting)
                    && group.workers_are_done(self.restart) =>
            {
                self.finish();
            }
            Item::Stop(signal) => {
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
            self.enter(Phase::Settling, SETTLE);
        }
    }

    fn workers(&self) -> impl Iterator<Item = &Process> {
        let is_worker = |process: &&Process| process.task.role == Role::Worker;
        self.processes.iter().filter(is_worker)
    }

    fn workers_are_done(&self) -> bool {
        self.workers().all(|worker| worker.ending.is_some())
    }

    /// The workers are done: parameter servers have nobody to serve any more, and the evaluator
    /// may evaluate the last checkpoint unless there will be more of them.
    fn finish(&mut self) {
        let is_preempted = self.phase == Phase::Preempting;
        let has_ended = |process: &Process| process.ending.is_some();
        let others = self.processes.iter();
        let mut evaluators = others.filter(|process| process.task.role == Role::Evaluator);
        if is_preempted || evaluators.all(has_ended) {
            return self.stop(Signal::TERM);
        }
        self.enter(Phase::Finishing, self.grace);
        self.ask(Signal::TERM, |task| task.role == Role::ParameterServer);
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
                    let said = self
                        .screen
                        .say(&format!("{task}: {ending}; stopping the others"));
                    said.unwrap_or_else(|error| self.break_off(error));
                }
                self.stop(Signal::TERM);
            }
            Phase::Stopping | Phase::Killing => self.kill(),
        }
    }

    /// The launcher cannot do its part any more: the job ends with this error.
    fn break_off(&mut self, error: LaunchError) {
        self.broken.get_or_insert(error);
        if !matches!(self.phase, Phase::Stopping | Phase::Killing) {
            self.stop(Signal::TERM);
        }
    }

    /// Asks everybody to end, whom nobody has asked yet.
    fn stop(&mut self, signal: Signal) {
        self.enter(Phase::Stopping, self.grace);
        self.ask(signal, |_| true);
    }

    fn ask(&mut self, signal: Signal, is_meant: impl Fn(Task) -> bool) {
        let processes = self.processes.iter_mut();
        for process in processes.filter(|process| is_meant(process.task)) {
            if process.ending.is_none() && process.asked.is_none() {
                process.send(signal);
            }
        }
    }

    fn kill(&mut self) {
        self.phase = Phase::Killing;
        self.until = None;
        for process in &mut self.processes {
            if process.ending.is_none() {
                process.send(Signal::KILL);
            }
        }
    }

    fn enter(&mut self, phase: Phase, duration: Duration) {
        self.phase = phase;
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
    ) -> Result<Ended> {
        while let Ok(event) = session.received.try_recv() {
            match event {
                Event::Broken(error) => self.break_off(error),
                Event::Signal(signal) => {
                    session.post(self.restart, Item::Stop(signal));
                    session.interrupted.get_or_insert(signal);
                    session.signals += 1;
                }
                Event::Post(post) => self.posted(*post, session),
                Event::Ended { .. } => {}
            }
        }
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let verdict = self.verdict(session.interrupted.is_some());
        Ok(Ended::new(verdict, &self.processes, last_lines))
    }

    fn verdict(&self, is_interrupted: bool) -> Verdict {
        if let Some(index) = root_cause(&self.failures) {
            return Verdict::Failed(index);
        }
        let mut endings = self.workers().filter_map(|worker| worker.ending);
        if endings.all(|ending| ending == Ending::Exit(0)) {
            return Verdict::Succeeded;
        }
        let mut endings = self.workers().filter_map(|worker| worker.ending);
        if is_interrupted && !endings.all(|ending| !ending.is_failure()) {
            return Verdict::Stopped;
        }
        Verdict::Preempted
    }
}

/// Starts the thread that shows the lines of all but worker 0, if they are to be shown.
fn show_lines<'scope, 'env, 'a: 'env, 's: 'env>(
    crew: &Crew<'scope, 'env>,
    session: &Session<'a, 's>,
    tasks: &[Task],
) -> Result<Option<SyncSender<Line>>> {
    if !session.job.shows_all {
        return Ok(None);
    }
    let (sender, lines) = mpsc::sync_channel(LINES_MAX);
    let others = tasks.iter().copied().filter(|task| *task != FIRST);
    let (tasks, screen) = (others.collect::<Vec<_>>(), session.screen);
    let events = session.events.clone();
    crew.spawn("show lines", move || {
        collapse::show(&lines, &tasks, screen, &events);
    })?;
    Ok(Some(sender))
}
