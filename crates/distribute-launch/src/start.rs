//! Starts the processes of an attempt, and a worker that died once more.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, SyncSender};

use crate::cluster::Token;
use crate::events::Event;
use crate::failure_report;
use crate::gpus::{GPUS_VARIABLE, Gpus};
use crate::launcher_group::AttemptCluster;
use crate::line_deduplicator::{self, Line};
use crate::output::{Output, View};
use crate::process::{
    self, CONFIG_VARIABLE, MARK_VARIABLE, Process, REPORT_VARIABLE, RESTART_VARIABLE,
    TOKEN_VARIABLE,
};
use crate::session::Session;
use crate::thread_scope::ThreadScope;
use crate::{LaunchError, Result, Role, Task};

/// How many lines wait for the thread that shows them, before the processes wait.
const LINES_MAX: usize = 256;

/// Where a process's last lines on standard error come from when its output has ended.
pub type LastLines = Receiver<Vec<String>>;

/// What the processes of one attempt have in common.
pub struct Starter<'c, 'scope, 'env> {
    threads: &'c ThreadScope<'scope, 'env>,
    place: &'c AttemptCluster,
    mark: &'c Token,
    /// Ends the threads that read output when nothing else does.
    stop: &'env OwnedFd,
    lines: Option<SyncSender<Line>>,
    restart: u32,
}

impl<'c, 'scope, 'env> Starter<'c, 'scope, 'env> {
    pub fn new<'a: 'env, 's: 'env>(
        threads: &'c ThreadScope<'scope, 'env>,
        session: &Session<'a, 's>,
        (place, mark): (&'c AttemptCluster, &'c Token),
        stop: &'env OwnedFd,
        restart: u32,
    ) -> Result<Self> {
        Ok(Starter {
            threads,
            place,
            mark,
            stop,
            lines: show_lines(threads, session, place)?,
            restart,
        })
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

    /// Which of this host's workers the task with this number is, from 0.
    fn worker_of_this_host(&self, index: usize) -> Option<usize> {
        let is_worker = |task: &Task| task.role == Role::Worker;
        let before = self.place.tasks[..index].iter().copied();
        let worker = before.filter(is_worker).count();
        is_worker(&self.place.tasks[index]).then_some(worker)
    }

    /// Starts the process of the task with this number, and its two threads. `again` counts how
    /// often it alone was started again.
    pub fn start<'a: 'env, 's: 'env>(
        &self,
        session: &Session<'a, 's>,
        index: usize,
        again: u32,
    ) -> Result<(Process, LastLines)> {
        let task = self.place.tasks[index];
        let (path, log) = session.logs.file(task, self.restart, again)?;
        let config = self.place.cluster.tf_config(task)?;
        let restart = self.restart.to_string();
        let report = failure_report::path(&path);
        let report_text = report.to_string_lossy();
        let mut variables = vec![
            (CONFIG_VARIABLE, config.as_str()),
            (RESTART_VARIABLE, restart.as_str()),
            (TOKEN_VARIABLE, self.place.token.secret()),
            (MARK_VARIABLE, self.mark.secret()),
            (REPORT_VARIABLE, report_text.as_ref()),
        ];
        let gpus = Gpus::of_this_process(session.job.gpus_per_worker);
        let gpus = gpus.map(|gpus| gpus.share(self.worker_of_this_host(index)));
        variables.extend(gpus.iter().map(|gpus| (GPUS_VARIABLE, gpus.as_str())));
        let guard = session.guard.pipe();
        let (process, pipes) =
            Process::start(session.job, task, &variables, (path, report.clone()), guard)?;
        let pid = process.pid;
        let view = match &self.lines {
            _ if task == self.place.cluster.first() => View::Through(session.screen),
            Some(lines) => View::Lines(lines.clone()),
            None => View::Nobody,
        };
        let output = Output::new(task, pipes, log, view, session.events.clone())
            .map_err(LaunchError::system("cannot read a process's output"))?;
        let (last_lines, receiver) = mpsc::sync_channel(1);
        let stop = self.stop;
        self.threads.spawn(&format!("read {task}"), move || {
            let _gone = last_lines.send(output.run(stop.as_fd()));
        })?;
        let events = session.events.clone();
        self.threads.spawn(&format!("wait {task}"), move || {
            let ending = process::wait(pid);
            events.deliver(Event::Ended { index, ending });
        })?;
        Ok((process, receiver))
    }
}

/// Starts the thread that shows the lines of all but the first process, if they are to be shown.
fn show_lines<'scope, 'env, 'a: 'env, 's: 'env>(
    threads: &ThreadScope<'scope, 'env>,
    session: &Session<'a, 's>,
    place: &AttemptCluster,
) -> Result<Option<SyncSender<Line>>> {
    if !session.job.shows_all {
        return Ok(None);
    }
    let (sender, lines) = mpsc::sync_channel(LINES_MAX);
    let first = place.cluster.first();
    let others = place.tasks.iter().copied().filter(|task| *task != first);
    let (tasks, screen) = (others.collect::<Vec<_>>(), session.screen);
    let events = session.events.clone();
    threads.spawn("show lines", move || {
        line_deduplicator::show(&lines, &tasks, screen, &events);
    })?;
    Ok(Some(sender))
}
