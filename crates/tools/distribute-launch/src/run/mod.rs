//! Runs a job to its end, restarts included.

mod attempt;
mod attempts;
#[cfg(test)]
mod large_cluster;
mod pause;
mod progress;
mod session;
mod signals;
mod start;

use std::path::Path;
use std::time::Duration;

use crate::error::{LaunchError, Result};
use crate::events;
use crate::hosts::group::{HostSetup, LauncherGroup};
use crate::hosts::part::Part;
use crate::hosts::relay::Relay;
use crate::hosts::wait::WaitOutcome;
use crate::hosts::wire::Terms;
use crate::job::Job;
use crate::job::hosts::Hosts;
use crate::job::workers::WorkerRange;
use crate::membership::Rules;
use crate::membership::timed::TimedMembership;
use crate::process::guard::{Folders, Guard};
use crate::process::logs::{LogDirectory, LogPlace};
use crate::process::memory::StateMemory;
use crate::process::runtime_folder::RuntimeFolder;
use crate::process::spawner::{START_LIMIT, Spawner};
use crate::report::console::{Console, Screen};
use crate::report::outcome::Outcome;
use crate::run::session::Session;
use crate::run::signals::SignalWatch;
use crate::thread_scope::ThreadScope;

/// Runs a job to its end, restarts included. Blocks until no process of it is left.
///
/// On Linux this process takes over, from then on, processes whose parents have ended and that it
/// or those have started: so it learns how what a script has started ended.
///
/// All threads that it starts have ended when it returns, except such as the system holds: on a
/// file system that hangs, at an output that takes nothing. On Linux the processes die with this
/// one, however it ends.
///
/// # Errors
///
/// [`LaunchError`] when the job cannot be started or watched. A process that fails is an
/// [`Outcome`].
pub fn run(job: &Job, console: &mut Console<'_>) -> Result<Outcome> {
    job.check()?;
    Screen::run(console, |screen| run_on(screen, job))
}

fn run_on(screen: &Screen, job: &Job) -> Result<Outcome> {
    let place = LogPlace::new(job.log_directory.as_deref())?;
    // There before the directory is and until it is gone: it removes what a killed launcher leaves.
    let runtime = RuntimeFolder::new()?;
    let folders = Folders {
        logs: place.temporary().map(Path::to_owned),
        runtime: Some(runtime.path().to_owned()),
    };
    let mut guard = Guard::start(job.guard.as_deref(), folders)?;
    let logs = place.make()?;
    let result = run_with_logs(job, screen, &logs, &runtime, &mut guard);
    let told = logs.report_missing(screen).and_then(|()| screen.flush());
    let result = result.and_then(|outcome| told.map(|()| outcome));
    let is_worth_keeping = match &result {
        Ok(Outcome::Succeeded { .. }) => false,
        Ok(_) => true,
        Err(error) => matches!(error, LaunchError::Console { .. }),
    };
    if is_worth_keeping {
        guard.keep_logs();
        logs.keep();
    }
    result
}

