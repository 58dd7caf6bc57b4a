//! Runs a job to its end, restarts included.

mod attempt;
mod attempts;
mod pause;
mod progress;
mod session;
mod signals;
mod start;

use std::time::Duration;

use crate::error::{LaunchError, Result};
use crate::events;
use crate::hosts::group::LauncherGroup;
use crate::hosts::part::Part;
use crate::hosts::relay::Relay;
use crate::hosts::wait::WaitOutcome;
use crate::hosts::wire::Terms;
use crate::job::Job;
use crate::job::hosts::Hosts;
use crate::job::workers::WorkerRange;
use crate::membership::Rules;
use crate::membership::lead::Lead;
use crate::process::guard::Guard;
use crate::process::logs::{LogDirectory, LogPlace};
use crate::process::memory::StateMemory;
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
/// All threads that it starts have ended when it returns. The processes die with the calling
/// thread (on Linux), so call it from one that lives as long as the program should.
///
/// # Errors
///
/// [`LaunchError`] when the job cannot be started or watched. A process that fails is an
/// [`Outcome`].
pub fn run(job: &Job, console: &mut Console<'_>) -> Result<Outcome> {
    job.check()?;
    let screen = Screen::new(console);
    let place = LogPlace::new(job.log_directory.as_deref())?;
    // There before the directory is and until it is gone: it removes what a killed launcher leaves.
    let mut guard = Guard::start(job.guard.as_deref(), place.temporary())?;
    let logs = place.make()?;
    let result = run_with_logs(job, &screen, &logs, &mut guard);
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
    screen: &Screen<'_>,
    logs: &LogDirectory,
    guard: &mut Guard,
) -> Result<Outcome> {
    if logs.is_temporary {
        screen.log(&format!("log files are in {}", logs.path().display()))?;
    }
    say_what_is_in_clear(job, screen)?;
    let tasks = job.tasks(job.workers_here());
    let memory = StateMemory::new(job.workers_here()).or_else(|error| {
        screen.log(&format!(
            "warning: no memory outlives the workers, as --replicate-state needs it: {error}"
        ))?;
        Ok::<_, LaunchError>(StateMemory::default())
    })?;
    let (events, received) = events::channel(tasks.len());
    ThreadScope::run(|threads| {
        let _signals = match job.handles_signals {
            true => Some(SignalWatch::start(threads, events.clone())?),
            false => None,
        };
        let relay = job.hosts.as_ref().filter(|hosts| hosts.index == 0);
        // Dropped after the session, whose connection to it says good-bye first.
        let waiting = (&received, screen);
        let relay = relay
            .map(|hosts| Relay::start(threads, hosts, terms(job, hosts), waiting))
            .transpose()?;
        if let Some(WaitOutcome::Stopped(signal)) = relay {
            let restarts = 0;
            return Ok(Outcome::Stopped { signal, restarts });
        }
        let (lead, led) = lead(job);
        let joined = job
            .hosts
            .as_ref()
            .map(|hosts| {
                let waiting = (&received, screen);
                let own = ((terms(job, hosts), part(job)), led, return_time(job, hosts));
                LauncherGroup::join(threads, hosts, own, &events, waiting)
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
            lead,
            screen,
            logs,
            memory: &memory,
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

/// Says once that others can read and change what the launchers tell each other, if that is so.
fn say_what_is_in_clear(job: &Job, screen: &Screen<'_>) -> Result<()> {
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
    let time = match job.is_elastic() {
        true => job.shrink_after,
        false => hosts.join_timeout,
    };
    (hosts.index > 0 && job.restarts_max > 0).then_some(time)
}

/// Who says which members take part: this launcher for itself; in a job on several hosts that of
/// host 0 for all, which is the second one.
fn lead(job: &Job) -> (Option<Lead>, Option<Lead>) {
    let Some(hosts) = &job.hosts else {
        let lead = Lead::new(Rules {
            workers: job.workers,
            hosts: 1,
            restarts_max: job.restarts_max,
            shrink_after: job.shrink_after,
            join_timeout: Duration::ZERO,
        });
        return (Some(lead), None);
    };
    // Of a job that is not elastic no host can be done without, whatever it starts: each counts as
    // one.
    let all = WorkerRange {
        least: hosts.count,
        most: hosts.count,
    };
    let (workers, shrink_after) = match job.is_elastic() {
        true => (job.workers, job.shrink_after),
        false => (all, hosts.join_timeout),
    };
    let lead = Lead::new(Rules {
        workers,
        hosts: hosts.count,
        restarts_max: job.restarts_max,
        shrink_after,
        join_timeout: hosts.join_timeout,
    });
    (None, (hosts.index == 0).then_some(lead))
}
