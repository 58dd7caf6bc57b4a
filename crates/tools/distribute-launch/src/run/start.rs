//! Starts the processes of an attempt, and restarts a dead worker.

use std::cell::OnceCell;
use std::io;
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
use crate::job::cluster::{Cluster, Token, fits};
use crate::job::gpus::{GPUS_VARIABLE, Gpus};
use crate::job::task::{Role, Task};
use crate::process::guard::Guard;
use crate::process::log_writer::LogFile;
use crate::process::logs::LogDirectory;
use crate::process::memory::StateMemory;
use crate::process::output::{Output, OutputFailure, View};
use crate::process::runtime_folder::RuntimeFolder;
use crate::process::spawner::Spawner;
use crate::process::{
    self, CLUSTER_FILE_VARIABLE, CONFIG_VARIABLE, MARK_VARIABLE, PROGRESS_VARIABLE, Process,
    REPORT_VARIABLE, RESTART_VARIABLE, SLOW_VARIABLE, TOKEN_VARIABLE,
};
use crate::report::console::{Screen, Stream};
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
pub struct Starter<'c, 'scope, 'env> {
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
    spawner: &'env Spawner,
    screen: &'env Screen,
    events: Events,
    /// Where the first process says how far the job is.
    progress: Option<PathBuf>,
    runtime: &'env RuntimeFolder,
    /// The file with the cluster, once it is needed.
    cluster_file: OnceCell<PathBuf>,
    /// The workers of this host that have not ended.
    alive: Arc<AtomicUsize>,
}

impl<'c, 'scope, 'env> Starter<'c, 'scope, 'env> {
    pub fn new<'a: 'env>(
        threads: &'c ThreadScope<'scope, 'env>,
        session: &Session<'a>,
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
            spawner: session.spawner,
            screen: session.screen,
            events: session.events.clone(),
            progress: None,
            runtime: session.runtime,
            cluster_file: OnceCell::new(),
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
    fn view(&self, task: Task) -> View<'env> {
        match &self.lines {
            _ if task == self.place.cluster.first() => View::Through(self.screen),
            Some(lines) => View::Lines(lines.clone()),
            None => View::Hidden,
        }
    }

    /// `TF_CONFIG` for this task; and the file with the cluster, where the cluster is too large.
    fn config(&self, task: Task) -> Result<(String, Option<&PathBuf>)> {
        if self.cluster_file.get().is_none() {
            let config = self.place.cluster.tf_config(task)?;
            if fits(CONFIG_VARIABLE, &config) {
                return Ok((config, None));
            }
            self.write_cluster()?;
        }
        let config = Cluster::tf_config_beside_file(task)?;
        Ok((config, self.cluster_file.get()))
    }

    /// Writes the cluster into a file, for all processes that are started from now on.
    fn write_cluster(&self) -> Result<()> {
        let path = self
            .runtime
            .write_cluster(self.place.cluster.file_text()?)?;
        self.cluster_file.get_or_init(|| path);
        Ok(())
    }

    /// The variables of the task with this number; `slow` is where it says that it is slow.
    fn variables(
        &self,
        index: usize,
        report: &Path,
        slow: Option<&String>,
    ) -> Result<Vec<(&'static str, String)>> {
        let task = self.place.tasks[index];
        let (config, file) = self.config(task)?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut variables = vec![
            (CONFIG_VARIABLE, config),
            (RESTART_VARIABLE, self.restart.to_string()),
            (TOKEN_VARIABLE, self.place.token.secret().to_owned()),
            (MARK_VARIABLE, self.mark.secret().to_owned()),
            (REPORT_VARIABLE, text(report)),
        ];
        variables.extend(file.map(|path| (CLUSTER_FILE_VARIABLE, text(path))));
        let progress = self.progress.as_ref();
        let progress = progress.filter(|_| task == self.place.cluster.first());
        variables.extend(progress.map(|path| (PROGRESS_VARIABLE, text(path))));
        variables.extend(slow.map(|path| (SLOW_VARIABLE, path.clone())));
        let gpus = Gpus::of_this_process(self.job.gpus_per_worker);
        let gpus = gpus.map(|gpus| gpus.share(self.place_of(index)));
        variables.extend(gpus.map(|gpus| (GPUS_VARIABLE, gpus)));
        if let Some(place) = self.place_of(index) {
            variables.extend(self.memory.variables(place));
        }
        Ok(variables)
    }

    /// Starts the process of the task with this number, with the guard informed, and its two
    /// threads. `again` counts how often it was started again alone.
    pub fn start(&self, guard: &mut Guard, index: usize, again: u32) -> Result<Started> {
        let task = self.place.tasks[index];
        let (path, log) = self.logs.file(task, self.restart, again, self.screen)?;
        let report = failure_report::path(&path, self.logs.files());
        let slow = self.slow_request(task, &path);
        let variables = || self.variables(index, &report, slow.as_ref());
        let begin = |variables: &[_]| {
            let (path, report, guard) = (path.clone(), report.clone(), guard.pipe());
            Process::start(self.job, task, variables, path, report, guard, self.spawner)
        };
        let started = match begin(&variables()?) {
            // All variables together are too long: the largest one may be spared.
            Err(LaunchError::Spawn { source, .. })
                if source.kind() == io::ErrorKind::ArgumentListTooLong
                    && self.cluster_file.get().is_none() =>
            {
                self.write_cluster()?;
                begin(&variables()?)
            }
            started => started,
        };
        let (process, pipes) = started?;
        let pid = process.pid;
        guard.group_started(pid);
        let last_lines = self.read(task, pipes, log)?;
        self.tell_end(index, task, pid)?;
        Ok(Started {
            process,
            last_lines,
        })
    }

    /// Starts the thread that reads the output of a process.
    fn read(&self, task: Task, pipes: [(Stream, OwnedFd); 2], log: LogFile) -> Result<LastLines> {
        let view = self.view(task);
        let events = self.events.clone();
        let (logs, screen) = (self.logs, self.screen);
        let broken = move |trouble| {
            let told = match trouble {
                OutputFailure::Console(error) => Err(error),
                OutputFailure::Log(error) => logs.warn_once(task, &error, screen),
                OutputFailure::Missing(bytes) => {
                    logs.count_missing(bytes);
                    Ok(())
                }
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
        Ok(last_lines)
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
