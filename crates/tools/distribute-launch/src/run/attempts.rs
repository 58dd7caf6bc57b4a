//! Starts a job again and again until it is over.

use std::time::Instant;

use crate::error::{LaunchError, Result};
use crate::events::Event;
use crate::hosts::wait::WaitOutcome;
use crate::job::Job;
use crate::job::hosts;
use crate::job::task::Role;
use crate::membership::{AttemptEnd, Decision, End, Fault, Plan};
use crate::posts::{Instruction, JobEnd};
use crate::report::attempt::AttemptResult;
use crate::report::outcome::{Ending, Outcome, REFUSED_EXIT_CODE};
use crate::report::verdict::Verdict;
use crate::run::attempt;
use crate::run::pause::{self, Pauses};
use crate::run::session::Session;

/// What comes after an attempt.
enum Next {
    Start(Plan),
    End(Outcome),
}

/// The last attempt and its outcome; `None` if it ended early because a host was lost.
struct Last {
    plan: Plan,
    outcome: Option<Outcome>,
}

/// Starts the job, again and again, until it is over.
pub fn run(session: &mut Session<'_>) -> Result<Outcome> {
    let mut last: Option<Last> = None;
    let mut pauses = Pauses::default();
    loop {
        let plan = match next(session, last.as_ref())? {
            Next::Start(plan) => plan,
            Next::End(outcome) => {
                if let Some(last) = &last {
                    say_why_no_restart(session, &last.plan, &outcome)?;
                }
                if let Some(last) = last.filter(|_| session.job.is_elastic()) {
                    say_how_it_ended(session, &last.plan, &outcome)?;
                }
                return Ok(outcome);
            }
        };
        let pause = pauses.next(session.job.restart_pause);
        if let Some(mut note) = change(session.job, last.as_ref(), &plan) {
            if !pause.is_zero() {
                note += &format!(", in {} s", pause.as_secs_f64());
            }
            session.screen.log(&note)?;
        }
        let restarts = plan.start;
        if let Some(signal) = pause::wait(session, &plan, pause)? {
            return Ok(Outcome::Stopped { signal, restarts });
        }
        let begun = Instant::now();
        let places = session.places(&plan);
        let ended = attempt::run(session, &plan, &places)?;
        let (outcome, end) = match ended {
            WaitOutcome::Stopped(signal) => return Ok(Outcome::Stopped { signal, restarts }),
            WaitOutcome::HostLost => (None, AttemptEnd::HostLost),
            WaitOutcome::Done(ended) => judge(session, ended, restarts)?,
        };
        let failure = match &outcome {
            Some(Outcome::Failed { cause, .. }) => Some((cause.task, cause.ending)),
            _ => None,
        };
        pauses.ended(begun.elapsed(), failure);
        if end == AttemptEnd::HostLost {
            say_who_is_lost(session, &plan)?;
        }
        if let (Some(_), Some(outcome)) = (session.interrupted, &outcome) {
            return Ok(outcome.clone());
        }
        if let Some(signal) = session.leaving() {
            return Ok(outcome.unwrap_or(Outcome::Stopped { signal, restarts }));
        }
        if let Some(why) = session.dropped().map(str::to_owned) {
            if let Some(group) = &session.group {
                group.leave();
            }
            return Err(LaunchError::HostDropped { why });
        }
        let refused = session.ended(end);
        if !refused.is_empty() {
            session.screen.log(&format!(
                "the job cannot go on with the hosts {refused:?} (counted from 0), which came \
                 last, as the failure above says; it goes on without them"
            ))?;
        }
        last = Some(Last { plan, outcome });
    }
}

