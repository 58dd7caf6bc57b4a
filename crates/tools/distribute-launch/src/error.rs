use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// Why a job could not be started or watched. A process of the job that fails is not an error but
/// [`Outcome::Failed`](crate::Outcome::Failed).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The job has no worker.
    #[error(
        "a job needs at least one worker: ask for 1 or more (one of several hosts may have none, \
         if it starts servers or the evaluator)"
    )]
    NoWorkers,
    /// The least number of workers is above the greatest.
    #[error("{least}..{most} workers: the first number must not be above the second")]
    EmptyRange {
        /// The first number.
        least: usize,
        /// The second one.
        most: usize,
    },
    /// A range of workers, and parameter servers.
    #[error(
        "a range of workers is for jobs without parameter servers: with them the chief goes on \
         without a lost worker by itself; give one number"
    )]
    ElasticServers,
    /// Slow hosts are to be dropped from a job whose number of workers is fixed.
    #[error(
        "slow hosts can be dropped from a job whose number of workers may change only: give a \
         range of workers, or let the job keep them (`Job::drop_stragglers`)"
    )]
    DropsFromFixedJob,
    /// An elastic job has more hosts than workers.
    #[error(
        "{hosts} hosts for at most {most} workers: each host brings at least one; name fewer hosts \
         or more workers"
    )]
    HostWithoutWorker {
        /// The number of hosts.
        hosts: usize,
        /// The greatest number of workers.
        most: usize,
    },
    /// Hosts are missing, and the workers of the others are too few for the job.
    #[error(
        "without the launchers of the hosts {missing:?} (counted from 0) {left} workers are left, \
         and the job needs at least {least}: start the launchers there, or allow fewer workers"
    )]
    TooFewWorkers {
        /// The numbers of the hosts.
        missing: Vec<usize>,
        /// The workers of the other hosts.
        left: usize,
        /// The least number that the job runs with.
        least: usize,
    },
    /// The job has no command.
    #[error("there is no command to start: name one, after `--` on a command line")]
    NoCommand,
    /// The launcher sees fewer GPUs than the workers of this host need.
    #[error(
        "{workers} workers with {per_worker} GPUs each need {}, but there are {visible} (named by \
         CUDA_VISIBLE_DEVICES, else at most 1024): name more, or start fewer workers on this host",
        .workers.saturating_mul(*.per_worker)
    )]
    TooFewGpus {
        /// Workers of this host.
        workers: usize,
        /// GPUs that each is to get.
        per_worker: usize,
        /// GPUs that the launcher sees; 1024 where their number is unknown.
        visible: usize,
    },
    /// No file has the command's name.
    #[error(
        "the command `{}` was not found: check the spelling, give a path, or put its directory \
         into PATH (a script's `#!` line may also name a missing interpreter)",
        .command.display()
    )]
    CommandNotFound {
        /// The name as it was given.
        command: OsString,
    },
    /// The command is a file that must not be executed.
    #[error(
        "the command `{}` cannot be executed: make it executable (`chmod +x`), or start it with \
         its interpreter",
        .command.display()
    )]
    NotExecutable {
        /// The name as it was given.
        command: OsString,
    },
    /// The system did not start the command.
    #[error("the command `{}` cannot be started: {source}", .command.display())]
    Spawn {
        /// The name as it was given.
        command: OsString,
        /// What the system said.
        source: io::Error,
    },
    /// Log files cannot be made.
    #[error(
        "cannot make log files in {}: {source}; choose a log directory that you may write to",
        .path.display()
    )]
    LogDirectory {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The cluster is too large for an environment variable, and the file for it cannot be written.
    #[error(
        "the cluster is too large for the variable TF_CONFIG, and {} cannot be written in its \
         place: {source}; make room there, or name another folder for temporary files (TMPDIR)",
        .path.display()
    )]
    ClusterFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The launcher's own output takes no more bytes. The job was stopped.
    #[error("cannot write to {stream}: {source}; the job was stopped")]
    Console {
        /// `standard output` or `standard error`.
        stream: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A range of ports has too few that are free.
    #[error(
        "{needed} ports are needed on {address}, but too few of {first}..{last} are free: \
         name more, or start fewer processes"
    )]
    NoPortInRange {
        /// The address of this host.
        address: std::net::IpAddr,
        /// How many ports the processes of this host need.
        needed: usize,
        /// The first port of the range.
        first: u16,
        /// The last one.
        last: u16,
    },
    /// No port is free.
    #[error(
        "no free port for {needed} processes on {address}: {source}; use an address of this host, \
         start fewer processes, or raise the limit of open files (`ulimit -n`)"
    )]
    NoFreePort {
        /// The address of this host.
        address: std::net::IpAddr,
        /// How many ports the job needs.
        needed: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The guard that ends processes after a killed launcher cannot be started. One that ends later
    /// is replaced.
    #[error("the guard `{}` does not run: {source}; start the job again", .program.display())]
    Guard {
        /// The guard's program.
        program: OsString,
        /// What the system said.
        source: io::Error,
    },
    /// The options of a job on several hosts do not fit.
    #[error("{what}")]
    InvalidHosts {
        /// What is wrong, and what to do.
        what: String,
    },
    /// Others on the network could read and change the launchers' messages.
    #[error(
        "{address} is not a loopback address, and without certificates what the launchers tell \
         each other is not encrypted: give all of them certificates (`Security::tls`), or allow \
         that on a network that you trust (`Security::insecure`)"
    )]
    NotEncrypted {
        /// Where host 0 listens.
        address: std::net::SocketAddr,
    },
    /// The launchers cannot meet.
    #[error(
        "the launchers cannot meet at {address}: {source}; host 0 must be able to listen there, \
         and the others to connect"
    )]
    Rendezvous {
        /// Where host 0 listens.
        address: std::net::SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Hosts did not come in time.
    #[error(
        "no launcher came for the hosts {missing:?} of the job (counted from 0): start it there"
    )]
    HostsMissing {
        /// The numbers of the hosts.
        missing: Vec<usize>,
    },
    /// The launchers of the hosts do not fit together.
    #[error("host 0 does not take part with this launcher: {why}")]
    HostRefused {
        /// What does not fit, and what to do.
        why: String,
    },
    /// A worker of this host was slow for long, and the job goes on without the host.
    #[error(
        "the job goes on without this host: {why}; find out what slows it down (`doctor`, the \
         clocks, other programs), or let the job keep it (`Job::drop_stragglers`)"
    )]
    HostDropped {
        /// How slow the worker was.
        why: String,
    },
    /// The launchers of hosts were lost, and did not come back. The job was stopped.
    #[error(
        "the launchers of the hosts {hosts:?} (counted from 0) were lost, and none of them was \
         within reach again in {} s{}{}; the job was stopped: start it again on all hosts, or let \
         it wait longer (`{option}`)",
        .waited.as_secs(), used(.restarts), place(.tried)
    )]
    HostStaysAway {
        /// The numbers of the hosts.
        hosts: Vec<usize>,
        /// How long they were waited for.
        waited: std::time::Duration,
        /// How many restarts were used of how many, where that is known.
        restarts: Option<(u32, u32)>,
        /// The address where host 0 was looked for and the last error, if host 0 was lost.
        tried: Option<String>,
        /// The option that says how long hosts are waited for.
        option: &'static str,
    },
    /// The launcher of a host is gone or cannot be reached. The job was stopped.
    #[error("the launcher of host {host} is gone or cannot be reached; the job was stopped")]
    HostLost {
        /// The host's number.
        host: usize,
    },
    /// The attempt was to end, and a host did not say how it ended there.
    #[error(
        "the launchers of the hosts {hosts:?} (counted from 0) have not said within {} s how their \
         processes ended; the job was stopped: end it on these hosts by hand, and look for \
         processes that do not end",
        .waited.as_secs()
    )]
    HostDoesNotEnd {
        /// The numbers of the hosts.
        hosts: Vec<usize>,
        /// How long they were waited for.
        waited: std::time::Duration,
    },
    /// The launcher of a host has sent more posts than its processes can cause. The job was
    /// stopped.
    #[error(
        "the launcher of host {host} has sent more than {most} posts, which a launcher of this \
         build does not; the job was stopped: run the same build on all hosts"
    )]
    TooManyPosts {
        /// The host's number.
        host: usize,
        /// How many posts of one host are kept.
        most: usize,
    },
    /// The system lacks something the launcher needs: threads, pipes, random numbers.
    #[error("{what}: {source}; start fewer processes, or raise the limits of the system")]
    System {
        /// What could not be had.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// How many restarts were used, as a part of a message.
fn used(restarts: &Option<(u32, u32)>) -> String {
    match restarts {
        Some((used, most)) => format!(" (restarts used: {used} of {most})"),
        None => String::new(),
    }
}

/// Where host 0 was looked for, as a part of a message.
fn place(tried: &Option<String>) -> String {
    let tried = tried.as_ref();
    tried.map_or_else(String::new, |tried| {
        format!("; host 0 was looked for at {tried}")
    })
}

distribute_error::debug_as_message!(LaunchError);

#[cfg(feature = "core")]
distribute_core::wrap_errors!(Launch: LaunchError);

/// The result type of this crate.
pub type Result<T, E = LaunchError> = std::result::Result<T, E>;

impl LaunchError {
    /// Wraps an error of the system in a [`LaunchError::System`].
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| LaunchError::System {
            what,
            source: source.into(),
        }
    }
}

