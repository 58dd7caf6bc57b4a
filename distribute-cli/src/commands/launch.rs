//! `launch`: a job's processes on this host.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread::Builder;
use std::time::Duration;

use distribute_launch::{Console, Hosts, Job, LaunchError, guard_main, run as run_job};

use crate::cluster::{TOKEN_VARIABLE, security};
use crate::failure::Failure;
use crate::flags::{LaunchArgs, program};

/// How long a host may be unreachable by default.
const HOST_TIMEOUT: Duration = Duration::from_secs(12);
/// How long standard error may take for the last message.
const PATIENCE: Duration = Duration::from_secs(1);
/// The upper limit, however long the workers tolerate silence.
const HOST_TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// Runs the job to its end. Its errors have been printed by then.
pub(super) fn run(args: LaunchArgs) -> Result<(), Failure> {
    let job = job(args)?;
    let (mut stdout, mut stderr) = (io::stdout(), io::stderr());
    let (own_stdout, own_stderr) = (io::stdout(), io::stderr());
    let mut console = Console::new(&mut stdout, &mut stderr);
    console = console.descriptors(own_stdout.as_fd(), own_stderr.as_fd());
    if let Some(columns) = columns() {
        console = console.terminal(columns);
    }
    if !io::stdout().is_terminal() {
        console = console.stdout_elsewhere();
    }
    match run_job(&job, &mut console).map_err(failure) {
        Ok(outcome) => match outcome.exit_code() {
            0 => Ok(()),
            code => Err(Failure::already_printed(code)),
        },
        Err(failure) => Err(printed(failure)),
    }
}

/// Prints the error on a thread of its own: standard error may not be read any more, and the
/// launcher ends nevertheless.
fn printed(failure: Failure) -> Failure {
    let code = failure.code();
    let (sender, done) = mpsc::sync_channel(1);
    let print = move || {
        let _code = failure.report(false);
        // It may have taken too long.
        let _late = sender.send(());
    };
    if Builder::new().name("error".to_owned()).spawn(print).is_ok() {
        let _late = done.recv_timeout(PATIENCE);
    }
    Failure::already_printed(code)
}

/// The width of the terminal, if standard error is a terminal that can erase lines.
fn columns() -> Option<usize> {
    let can = std::env::var_os("TERM").is_none_or(|name| name != "dumb");
    if !can || !io::stderr().is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok()?;
    // The usual width, if the terminal does not report it.
    Some(match size.ws_col {
        0 => 80,
        columns => usize::from(columns),
    })
}

fn job(args: LaunchArgs) -> Result<Job, Failure> {
    let hosts = hosts(&args)?;
    let is_elastic = args.workers.start() < args.workers.end();
    if args.shrink_after.is_some() && !is_elastic {
        return Err(Failure::usage(
            "--shrink-after is for jobs whose number of workers may change: give --workers \
             MIN..MAX, or leave it out",
        ));
    }
    if args.drop_stragglers.is_some() && !is_elastic {
        return Err(Failure::usage(
            "--drop-stragglers is for jobs whose number of workers may change: give --workers \
             MIN..MAX, or leave it out",
        ));
    }
    if args.restart_pause.is_some() && args.max_restarts == 0 && !is_elastic {
        return Err(Failure::usage(
            "--restart-pause is for jobs that are started again: give --max-restarts N, or leave \
             it out",
        ));
    }
    let program = std::env::current_exe().map_err(|error| {
        Failure::failed(format!("cannot find the file of this program: {error}"))
    })?;
    let mut job = Job::new(args.command)
        .elastic_workers(args.workers)
        .gpus_per_worker(args.gpus_per_worker)
        .parameter_servers(args.ps)
        .evaluator(args.evaluator)
        .max_restarts(args.max_restarts)
        .prefix_output(args.all_output)
        .grace_period(Duration::from_secs(args.grace))
        .guard([program.as_os_str(), "launch-guard".as_ref()]);
    if let Some(seconds) = args.shrink_after {
        job = job.shrink_after(Duration::from_secs(seconds));
    }
    if let Some(seconds) = args.drop_stragglers {
        job = job.drop_stragglers(Duration::from_secs(seconds));
    }
    if let Some(seconds) = args.restart_pause {
        job = job.restart_pause(Duration::from_secs(seconds));
    }
    if let Some(directory) = args.log_dir {
        job = job.log_directory(directory);
    }
    if let Some(hosts) = hosts {
        job = job.hosts(hosts);
    }
    if let Some(ports) = args.ports {
        job = job.ports(ports);
    }
    Ok(job)
}

