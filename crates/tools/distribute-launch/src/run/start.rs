//! Starts the processes of an attempt, and restarts a dead worker.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};

use rustix::process::Pid;

use crate::error::{LaunchError, Result};
use crate::events::{Event, Events};
use crate::hosts::group::AttemptCluster;
use crate::job::Job;
use crate::job::cluster::Token;
use crate::job::gpus::{GPUS_VARIABLE, Gpus};
use crate::job::task::{Role, Task};
use crate::process::guard::Guard;
use crate::process::logs::LogDirectory;
use crate::process::memory::StateMemory;
use crate::process::output::{Output, OutputFailure, View};
use crate::process::{
    self, CONFIG_VARIABLE, MARK_VARIABLE, PROGRESS_VARIABLE, Process, REPORT_VARIABLE,
    RESTART_VARIABLE, SLOW_VARIABLE, TOKEN_VARIABLE,
};
use crate::report::console::Screen;
use crate::report::failure_report;
use crate::report::line_deduplicator::{self, Line};
use crate::report::progress;
use crate::report::slow_request;
use crate::run::progress::{ProgressSource, show};
use crate::run::session::Session;
use crate::thread_scope::ThreadScope;

/// How many lines may wait for the thread that shows them before the processes block.
const LINES_MAX: usize = 256;

/// Receives a process's last lines on standard error when its output has ended.
pub type LastLines = Receiver<Vec<String>>;

/// A process that was started.
pub struct Started {
    pub process: Process,
    pub last_lines: LastLines,
}

/// The data that the processes of one attempt share.
pub struct Starter<'c, 'scope, 'env, 's> {
    threads: &'c ThreadScope<'scope, 'env>,
    place: &'c AttemptCluster,
    mark: &'c Token,
    /// The place of each worker of this host.
    places: &'c [usize],
    /// Ends the threads that read output when nothing else does.
    stop: &'env OwnedFd,
    lines: Option<SyncSender<Line>>,
    restart: u32,
    job: &'env Job,
    logs: &'env LogDirectory,
    memory: &'env StateMemory,
    screen: &'env Screen<'s>,
    events: Events,
    /// Where the first process says how far the job is.
    progress: Option<PathBuf>,
    /// The workers of this host that have not ended.
    alive: Arc<AtomicUsize>,
}

impl<'c, 'scope, 'env, 's> Starter<'c, 'scope, 'env, 's> {
    pub fn new<'a: 'env>(
        threads: &'c ThreadScope<'scope, 'env>,
        session: &Session<'a, 's>,
        place: &'c AttemptCluster,
        mark: &'c Token,
        stop: &'env OwnedFd,
        restart: u32,
        places: &'c [usize],
    ) -> Result<Self> {
        let mut starter = Starter {
            threads,
            place,
            mark,
            places,
            stop,
            lines: None,
            restart,
            job: session.job,
            logs: session.logs,
            memory: session.memory,
            screen: session.screen,
            events: session.events.clone(),
            progress: None,
            alive: Arc::default(),
        };
        if let Some(columns) = starter.screen.columns() {
            starter.show_progress(columns)?;
        }
        if session.job.shows_all {
            starter.lines = Some(starter.show_lines()?);
        }
        Ok(starter)
    }

    /// Starts the thread that shows how far the job is, if its first process is one of this host.
    fn show_progress(&mut self, columns: usize) -> Result<()> {
        if !self.place.tasks.contains(&self.place.cluster.first()) {
            return Ok(());
        }
        let files = self.logs.files();
        let path = progress::path(self.logs.path(), files);
        self.progress = Some(path.clone());
        let is_worker = |task: &&Task| task.role == Role::Worker;
        let workers = self.place.tasks.iter().filter(is_worker).count();
        let (screen, stop, restart) = (self.screen, self.stop, self.restart);
        let alive = Arc::clone(&self.alive);
        self.threads.spawn("show progress", move || {
            let source = ProgressSource {
                path: &path,
                files,
                alive: &alive,
                workers,
                restart,
            };
            show(screen, columns, &source, stop.as_fd());
        })
    }

    /// Starts the thread that shows the lines of all but the first process.
    fn show_lines(&self) -> Result<SyncSender<Line>> {
        let (sender, lines) = mpsc::sync_channel(LINES_MAX);
        let first = self.place.cluster.first();
        let others: Vec<Task> = self
            .place
            .tasks
            .iter()
            .copied()
            .filter(|task| *task != first)
            .collect();
        let (screen, events) = (self.screen, self.events.clone());
        self.threads.spawn("show lines", move || {
            line_deduplicator::show(&lines, &others, screen, |error| {
                events.try_send(Event::Broken(error));
            });
        })?;
        Ok(sender)
    }