impl LaunchError {
    /// Whether the same start would fail again, because the command, the options, the paths or
    /// the other launchers are wrong. A missing host or a port in use may be different next time.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::NoWorkers
            | Self::EmptyRange { .. }
            | Self::ElasticServers
            | Self::DropsFromFixedJob
            | Self::HostWithoutWorker { .. }
            | Self::NoCommand
            | Self::TooFewGpus { .. }
            | Self::CommandNotFound { .. }
            | Self::NotExecutable { .. }
            | Self::InvalidHosts { .. }
            | Self::NotEncrypted { .. }
            | Self::HostRefused { .. }
            | Self::HostDropped { .. } => true,
            // Other programs may free ports, unless the range itself is too small.
            Self::NoPortInRange {
                needed,
                first,
                last,
                ..
            } => usize::from(last.saturating_sub(*first)) + 1 < *needed,
            Self::Spawn { source, .. }
            | Self::LogDirectory { source, .. }
            | Self::ClusterFile { source, .. } => distribute_error::lasts(source),
            Self::TooFewWorkers { .. }
            | Self::Console { .. }
            | Self::NoFreePort { .. }
            | Self::Guard { .. }
            | Self::Rendezvous { .. }
            | Self::HostsMissing { .. }
            | Self::HostLost { .. }
            | Self::HostStaysAway { .. }
            | Self::HostDoesNotEnd { .. }
            | Self::TooManyPosts { .. }
            | Self::System { .. } => false,
        }
    }
}
