//! What to start, and where: the options, the tasks and their addresses.

pub mod cluster;
pub mod gpus;
pub mod hosts;
pub mod ports;
pub mod task;
pub mod workers;

use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{LaunchError, Result};
use crate::job::gpus::Gpus;
use crate::job::hosts::Hosts;
use crate::job::task::{Role, Task};
use crate::job::workers::WorkerRange;

const RESTART_PAUSE: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(10);
const SHRINK_AFTER: Duration = Duration::from_secs(30);

/// What to start and how to watch it. All processes run the same command line.
#[derive(Debug, Clone)]
pub struct Job {
    pub(crate) command: Vec<OsString>,
    pub(crate) workers: WorkerRange,
    pub(crate) shrink_after: Duration,
    /// How long a worker is slow before the job goes on without it.
    pub(crate) drop_after: Option<Duration>,
    pub(crate) gpus_per_worker: usize,
    pub(crate) parameter_servers: usize,
    pub(crate) has_evaluator: bool,
    pub(crate) restarts_max: u32,
    pub(crate) restart_pause: Duration,
    pub(crate) log_directory: Option<PathBuf>,
    pub(crate) shows_all: bool,
    pub(crate) grace: Duration,
    pub(crate) handles_signals: bool,
    pub(crate) guard: Option<Vec<OsString>>,
    pub(crate) hosts: Option<Hosts>,
    pub(crate) ports: Option<RangeInclusive<u16>>,
}