    /// What this host starts.
    pub fn tasks(&self) -> &'c [Task] {
        &self.place.tasks
    }

    /// How many workers all hosts start.
    pub fn workers(&self) -> usize {
        let tasks = self.place.cluster.tasks();
        tasks.filter(|task| task.role == Role::Worker).count()
    }

    /// The place of the worker with this task number: a worker in a place keeps its GPUs
    /// and its state memory, whichever others are lost.
    pub fn place_of(&self, index: usize) -> Option<usize> {
        let is_worker = |task: &Task| task.role == Role::Worker;
        let before = self.place.tasks[..index].iter().copied();
        let worker = before.filter(is_worker).count();
        let place = self.places.get(worker).copied();
        place.filter(|_| is_worker(&self.place.tasks[index]))
    }

    /// Where a worker says that it is slow, if the job goes on without slow workers.
    fn slow_request(&self, task: Task, log: &Path) -> Option<String> {
        let path = slow_request::path(log);
        slow_request::remove(&path, self.logs.files());
        let may_drop = self.job.drop_after.is_some() && task.role == Role::Worker;
        may_drop.then(|| path.to_string_lossy().into_owned())
    }

    /// Where the output of a task goes, besides its log.
    fn view(&self, task: Task) -> View<'env, 's> {
        match &self.lines {
            _ if task == self.place.cluster.first() => View::Through(self.screen),
            Some(lines) => View::Lines(lines.clone()),
            None => View::Hidden,
        }
    }

    /// Starts the process of the task with this number, with the guard informed, and its two
    /// threads. `again` counts how often it was started again alone.
    pub fn start(&self, guard: &mut Guard, index: usize, again: u32) -> Result<Started> {
        let task = self.place.tasks[index];
        let (path, log) = self.logs.file(task, self.restart, again, self.screen)?;
        let config = self.place.cluster.tf_config(task)?;
        let restart = self.restart.to_string();
        let report = failure_report::path(&path, self.logs.files());
        let report_text = report.to_string_lossy();
        let mut variables = vec![
            (CONFIG_VARIABLE, config.as_str()),
            (RESTART_VARIABLE, restart.as_str()),
            (TOKEN_VARIABLE, self.place.token.secret()),
            (MARK_VARIABLE, self.mark.secret()),
            (REPORT_VARIABLE, report_text.as_ref()),
        ];
        let progress = self.progress.as_ref().map(|path| path.to_string_lossy());
        if let Some(path) = &progress
            && task == self.place.cluster.first()
        {
            variables.push((PROGRESS_VARIABLE, path));
        }
        let slow = self.slow_request(task, &path);
        variables.extend(slow.iter().map(|path| (SLOW_VARIABLE, path.as_str())));
        let gpus = Gpus::of_this_process(self.job.gpus_per_worker);
        let gpus = gpus.map(|gpus| gpus.share(self.place_of(index)));
        variables.extend(gpus.iter().map(|gpus| (GPUS_VARIABLE, gpus.as_str())));
        let memory = self
            .place_of(index)
            .map_or_else(Vec::new, |place| self.memory.variables(place));
        variables.extend(memory.iter().map(|(name, value)| (*name, value.as_str())));
        let (process, pipes) = Process::start(
            self.job,
            task,
            &variables,
            path,
            report.clone(),
            guard.pipe(),
        )?;
        let pid = process.pid;
        guard.group_started(pid);
        let view = self.view(task);
        let events = self.events.clone();
        let (logs, screen) = (self.logs, self.screen);
        let broken = move |trouble| {
            let told = match trouble {
                OutputFailure::Console(error) => Err(error),
                OutputFailure::Log(error) => logs.warn_once(task, &error, screen),
            };
            told.unwrap_or_else(|error| events.try_send(Event::Broken(error)));
        };
        let output = Output::new(task, pipes, log, view, broken)
            .map_err(LaunchError::system("cannot read a process's output"))?;
        let (sender, last_lines) = mpsc::sync_channel(1);
        let stop = self.stop;
        self.threads.spawn(&format!("read {task}"), move || {
            let _gone = sender.send(output.run(stop.as_fd()));
        })?;
        self.tell_end(index, task, pid)?;
        Ok(Started {
            process,
            last_lines,
        })
    }

    /// Starts the thread that waits for the end of a process and reports it.
    fn tell_end(&self, index: usize, task: Task, pid: Pid) -> Result<()> {
        let (events, stop) = (self.events.clone(), self.stop);
        let alive = Arc::clone(&self.alive);
        let counts = usize::from(task.role == Role::Worker);
        alive.fetch_add(counts, Ordering::Relaxed);
        self.threads.spawn(&format!("wait {task}"), move || {
            let ending = process::wait(pid, stop.as_fd());
            alive.fetch_sub(counts, Ordering::Relaxed);
            if let Some(ending) = ending {
                events.send(Event::Ended { index, ending });
            }
        })
    }
}