fn run_with_logs(
    job: &Job,
    screen: &Screen,
    logs: &LogDirectory,
    runtime: &RuntimeFolder,
    guard: &mut Guard,
) -> Result<Outcome> {
    if logs.is_temporary {
        screen.log(&format!("log files are in {}", logs.path().display()))?;
    }
    say_what_is_in_clear(job, screen)?;
    let tasks = job.tasks(job.workers_here());
    let memory = state_memory(job, screen)?;
    let spawner =
        Spawner::new(START_LIMIT).map_err(LaunchError::system("cannot start a thread"))?;
    let (events, received) = events::channel(tasks.len());
    ThreadScope::run(|threads| {
        let _signals = if job.handles_signals {
            Some(SignalWatch::start(threads, events.clone())?)
        } else {
            None
        };
        let relay = job.hosts.as_ref().filter(|hosts| hosts.index == 0);
        // Dropped after the session, whose connection to it says good-bye first.
        let relay = relay
            .map(|hosts| Relay::start(threads, hosts, terms(job, hosts), &received, screen))
            .transpose()?;
        if let Some(WaitOutcome::Stopped(signal)) = relay {
            let restarts = 0;
            return Ok(Outcome::Stopped { signal, restarts });
        }
        let (own_membership, group_membership) = memberships(job);
        let joined = job
            .hosts
            .as_ref()
            .map(|hosts| {
                let own = HostSetup {
                    terms: terms(job, hosts),
                    part: part(job),
                    membership: group_membership,
                    return_time: return_time(job, hosts),
                };
                let hosts = hosts.clone().ports(job.ports.clone());
                LauncherGroup::join(threads, &hosts, own, &events, &received, screen)
            })
            .transpose()?;
        let group = match joined {
            Some(WaitOutcome::Done(group)) => Some(group),
            Some(WaitOutcome::Stopped(signal)) => {
                let restarts = 0;
                return Ok(Outcome::Stopped { signal, restarts });
            }
            Some(WaitOutcome::HostLost) | None => None,
        };
        let mut session = Session {
            job,
            membership: own_membership,
            screen,
            logs,
            runtime,
            memory: &memory,
            spawner: &spawner,
            guard,
            group,
            events,
            received,
            interrupted: None,
            signals: 0,
        };
        let outcome = attempts::run(&mut session)?;
        if let Some(group) = &session.group {
            group.leave();
        }
        Ok(outcome)
    })
}

/// The memory that outlives the workers; where there is none, says so.
fn state_memory(job: &Job, screen: &Screen) -> Result<StateMemory> {
    StateMemory::new(job.workers_here()).or_else(|error| {
        screen.log(&format!(
            "warning: no memory outlives the workers, as --replicate-state needs it: {error}"
        ))?;
        Ok(StateMemory::default())
    })
}

/// Says once that others can read and change what the launchers tell each other, if that is so.
fn say_what_is_in_clear(job: &Job, screen: &Screen) -> Result<()> {
    let hosts = job.hosts.as_ref().filter(|hosts| hosts.count > 1);
    let text = hosts.and_then(|hosts| {
        let what = "addresses of processes, how they ended, their last lines";
        hosts.security.clear_text(hosts.address, what)
    });
    match text {
        Some(text) => screen.log(&format!("warning: the launchers are {text}")),
        None => Ok(()),
    }
}

/// What all launchers of a job must have alike.
fn terms(job: &Job, hosts: &Hosts) -> Terms {
    Terms {
        hosts: hosts.count,
        restarts_max: job.restarts_max,
        workers: job.is_elastic().then_some(job.workers),
        host_timeout: hosts.timeout,
    }
}

/// What this host brings.
fn part(job: &Job) -> Part {
    Part {
        workers: job.workers_here(),
        parameter_servers: job.parameter_servers,
        has_evaluator: job.has_evaluator,
    }
}

/// How long a host that was cut off looks for host 0 again: as long as host 0 waits for it.
fn return_time(job: &Job, hosts: &Hosts) -> Option<Duration> {
    let time = if job.is_elastic() {
        job.shrink_after
    } else {
        hosts.join_timeout
    };
    (hosts.index > 0 && job.restarts_max > 0).then_some(time)
}

/// The state machine that decides who takes part. The first one is for a job on this host alone;
/// the second one is for the group of launchers and exists on host 0 only.
fn memberships(job: &Job) -> (Option<TimedMembership>, Option<TimedMembership>) {
    let Some(hosts) = &job.hosts else {
        let membership = TimedMembership::new(Rules {
            workers: job.workers,
            hosts: 1,
            restarts_max: job.restarts_max,
            shrink_after: job.shrink_after,
            join_timeout: Duration::ZERO,
        });
        return (Some(membership), None);
    };
    // A job that is not elastic needs all of its hosts, whatever they start: each counts as one.
    let all = WorkerRange {
        least: hosts.count,
        most: hosts.count,
    };
    let (workers, shrink_after) = if job.is_elastic() {
        (job.workers, job.shrink_after)
    } else {
        (all, hosts.join_timeout)
    };
    let membership = TimedMembership::new(Rules {
        workers,
        hosts: hosts.count,
        restarts_max: job.restarts_max,
        shrink_after,
        join_timeout: hosts.join_timeout,
    });
    (None, (hosts.index == 0).then_some(membership))
}