fn next(session: &mut Session<'_>, last: Option<&Last>) -> Result<Next> {
    let outcome = last.and_then(|last| last.outcome.as_ref());
    let counts = last.map(|last| last.plan.counts.restarts);
    if let Some(membership) = &mut session.membership {
        return match (membership.decide().0, outcome) {
            (Decision::Start(plan), _) => Ok(Next::Start(plan)),
            (Decision::End(End::TooFew { missing, left }), _) => {
                Err(too_few(session, counts, missing, left))
            }
            (_, Some(outcome)) => Ok(Next::End(outcome.clone())),
            // This host is always there, so there is nothing to wait for before a start.
            (_, None) => Err(too_few(session, counts, Vec::new(), 0)),
        };
    }
    let restarts = last.map_or(0, |last| last.plan.start);
    let instruction = match &mut session.group {
        Some(group) => group.next(outcome, &session.received, session.screen)?,
        None => return Err(too_few(session, counts, Vec::new(), 0)),
    };
    match instruction {
        WaitOutcome::Done(Instruction::Start(plan)) => Ok(Next::Start(plan)),
        WaitOutcome::Done(Instruction::JobEnd(JobEnd::Outcome(outcome))) => Ok(Next::End(outcome)),
        WaitOutcome::Done(Instruction::JobEnd(JobEnd::TooFew { missing, left })) => {
            Err(too_few(session, counts, missing, left))
        }
        WaitOutcome::Stopped(signal) => Ok(Next::End(Outcome::Stopped { signal, restarts })),
        WaitOutcome::HostLost => Err(LaunchError::HostLost { host: 0 }),
    }
}

/// Reports the hosts that the attempt of this plan has lost, and the wait for them.
fn say_who_is_lost(session: &Session<'_>, plan: &Plan) -> Result<()> {
    let (Some(group), Some(hosts)) = (&session.group, &session.job.hosts) else {
        return Ok(());
    };
    let lost: Vec<usize> = group.posts.lost().iter().copied().collect();
    let most = session.job.restarts_max;
    let used = plan.counts.restarts;
    let mut text = format!("the launchers of the hosts {lost:?} (counted from 0) are out of reach");
    if !session.job.is_elastic() && used < most {
        text += &format!(
            "; waiting for them for up to {} s (restarts used: {used} of {most})",
            hosts.join_timeout.as_secs()
        );
    }
    if let Some(looks) = group.describe_search(&lost) {
        text += &format!(", {looks}");
    }
    if hosts.count == 2 {
        text += "; it is unknown which of the two hosts is cut off";
    }
    session.screen.log(&text)
}

/// The error of a job with too few hosts or workers; `restarts` were used, if it was started.
fn too_few(
    session: &Session<'_>,
    restarts: Option<u32>,
    missing: Vec<usize>,
    left: usize,
) -> LaunchError {
    let (job, first) = (session.job, missing.first().copied());
    let fixed = job.hosts.as_ref().filter(|_| !job.is_elastic());
    match (fixed, restarts) {
        (Some(hosts), None) => hosts.missing(missing),
        (Some(hosts), Some(used)) if used < job.restarts_max => LaunchError::HostStaysAway {
            hosts: missing,
            waited: hosts.join_timeout,
            restarts: Some((used, job.restarts_max)),
            tried: None,
            option: hosts::JOIN_TIMEOUT_OPTION,
        },
        (Some(_), Some(used)) => {
            let most = job.restarts_max;
            // A write error is noticed elsewhere.
            let _unread = session.screen.log(&format!(
                "the hosts {missing:?} (counted from 0) were lost, and no restart is left for \
                 which they could come again (used: {used} of {most})"
            ));
            let host = first.unwrap_or_default();
            LaunchError::HostLost { host }
        }
        (None, _) => LaunchError::TooFewWorkers {
            missing,
            left,
            least: job.workers.least,
        },
    }
}