impl Job {
    /// A job of one worker that runs `command`: a program, which is looked up in `PATH` if it is
    /// not a path, and its arguments.
    pub fn new<I>(command: I) -> Job
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        Job {
            command: arguments(command),
            workers: WorkerRange::from(1..=1),
            shrink_after: SHRINK_AFTER,
            drop_after: None,
            gpus_per_worker: 0,
            parameter_servers: 0,
            has_evaluator: false,
            restarts_max: 0,
            restart_pause: RESTART_PAUSE,
            log_directory: None,
            shows_all: false,
            grace: GRACE,
            handles_signals: true,
            guard: None,
            hosts: None,
            ports: None,
        }
    }

    /// How many workers to start. Worker 0 is the chief of a job without parameter servers. One of
    /// several [hosts](Job::hosts) may have none: it starts servers, the evaluator or, as host 0
    /// of a job with servers, the chief alone.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Job {
        self.workers = WorkerRange::from(workers..=workers);
        self
    }

    /// Makes the job elastic: it starts with the greatest of these numbers of workers, goes on with
    /// fewer when some are lost for good, and is over when fewer than the least would be left
    /// (torchrun: `--nnodes 2:8`). The numbers are of the whole job: each of several hosts brings
    /// an even share of the greatest one, the first hosts one more. Such a job has no parameter
    /// servers.
    ///
    /// A worker is lost for good when it is the reason for a failure and all
    /// [restarts](Job::max_restarts) are used up. Programs go on from what they have saved; each
    /// start has a new `TF_CONFIG`.
    #[must_use]
    pub fn elastic_workers(mut self, workers: RangeInclusive<usize>) -> Job {
        self.workers = WorkerRange::from(workers);
        self
    }

    /// How long an elastic job waits for a host that does not come, or is lost, before it goes on
    /// without it (default: 30 s). A lost host is waited for only while there are
    /// [restarts](Job::max_restarts) left.
    #[must_use]
    pub fn shrink_after(mut self, time: Duration) -> Job {
        self.shrink_after = time;
        self
    }

    /// Lets an elastic job go on without a host of which a worker has said for so long that it is
    /// slow (default: a job keeps its hosts): the workers save and stop, and the others start
    /// again, for the rest of the job. Of a job on one host it is the worker that is left out. The
    /// launcher of host 0 stays, without its workers. A host is kept if fewer workers than the
    /// least number would be left.
    ///
    /// A worker says so in the file that the variable `DISTRIBUTE_SLOW` names, in one line, and
    /// removes the file when it is as fast as the others again. `Fit` of `distribute-fit` does.
    #[must_use]
    pub fn drop_stragglers(mut self, after: Duration) -> Job {
        self.drop_after = Some(after);
        self
    }

    /// How many GPUs of this host each worker gets for itself: it sees no others, so `cuda:0` is
    /// its own first one, and the other processes of the job see none. They are taken in order from
    /// what `CUDA_VISIBLE_DEVICES` names for this process, else from all of the host. Default: 0,
    /// every process sees what this one sees.
    #[must_use]
    pub fn gpus_per_worker(mut self, gpus: usize) -> Job {
        self.gpus_per_worker = gpus;
        self
    }

    /// How many parameter servers to start (default: 0). With them one more process is started, the
    /// chief, which coordinates; when it has ended with 0, workers and servers are stopped. On
    /// several hosts it is on host 0.
    #[must_use]
    pub fn parameter_servers(mut self, parameter_servers: usize) -> Job {
        self.parameter_servers = parameter_servers;
        self
    }

    /// Whether to start an evaluator (default: no). When all workers are done it has the grace
    /// period to end by itself.
    #[must_use]
    pub fn evaluator(mut self, evaluator: bool) -> Job {
        self.has_evaluator = evaluator;
        self
    }

    /// How often the job is started again after a failure or after exit code 42 (default: 0).
    /// Counted for the whole job. With parameter servers a worker that dies is started again alone,
    /// at most this often per worker and attempt.
    #[must_use]
    pub fn max_restarts(mut self, restarts: u32) -> Job {
        self.restarts_max = restarts;
        self
    }

    /// How long to wait before the job, or a worker alone, is started again after a failure
    /// (default: 1 s): the pause doubles while the same process fails in the same way, up to a
    /// minute; it starts over after a different failure, or after an attempt of a minute. Zero is
    /// no pause.
    #[must_use]
    pub fn restart_pause(mut self, pause: Duration) -> Job {
        self.restart_pause = pause;
        self
    }

    /// Where the log files go; the directory is made if there is none, files of an earlier job are
    /// overwritten. By default they go to a new directory below the system's temporary one. Its
    /// path is printed to standard error; it is removed when the job succeeds and kept otherwise.
    /// If the launcher is killed, the [guard](Job::guard) removes it.
    #[must_use]
    pub fn log_directory(mut self, directory: impl AsRef<Path>) -> Job {
        self.log_directory = Some(directory.as_ref().to_owned());
        self
    }

    /// Whether lines of other processes than the first (the chief, else worker 0) appear on
    /// standard error (default: no), as `rank 1: line`, `ps 0: line` or `evaluator: line`. Equal
    /// lines within 200 ms become one: `ranks 1-3: line`. Lines of more than 64 KiB appear in
    /// pieces.
    #[must_use]
    pub fn prefix_output(mut self, prefix: bool) -> Job {
        self.shows_all = prefix;
        self
    }

    /// How long a process has between SIGTERM and SIGKILL (default: 10 s).
    #[must_use]
    pub fn grace_period(mut self, grace: Duration) -> Job {
        self.grace = grace;
        self
    }

    /// Whether signals to this process stop the job (default: yes): SIGINT, SIGTERM, SIGHUP,
    /// SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM, SIGVTALRM, SIGPROF and SIGIO, on Linux also
    /// SIGPWR, SIGSTKFLT and the real-time signals. SIGXFSZ makes no difference then. A program
    /// that runs a job this way ignores these signals from then on: the handlers are taken away at
    /// the end of the job, but the system's default action does not come back.
    #[must_use]
    pub fn handle_signals(mut self, handle: bool) -> Job {
        self.handles_signals = handle;
        self
    }

    /// The command line of a program that calls [`guard_main`](crate::guard_main), usually the
    /// launcher's own with a hidden argument (default: none). It runs beside the job and ends all
    /// its processes when the launcher is killed. Without it only the processes that the launcher
    /// itself started die with it (on Linux), not what these have started in turn. A guard that
    /// is killed is replaced.
    #[must_use]
    pub fn guard<I>(mut self, command: I) -> Job
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        self.guard = Some(arguments(command));
        self
    }

    /// Makes this a part of a job on several hosts (default: the job is on this host alone). What
    /// this job starts is added to what the launchers of the other hosts start; worker 0 is the
    /// first one of host 0. All hosts start again together, and all of them end with the same
    /// [`Outcome`](crate::Outcome).
    #[must_use]
    pub fn hosts(mut self, hosts: Hosts) -> Job {
        self.hosts = Some(hosts);
        self
    }

    /// Takes all ports of this host's processes from this range, for networks that pass certain
    /// ports only (default: free ports from 20,000 to 32,767). Each process has one, and the
    /// launcher in a job of many hosts (see [`Hosts::arity`]).
    #[must_use]
    pub fn ports(mut self, ports: RangeInclusive<u16>) -> Job {
        self.ports = Some(ports);
        self
    }

    /// Checks the options against each other.
    pub(crate) fn check(&self) -> Result<()> {
        let WorkerRange { least, most } = self.workers;
        if (least == 0 || most == 0) && !(most == 0 && self.starts_something_else()) {
            return Err(LaunchError::NoWorkers);
        }
        if least > most {
            return Err(LaunchError::EmptyRange { least, most });
        }
        if self.is_elastic() && self.parameter_servers > 0 {
            return Err(LaunchError::ElasticServers);
        }
        if !self.is_elastic() && self.drop_after.is_some() {
            return Err(LaunchError::DropsFromFixedJob);
        }
        match self.command.first() {
            Some(program) if !program.is_empty() => {}
            _ => return Err(LaunchError::NoCommand),
        }
        if let Some(gpus) = Gpus::of_this_process(self.gpus_per_worker) {
            gpus.check(self.workers_here())?;
        }
        self.hosts.as_ref().map_or(Ok(()), Hosts::check)?;
        match self.hosts.as_ref().map_or(1, |hosts| hosts.count) {
            hosts if self.is_elastic() && hosts > most => {
                Err(LaunchError::HostWithoutWorker { hosts, most })
            }
            _ => Ok(()),
        }
    }

    /// Whether this is one of several hosts and starts something other than workers.
    fn starts_something_else(&self) -> bool {
        let hosts = self.hosts.as_ref().filter(|hosts| hosts.count > 1);
        hosts.is_some_and(|hosts| {
            self.parameter_servers > 0 || self.has_evaluator || hosts.index == 0
        })
    }

    /// Whether the number of workers may change.
    pub(crate) fn is_elastic(&self) -> bool {
        self.workers.is_elastic()
    }

    /// How many workers this host starts when all hosts are there.
    pub(crate) fn workers_here(&self) -> usize {
        match &self.hosts {
            Some(hosts) if self.is_elastic() => self.workers.share(hosts.count, hosts.index),
            _ => self.workers.most,
        }
    }

    /// All tasks of this host with this number of workers, the first one first. Whether a job on
    /// several hosts has a chief depends on all hosts, see
    /// [`Cluster::reconcile_chief`](crate::job::cluster::Cluster::reconcile_chief).
    pub(crate) fn tasks(&self, workers: usize) -> Vec<Task> {
        let has_chief = match &self.hosts {
            Some(hosts) => hosts.index == 0,
            None => self.parameter_servers > 0,
        };
        let counts = [
            (Role::Chief, usize::from(has_chief)),
            (Role::Worker, workers),
            (Role::ParameterServer, self.parameter_servers),
            (Role::Evaluator, usize::from(self.has_evaluator)),
        ];
        let of_role = |(role, count)| (0..count).map(move |index| Task { role, index });
        counts.into_iter().flat_map(of_role).collect()
    }
}

fn arguments<I>(command: I) -> Vec<OsString>
where
    I: IntoIterator,
    I::Item: AsRef<OsStr>,
{
    let words = command.into_iter();
    words.map(|word| word.as_ref().to_owned()).collect()
}
