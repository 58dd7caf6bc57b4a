//! Starts the processes of a job on this host, watches them, reports why one failed, and restarts
//! the job.
//!
//! A [`Job`] says what to start: workers, parameter servers with a chief, an evaluator, all with
//! the same command line. [`run`] starts them, gives each its `TF_CONFIG`, and returns when the job
//! is over:
//!
//! ```
//! use distribute_launch::{Console, Job, Outcome, run};
//!
//! let job = Job::new(["sh", "-c", "echo this is $TF_CONFIG"]).workers(2);
//! let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
//! let outcome = run(&job, &mut Console::new(&mut stdout, &mut stderr))?;
//! assert_eq!(outcome, Outcome::Succeeded { restarts: 0 });
//! assert!(stdout.starts_with(b"this is {\"cluster\":{\"worker\":[\"127.0.0.1:"));
//! # Ok::<(), distribute_launch::LaunchError>(())
//! ```
//!
//! # What a process finds
//!
//! | environment variable | value |
//! |---|---|
//! | `TF_CONFIG` | the cluster and the own task, as TensorFlow reads them |
//! | `DISTRIBUTE_CLUSTER_FILE` | the file with the cluster, if it is too large for `TF_CONFIG` |
//! | `DISTRIBUTE_RESTART` | how often the job was restarted before: 0 at first |
//! | `DISTRIBUTE_FAILURE_REPORT` | a file for a [`FailureReport`] as JSON: who is to blame |
//! | `DISTRIBUTE_PROGRESS` | the first one, if it is shown: a file for a [`Progress`] as JSON |
//! | `DISTRIBUTE_JOB_TOKEN` | a secret of this attempt of the job: 64 hexadecimal digits |
//! | `DISTRIBUTE_LAUNCH_MARK` | a mark by which the launcher finds its processes: keep it |
//! | `DISTRIBUTE_STATE_MEMORY` | two files in memory that outlive the worker, empty at first |
//! | `DISTRIBUTE_LINK_MEMORY` | another such file, for the measured cost of its links |
//! | `DISTRIBUTE_SLOW` | with [`Job::drop_stragglers`]: a file for a worker that is slow |
//! | `CUDA_VISIBLE_DEVICES` | with [`Job::gpus_per_worker`]: a worker's GPUs; else empty |
//!
//! Its standard input is empty, and it leads a process group of its own.
//!
//! Every process has a port of its own for the whole attempt, also when it is started again
//! alone. The port is between 20,000 and 32,767; no other launcher on this host has it, and the
//! system gives it to no connection ([`ReservedPorts`]).
//!
//! The files of `DISTRIBUTE_STATE_MEMORY` and `DISTRIBUTE_LINK_MEMORY` have no name in a file
//! system and belong to the worker's place: after a restart the worker in this place finds what its
//! predecessor has written. They are gone with the launcher, however it ends. (On Linux; elsewhere
//! the variables are not set.)
//!
//! # Where output goes
//!
//! The two output streams of the first process (the chief, else worker 0) pass through unchanged.
//! The lines of the others are shown on request, see [`Job::prefix_output`]. All output is in the
//! log files: `worker-0.log`, `ps-1.log`, `chief-0.log`, `evaluator-0.log`; after the first restart
//! `restart-1/worker-0.log` and so on. A worker that was started again alone writes into
//! `worker-0-again-1.log`. A log file holds both streams line by line in order of their arrival.
//!
//! # How a job ends
//!
//! When all workers have exited with 0, parameter servers get SIGTERM, and the evaluator gets it
//! after the grace period. When a process fails before, it is the *root cause*: the others get
//! SIGTERM, and SIGKILL after the grace period. Then the job starts again, with new ports and a new
//! token, as often as [`Job::max_restarts`] allows. It does not start again after exit code
//! [2](REFUSED_EXIT_CODE) (wrong usage would be wrong again) or [43](DIVERGED_EXIT_CODE) (a
//! training that has diverged would diverge again).
//!
//! With parameter servers, one more process is started: the chief, which coordinates. Its end is
//! the end of the job: workers and servers get SIGTERM when it has exited with 0, and a failure of
//! the chief or of a server is a failure as above. A worker that dies does not fail the job: the
//! chief gives its work to others. Only this worker is started again, at most [`Job::max_restarts`]
//! times, with the same address. The job fails when no worker is left. A worker that exits with 0
//! is done, and with 2 or 43 it is not started again.
//!
//! Exit code 42 means "stopped on request after saving a checkpoint". When all workers (or the
//! chief, if there is one) have exited with 0 or 42, the job ends as [`Outcome::Preempted`] if it
//! was the launcher that was signalled. Otherwise a process was signalled directly, and the job
//! starts again. That counts as a restart, so that a job which always ends with 42 does end.
//!
//! SIGINT and SIGTERM to the launcher are passed on to the processes once. SIGHUP and SIGQUIT
//! become SIGTERM, and so do the signals by which schedulers and limits announce the end:
//! SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, on Linux also SIGPWR, SIGSTKFLT
//! and the real-time signals. A second signal out of the first four kills the processes, a third
//! one the launcher; the other signals only ever ask. SIGPIPE is ignored, and SIGXFSZ becomes a
//! write error. Any other signal has its default effect on the launcher; its processes end with it.
//!
//! A command may be a script that does not `exec` what it runs. Each process is asked once. A
//! process that catches SIGTERM is asked before its descendants, as it may pass the signal on;
//! descendants that are still running after half of the grace period are asked then. A process that
//! does not catch the signal and waits for one that does is not asked, as it ends with that one's
//! exit code. When the signal ends a script and its descendants go on, they have the rest of the
//! grace period and count as the script: 42 if one of them has saved. SIGINT reaches all processes
//! at once, as in a terminal.
//!
//! # Several hosts
//!
//! [`Job::hosts`] joins the launchers of several hosts: they wait for each other, number the
//! processes consecutively, and start and stop them together. A failure on one host is a failure on
//! all. What they must know of each other is kept in the launcher of host 0, not in the job's
//! processes.
//!
//! When a connection between launchers breaks, they connect again and lose nothing; meanwhile
//! the processes go on. A launcher that is out of reach for
//! [longer](Hosts::timeout) is lost: the others stop their processes and name the lost host. While
//! [restarts](Job::max_restarts) are left they wait for it, or for another launcher of its host,
//! for the [time](Hosts::join_timeout) in which launchers meet; a launcher that has lost host 0
//! looks for it as long. When all are there the job starts again.
//!
//! The launchers know each other by a common token, and encrypt their messages if they
//! have certificates; without certificates an address beyond loopback is refused unless
//! [`Security::insecure`] allows it. The resources that an unauthenticated peer at the port of host
//! 0 can use are bounded, see [`distribute_net::pending`].
//!
//! # Fewer workers, and more
//!
//! [`Job::elastic_workers`] lets the number of workers change from start to start. When a worker or
//! a host is lost for good, the others are stopped and start again in a cluster without it, from
//! what they have saved. A launcher that joins with the token is taken in: all workers get SIGTERM,
//! are expected to save and to exit with 42, and start again with the new ones. If they end with
//! exit code 2 then, the job goes on without the new launcher. The launcher of host 0 decides, so
//! the job needs it throughout.
//!
//! # What cannot stay behind
//!
//! On Linux, processes die with the launcher even if SIGKILL ends it, and at the end of an attempt
//! every process with the attempt's mark in its environment or in one of its process groups is
//! ended: processes that a command has left in the background too. With a [guard](Job::guard)
//! this also holds when the launcher is killed. On other systems only process groups are ended.
#![deny(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod cgroup;
mod detached;
mod error;
mod events;
mod file_tasks;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod hosts;
mod job;
mod membership;
mod posts;
mod process;
mod report;
mod room;
mod run;
mod signals;
mod thread_scope;

pub use cgroup::MemoryLimit;
pub use distribute_net::security::{Security, TlsIdentity, Token};
pub use error::{LaunchError, Result};
pub use job::Job;
pub use job::hosts::Hosts;
pub use job::ports::ReservedPorts;
pub use job::task::{Role, Task};
pub use process::guard::guard_main;
pub use process::{PROGRESS_VARIABLE, REPORT_VARIABLE};
pub use report::console::Console;
pub use report::failure_report::FailureReport;
pub use report::outcome::{
    DIVERGED_EXIT_CODE, Ending, Outcome, PREEMPTED_EXIT_CODE, REFUSED_EXIT_CODE, RootCause,
};
pub use report::progress::Progress;
pub use run::run;