/// The outcome of an attempt, on all its hosts.
fn judge(
    session: &mut Session<'_>,
    mut ended: AttemptResult,
    restarts: u32,
) -> Result<(Option<Outcome>, AttemptEnd)> {
    if let Some(group) = &mut session.group {
        let grace = session.job.grace;
        let whole = group.gather(ended, grace, &session.received, session.screen)?;
        (ended, session.interrupted) = whole;
    }
    let saved = (Outcome::Preempted { restarts }, AttemptEnd::Saved);
    let (outcome, end) = match (ended.verdict, session.interrupted) {
        (Verdict::Succeeded, _) => (Outcome::Succeeded { restarts }, AttemptEnd::Succeeded),
        (Verdict::Stopped | Verdict::HostLost, Some(signal)) => {
            (Outcome::Stopped { signal, restarts }, AttemptEnd::Saved)
        }
        (Verdict::HostLost, None) => return Ok((None, AttemptEnd::HostLost)),
        (Verdict::Preempted | Verdict::Stopped, _) => saved,
        (Verdict::Failed(index), _) => match ended.root_cause(ended.cause(index)) {
            Some(cause) => {
                session
                    .screen
                    .log(&ended.describe(ended.cause(index), &cause))?;
                // Only an elastic job goes on without a worker.
                let rank = ended.lost_rank(index).filter(|_| session.job.is_elastic());
                let refusal = Ending::Exit(i32::from(REFUSED_EXIT_CODE));
                let fault = match cause.ending {
                    ending if ending == refusal => Fault::Refused(ended.ranks_ended(refusal)),
                    ending if ending.is_final() => Fault::Final,
                    _ => Fault::MayPass,
                };
                let end = AttemptEnd::Failed { rank, fault };
                let cause = Box::new(cause);
                (Outcome::Failed { cause, restarts }, end)
            }
            None => saved,
        },
    };
    if session.group.is_none() {
        take_signals(session);
    }
    Ok((Some(outcome), end))
}

/// A message about what has changed since the last start.
fn change(job: &Job, last: Option<&Last>, plan: &Plan) -> Option<String> {
    let Some(last) = last else {
        let note = format!("this host joins the job at its restart {}", plan.start);
        return (plan.start > 0).then_some(note);
    };
    let reason = match last.outcome {
        Some(Outcome::Preempted { .. }) => "the processes have stopped and saved what they had; ",
        _ => "",
    };
    let (before, now, most) = (last.plan.counts, plan.counts, job.restarts_max);
    let (restarts, shrinks, growths) = (now.restarts, now.shrinks, now.growths);
    let note = if !job.is_elastic() && last.outcome.is_none() {
        format!(
            "all hosts are there again: starting all of them again, restart {restarts} of {most}"
        )
    } else if (before.shrinks, before.growths) != (shrinks, growths) {
        format!(
            "going on with {} workers instead of {} (shrink {shrinks}, growth {growths}, \
             restart {restarts} of {most})",
            plan.workers(),
            last.plan.workers()
        )
    } else if before.restarts != restarts {
        format!("starting all of them again, restart {restarts} of {most}")
    } else {
        "starting all of them again".to_owned()
    };
    Some(format!("{reason}{note}"))
}

/// Reports why a job is over although restarts are left.
fn say_why_no_restart(session: &Session<'_>, plan: &Plan, outcome: &Outcome) -> Result<()> {
    match outcome {
        Outcome::Failed { cause, .. }
            if cause.ending.is_final() && plan.counts.restarts < session.job.restarts_max =>
        {
            let ending = cause.ending;
            session.screen.log(&format!(
                "{ending}; another start would end in the same way, so none is made"
            ))
        }
        _ => Ok(()),
    }
}

/// Reports why an elastic job is over, and how often it was restarted.
fn say_how_it_ended(session: &Session<'_>, plan: &Plan, outcome: &Outcome) -> Result<()> {
    let (least, most) = (session.job.workers.least, session.job.restarts_max);
    if let Outcome::Failed { cause, .. } = outcome
        && !cause.ending.is_final()
    {
        let mut text = format!("no restart of {most} is left");
        // With more workers the job would have gone on without this worker; it never goes on
        // without another process.
        if cause.task.role == Role::Worker && plan.workers() <= least {
            text += &format!(", and the job needs at least {least} workers");
        }
        session.screen.log(&text)?;
    }
    let counts = plan.counts;
    session.screen.log(&format!(
        "workers at the end: {}; restarts: {}, shrinks: {}, growths: {}",
        plan.workers(),
        counts.restarts,
        counts.shrinks,
        counts.growths
    ))
}

/// Handles signals that came after the last process had ended.
fn take_signals(session: &mut Session<'_>) {
    while let Ok(event) = session.received.try_recv() {
        if let Event::Signal(signal) = event {
            session.interrupted.get_or_insert(signal);
        }
    }
}