/// The other hosts, if any.
fn hosts(args: &LaunchArgs) -> Result<Option<Hosts>, Failure> {
    let (Some(address), Some(count), Some(index)) = (args.rendezvous, args.hosts, args.host) else {
        return Ok(None);
    };
    let security = security(args.certs.as_deref(), args.insecure)?;
    if !security.has_token() {
        return Err(Failure::usage(format!(
            "several hosts need a common token: give each its --certs DIR (`certs` makes them), \
             or set the variable {TOKEN_VARIABLE} to the same random text on all of them"
        )));
    }
    let mut hosts = Hosts::new(address, count, index, security);
    let timeout = args.host_timeout.map(Duration::from_secs);
    hosts = hosts.timeout(timeout.unwrap_or_else(|| host_timeout(&args.command)));
    if let Some(seconds) = args.rendezvous_timeout {
        hosts = hosts.join_timeout(Duration::from_secs(seconds));
    }
    if let Some(own) = args.host_address {
        hosts = hosts.own_address(own);
    }
    Ok(Some(hosts))
}

/// The default of `--host-timeout`: at least the `--heartbeat-timeout` of the workers, if the
/// command contains that flag.
fn host_timeout(command: &[OsString]) -> Duration {
    let words = command.iter().map(|word| word.to_str().unwrap_or_default());
    let flag = "--heartbeat-timeout";
    let value = words
        .clone()
        .skip_while(|word| *word != flag)
        .nth(1)
        .or_else(|| {
            let mut values = words.filter_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
            values.next()
        });
    let seconds = value.and_then(|value| value.parse::<f64>().ok());
    let asked = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    asked.map_or(HOST_TIMEOUT, |asked| {
        asked.clamp(HOST_TIMEOUT, HOST_TIMEOUT_MAX)
    })
}

/// The error with flags in place of the library's options.
fn failure(error: LaunchError) -> Failure {
    match error {
        LaunchError::CommandNotFound { ref command, .. } if is_own_command(command) => {
            let name = command.to_string_lossy();
            Failure::usage(format!(
                "there is no program `{name}`: after `--` stands a program with its arguments, \
                 `-- distribute-cli {name}`"
            ))
        }
        LaunchError::NotEncrypted { address } => Failure::usage(format!(
            "{address} is not a loopback address, and without certificates what the launchers \
             tell each other is not encrypted: give each its --certs DIR (`certs` makes them), or \
             --insecure on a network that you trust"
        )),
        LaunchError::HostStaysAway { .. } => {
            let said = error
                .to_string()
                .replace("`Hosts::join_timeout`", "--rendezvous-timeout");
            Failure::failed(said.replace("`Job::shrink_after`", "--shrink-after"))
        }
        LaunchError::HostDropped { .. } => {
            let said = error.to_string();
            Failure::failed(said.replace("`Job::drop_stragglers`", "--drop-stragglers"))
        }
        other => other.into(),
    }
}

/// Whether it is the name of a command of this program, not of another program.
fn is_own_command(name: &OsStr) -> bool {
    name.to_str()
        .is_some_and(|name| program().find_subcommand(name).is_some())
}

/// Ends the remaining processes of a job when its launcher is killed.
pub(super) fn guard() -> Result<(), Failure> {
    if guard_main() == ExitCode::SUCCESS {
        Ok(())
    } else {
        Err(Failure::already_printed(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_longer_for_a_host_learns_the_flag() {
        let options = [
            ("Hosts::join_timeout", "--rendezvous-timeout"),
            ("Job::shrink_after", "--shrink-after"),
        ];
        for (option, flag) in options {
            let stays_away = LaunchError::HostStaysAway {
                hosts: vec![1],
                waited: Duration::from_secs(300),
                restarts: Some((0, 3)),
                tried: None,
                option,
            };
            let said = failure(stays_away).to_string();
            let end = format!("or let it wait longer ({flag})");
            assert!(said.ends_with(&end), "{said}");
        }
    }

    #[test]
    fn a_host_may_be_out_of_reach_as_long_as_a_worker() {
        let of = |text: &str| {
            let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            host_timeout(&words).as_secs()
        };
        assert_eq!(of("train"), 12);
        assert_eq!(of("train --heartbeat-timeout 60"), 60);
        assert_eq!(of("train --heartbeat-timeout=90 --seed 1"), 90);
        for other in ["3", "0.5", "nonsense", "", "-1", "nan"] {
            assert_eq!(of(&format!("train --heartbeat-timeout {other}")), 12);
        }
        assert_eq!(of("train --heartbeat-timeout"), 12);
        assert_eq!(of("train --heartbeat-timeout 1e9"), 600);
    }
}
