//! Runs a job to its end, restarts included.

mod attempt;
mod session;
mod signals;
mod start;

use crate::error::{LaunchError, Result};
use crate::events::{self, Event};
use crate::hosts::group::LauncherGroup;
use crate::hosts::relay::Relay;
use crate::hosts::wait::WaitOutcome;
use crate::job::Job;
use crate::process::guard::Guard;
use crate::process::logs::{LogDirectory, LogPlace};
use crate::report::attempt::AttemptResult;
use crate::report::console::{Console, Screen};
use crate::report::outcome::{Outcome, RootCause, WRONG_USAGE};
use crate::report::verdict::Verdict;
use crate::run::session::Session;
use crate::run::signals::SignalWatch;
use crate::thread_scope::ThreadScope;

/// Runs a job to its end, restarts included. Blocks until no process of it is left.
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
        Err(error) => matches!(
            error,
            LaunchError::LogWrite { .. } | LaunchError::Console { .. }
        ),
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
    let tasks = job.tasks();
    let (events, received) = events::channel(tasks.len());
    ThreadScope::run(|threads| {
        let _signals = match job.handles_signals {
            true => Some(SignalWatch::start(threads, events.clone())?),
            false => None,
        };
        let relay = job.hosts.as_ref().filter(|hosts| hosts.index == 0);
        // Dropped after the session, whose connection to it says good-bye first.
        let _relay = relay
            .map(|hosts| Relay::start(threads, hosts, job.restarts_max))
            .transpose()?;
        let joined = job
            .hosts
            .as_ref()
            .map(|hosts| {
                let waiting = (&received, screen);
                LauncherGroup::join(threads, hosts, job.restarts_max, &events, waiting)
            })
            .transpose()?;
        let group = match joined {
            Some(WaitOutcome::Done(group)) => Some(group),
            Some(WaitOutcome::Stopped(signal)) => {
                let restarts = 0;
                return Ok(Outcome::Stopped { signal, restarts });
            }
            None => None,
        };
        let mut session = Session {
            job,
            tasks,
            screen,
            logs,
            guard,
            group,
            events,
            received,
            interrupted: None,
            signals: 0,
        };
        let outcome = attempts(&mut session)?;
        if let Some(group) = &session.group {
            group.leave();
        }
        Ok(outcome)
    })
}

/// Starts the job until it is not to be started again.
fn attempts(session: &mut Session<'_, '_>) -> Result<Outcome> {
    let restarts_max = session.job.restarts_max;
    let mut restarts = 0;
    loop {
        let mut ended = match attempt::run(session, restarts)? {
            WaitOutcome::Done(ended) => ended,
            WaitOutcome::Stopped(signal) => return Ok(Outcome::Stopped { signal, restarts }),
        };
        if let Some(group) = &mut session.group {
            let whole = group.gather(ended, &session.received)?;
            (ended, session.interrupted) = whole;
        }
        let outcome = outcome(&ended, restarts, session.interrupted, session.screen)?;
        if session.group.is_none() {
            take_signals(session);
        }
        let may_help = match &outcome {
            Outcome::Preempted { .. } => true,
            Outcome::Failed { cause, .. } => cause.ending != WRONG_USAGE,
            Outcome::Succeeded { .. } | Outcome::Stopped { .. } => false,
        };
        if !may_help || session.interrupted.is_some() || restarts == restarts_max {
            return Ok(outcome);
        }
        restarts += 1;
        let reason = match &outcome {
            Outcome::Preempted { .. } => "the processes have saved and stopped; ",
            _ => "",
        };
        let note =
            format!("{reason}starting all of them again, restart {restarts} of {restarts_max}");
        session.screen.log(&note)?;
    }
}

fn outcome(
    ended: &AttemptResult,
    restarts: u32,
    interrupted: Option<i32>,
    screen: &Screen<'_>,
) -> Result<Outcome> {
    Ok(match (ended.verdict, interrupted) {
        (Verdict::Succeeded, _) => Outcome::Succeeded { restarts },
        (Verdict::Stopped, Some(signal)) => Outcome::Stopped { signal, restarts },
        (Verdict::Preempted | Verdict::Stopped, _) => Outcome::Preempted { restarts },
        (Verdict::Failed(index), _) => {
            let cause: Option<RootCause> = ended.root_cause(index);
            let Some(cause) = cause else {
                return Ok(Outcome::Preempted { restarts });
            };
            screen.log(&ended.describe(index, &cause))?;
            let cause = Box::new(cause);
            Outcome::Failed { cause, restarts }
        }
    })
}

/// Signals that came after the last process had ended.
fn take_signals(session: &mut Session<'_, '_>) {
    while let Ok(event) = session.received.try_recv() {
        if let Event::Signal(signal) = event {
            session.interrupted.get_or_insert(signal);
        }
    }
}
