//! Who takes part in a job, from start to start: a state machine without processes, sockets and
//! clocks.
//!
//! The machine is told which launchers come and go and how each attempt ended, and says what
//! happens next. A start has a [`Plan`]: the hosts, and of each host the places of its workers. A
//! worker that is lost for good loses its place; a launcher that comes brings all places of its
//! host. Time is what has passed since the job began.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::workers::WorkerRange;

pub mod lead;

/// What a job allows.
#[derive(Debug, Clone)]
pub struct Rules {
    pub workers: WorkerRange,
    /// How many launchers the job has when all are there.
    pub hosts: usize,
    pub restarts_max: u32,
    /// How long a launcher is waited for that is missing while enough others are there.
    pub shrink_after: Duration,
    /// How long the job waits, at its beginning, for enough launchers.
    pub join_timeout: Duration,
}

/// The places of the workers by host: a place is a number below the host's share.
pub type Places = BTreeMap<usize, Vec<usize>>;

/// One start of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How often the job was started before.
    pub start: u32,
    pub places: Places,
    pub counts: Counts,
}

impl Plan {
    pub fn workers(&self) -> usize {
        workers(&self.places)
    }

    /// The host and the place of a worker: ranks go through the hosts in order.
    pub fn place_of(&self, rank: usize) -> Option<(usize, usize)> {
        let of_host = |(host, places): (&usize, &Vec<usize>)| {
            let host = *host;
            places.clone().into_iter().map(move |place| (host, place))
        };
        self.places.iter().flat_map(of_host).nth(rank)
    }
}

/// Why a job was started again, counted for the whole job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Starts after a failure or an unasked save, with the same workers.
    pub restarts: u32,
    /// Starts with fewer workers.
    pub shrinks: u32,
    /// Starts with more workers.
    pub growths: u32,
}

/// How an attempt ended, on all its hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptEnd {
    Succeeded,
    /// All workers have saved and stopped.
    Saved,
    /// A process failed.
    Failed {
        /// The worker without which the job may go on; none for another process.
        rank: Option<usize>,
        fault: Fault,
    },
    /// The launcher of a host of the plan is gone.
    HostLost,
}

/// What a failure says about another start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It may do better.
    MayPass,
    /// It would end in the same way.
    Final,
    /// The same, with these hosts: these workers were refused their command line, configuration or
    /// input. Whoever came last may be the reason for all.
    Refused(Vec<usize>),
}

/// What happens next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Start(Plan),
    /// Nothing, at most until then.
    Wait(Option<Duration>),
    End(End),
}

/// Why a job is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Succeeded,
    Preempted,
    /// Because of the process that failed in the last attempt.
    Failed,
    /// Launchers are missing, and the workers of the others are too few.
    TooFew {
        missing: Vec<usize>,
        left: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    /// Its launcher is there, with these places.
    Here(Vec<usize>),
    /// It is waited for until then.
    Awaited { until: Duration },
    /// The job goes on without it.
    GivenUp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// No process runs.
    Gathering,
    /// The processes of the last plan run, or are about to.
    Running {
        /// Whether they were told to save, for a launcher that waits or leaves.
        is_asked: bool,
    },
    /// A launcher of the plan is gone; the others stop their processes.
    Breaking,
    Over(End),
}

/// The members of a job.
#[derive(Debug)]
pub struct Membership {
    rules: Rules,
    hosts: Vec<Host>,
    phase: Phase,
    /// The places of the last plan.
    last: Option<Places>,
    counts: Counts,
    starts: u32,
    /// Whether a launcher of the last plan was lost and has come again.
    has_returned: bool,
    /// The hosts of the last plan that were not in the one before, or were lost too early in it.
    newcomers: Vec<usize>,
    /// Of these, the ones that were lost soon after the start.
    lost_early: Vec<usize>,
    /// When the last plan was made.
    started: Duration,
    /// How often the job could not go on with each host.
    misfits: Vec<u32>,
    /// The hosts that are to be told so.
    refused: Vec<usize>,
}

/// Workers that do not fit find that before their first step. A launcher does not see steps: for so
/// long after a start it takes a failure for one before the first step.
const EARLY: Duration = Duration::from_secs(60);

/// How often a host may come with which the job cannot go on.
const MISFITS_MAX: u32 = 3;

fn workers(places: &Places) -> usize {
    places.values().map(Vec::len).sum()
}

impl Membership {
    /// No launcher is there yet but that of host 0, which decides.
    pub fn new(rules: Rules) -> Membership {
        let until = rules.shrink_after.min(rules.join_timeout);
        let mut members = Membership {
            hosts: vec![Host::Awaited { until }; rules.hosts],
            misfits: vec![0; rules.hosts],
            rules,
            phase: Phase::Gathering,
            last: None,
            counts: Counts::default(),
            starts: 0,
            has_returned: false,
            newcomers: Vec::new(),
            lost_early: Vec::new(),
            started: Duration::ZERO,
            refused: Vec::new(),
        };
        members.came(0);
        members
    }

    /// The launcher of a host is there, for the first time or again.
    pub fn came(&mut self, host: usize) {
        let places = (0..self.rules.workers.share(self.rules.hosts, host)).collect();
        let Some(state) = self.hosts.get_mut(host) else {
            return;
        };
        if self.misfits[host] >= MISFITS_MAX {
            return self.refused.push(host);
        }
        let is_back = matches!(state, Host::Awaited { .. }) && self.last.is_some();
        self.has_returned |= is_back;
        *state = Host::Here(places);
    }

    /// The launcher of a host is about to leave; the workers are told to save and stop before.
    pub fn leaves(&mut self, host: usize, now: Duration) {
        let phase = self.phase.clone();
        self.goes(host, now);
        self.phase = match phase {
            Phase::Running { .. } => Phase::Running { is_asked: true },
            other => other,
        };
    }

    /// The launcher of a host is gone. One that came last, and is gone again soon after the start,
    /// could not begin: the others do not wait for it, and it does not come without end.
    pub fn lost(&mut self, host: usize, now: Duration) {
        let is_new = self.newcomers.contains(&host) && !self.lost_early.contains(&host);
        let is_early = now.saturating_sub(self.started) < EARLY;
        let is_here = matches!(self.hosts.get(host), Some(Host::Here(_)));
        self.goes(host, now);
        if is_new && is_early && is_here && workers(&self.here()) >= self.rules.workers.least {
            self.hosts[host] = Host::GivenUp;
            self.misfits[host] += 1;
            self.lost_early.push(host);
        }
    }

    fn goes(&mut self, host: usize, now: Duration) {
        let has_part = self
            .last
            .as_ref()
            .is_some_and(|last| last.contains_key(&host));
        let may_return = match &self.last {
            Some(_) => has_part && self.counts.restarts < self.rules.restarts_max,
            None => true,
        };
        let Some(state @ Host::Here(_)) = self.hosts.get_mut(host) else {
            return;
        };
        let until = now + self.rules.shrink_after;
        *state = match may_return {
            true => Host::Awaited { until },
            false => Host::GivenUp,
        };
        if has_part && matches!(self.phase, Phase::Running { .. }) {
            self.phase = Phase::Breaking;
        }
    }

    /// Whether the workers are to be told now to save and stop, because a launcher waits: once in
    /// an attempt.
    pub fn wants_save(&mut self) -> bool {
        let has_part = |host: &usize| {
            let last = self.last.as_ref();
            last.is_some_and(|last| last.contains_key(host))
        };
        let mut here = self.here().into_keys();
        let is_waiting = here.any(|host| !has_part(&host));
        match &mut self.phase {
            Phase::Running { is_asked } if is_waiting && !*is_asked => {
                *is_asked = true;
                true
            }
            _ => false,
        }
    }

    /// The attempt is over on all its hosts that are left.
    pub fn ended(&mut self, end: AttemptEnd, now: Duration) {
        let is_asked = self.phase == Phase::Running { is_asked: true };
        let is_broken = self.phase == Phase::Breaking;
        let may_restart = self.counts.restarts < self.rules.restarts_max;
        let over = match end {
            AttemptEnd::Succeeded => Some(End::Succeeded),
            AttemptEnd::Failed {
                fault: Fault::Refused(ranks),
                ..
            } if self.may_blame_newcomers(&ranks, now) && self.refuse_newcomers() => None,
            AttemptEnd::Failed {
                fault: Fault::Final | Fault::Refused(_),
                ..
            } => Some(End::Failed),
            // Whatever else happened follows from the loss, or from being stopped for a newcomer.
            _ if is_broken || is_asked => None,
            AttemptEnd::Saved if may_restart => self.restart(),
            AttemptEnd::Saved => Some(End::Preempted),
            AttemptEnd::Failed { .. } if may_restart => self.restart(),
            AttemptEnd::Failed { rank, .. } => match rank.is_some_and(|rank| self.give_up(rank)) {
                true => None,
                false => Some(End::Failed),
            },
            AttemptEnd::HostLost => None,
        };
        self.phase = over.map_or(Phase::Gathering, Phase::Over);
    }

    /// Whether the hosts that came last may be the reason why these workers were refused: the
    /// attempt has just begun, or one of their own workers is among them.
    fn may_blame_newcomers(&self, ranks: &[usize], now: Duration) -> bool {
        let plan = self.last_plan();
        let mut hosts = ranks.iter().filter_map(|rank| plan.place_of(*rank));
        let is_early = now.saturating_sub(self.started) < EARLY;
        is_early || hosts.any(|(host, _)| self.newcomers.contains(&host))
    }

    fn last_plan(&self) -> Plan {
        Plan {
            start: self.starts,
            places: self.last.clone().unwrap_or_default(),
            counts: self.counts,
        }
    }

    /// Goes on without the hosts that came last, if there are some and enough workers are left: who
    /// comes harms none of those that run.
    fn refuse_newcomers(&mut self) -> bool {
        let newcomers = std::mem::take(&mut self.newcomers);
        let mut others = self.here();
        others.retain(|host, _| !newcomers.contains(host));
        if newcomers.is_empty() || workers(&others) < self.rules.workers.least {
            return false;
        }
        for host in &newcomers {
            self.hosts[*host] = Host::GivenUp;
            self.misfits[*host] += 1;
        }
        self.refused.extend(newcomers);
        true
    }

    /// The hosts that are to be told that the job goes on without them.
    pub fn take_refused(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.refused)
    }

    fn restart(&mut self) -> Option<End> {
        self.counts.restarts += 1;
        None
    }

    /// Takes the place of a worker away, if enough workers are left.
    fn give_up(&mut self, rank: usize) -> bool {
        let Some((host, place)) = self.last_plan().place_of(rank) else {
            return false;
        };
        if let Some(Host::Here(places)) = self.hosts.get_mut(host) {
            places.retain(|one| *one != place);
        }
        workers(&self.here()) >= self.rules.workers.least
    }

    /// What happens next.
    pub fn decide(&mut self, now: Duration) -> Decision {
        match &self.phase {
            Phase::Over(end) => return Decision::End(end.clone()),
            Phase::Running { .. } | Phase::Breaking => return Decision::Wait(None),
            Phase::Gathering => {}
        }
        if let Some(until) = self.awaited(now) {
            return Decision::Wait(Some(until));
        }
        let places = self.here();
        let (left, least) = (workers(&places), self.rules.workers.least);
        if left >= least {
            return Decision::Start(self.start(places, now));
        }
        let is_beginning = self.last.is_none();
        if is_beginning && now < self.rules.join_timeout {
            return Decision::Wait(Some(self.rules.join_timeout));
        }
        let missing = self.hosts.iter().enumerate();
        let missing = missing.filter(|(_, host)| !matches!(host, Host::Here(_)));
        let missing = missing.map(|(host, _)| host).collect();
        let end = End::TooFew { missing, left };
        self.phase = Phase::Over(end.clone());
        Decision::End(end)
    }

    /// Until when a launcher is waited for; those whose time is over are given up.
    fn awaited(&mut self, now: Duration) -> Option<Duration> {
        for host in &mut self.hosts {
            if matches!(host, Host::Awaited { until } if *until <= now) {
                *host = Host::GivenUp;
            }
        }
        let until = self.hosts.iter().filter_map(|host| match host {
            Host::Awaited { until } => Some(*until),
            _ => None,
        });
        until.min()
    }

    /// The places of the launchers that are there: of host 0, which decides, also if it has none.
    fn here(&self) -> Places {
        let hosts = self.hosts.iter().enumerate();
        let here = hosts.filter_map(|(host, state)| match state {
            Host::Here(places) if host == 0 || !places.is_empty() => Some((host, places.clone())),
            _ => None,
        });
        here.collect()
    }

    fn start(&mut self, places: Places, now: Duration) -> Plan {
        if let Some(last) = &self.last {
            let has = |places: &Places, host: &usize, place: &usize| {
                places.get(host).is_some_and(|own| own.contains(place))
            };
            let exceeds = |more: &Places, less: &Places| {
                let mut all = more.iter();
                all.any(|(host, own)| own.iter().any(|place| !has(less, host, place)))
            };
            self.counts.shrinks += u32::from(exceeds(last, &places));
            self.counts.growths += u32::from(exceeds(&places, last));
            self.counts.restarts += u32::from(std::mem::take(&mut self.has_returned));
            let early = std::mem::take(&mut self.lost_early);
            let is_new = |host: &&usize| !last.contains_key(host) || early.contains(host);
            self.newcomers = places.keys().filter(is_new).copied().collect();
        }
        let plan = Plan {
            start: self.starts,
            places: places.clone(),
            counts: self.counts,
        };
        self.starts += 1;
        self.started = now;
        self.last = Some(places);
        self.phase = Phase::Running { is_asked: false };
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(ranks: &[usize]) -> AttemptEnd {
        AttemptEnd::Failed {
            rank: ranks.first().copied(),
            fault: Fault::Refused(ranks.to_vec()),
        }
    }

    fn machine(workers: WorkerRange, hosts: usize, restarts_max: u32) -> Membership {
        let wait = Duration::from_secs(10);
        Membership::new(Rules {
            workers,
            hosts,
            restarts_max,
            shrink_after: wait,
            join_timeout: wait,
        })
    }

    fn hosts(decision: Decision) -> Vec<usize> {
        match decision {
            Decision::Start(plan) => plan.places.into_keys().collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_host_that_does_not_fit_harms_none_of_those_that_run() {
        let mut members = machine(WorkerRange { least: 1, most: 4 }, 2, 0);
        let late = Duration::from_secs(11);
        assert_eq!(hosts(members.decide(late)), [0]);
        for _time in 0..MISFITS_MAX {
            members.came(1);
            assert!(members.wants_save() && members.take_refused().is_empty());
            members.ended(AttemptEnd::Saved, late);
            assert_eq!(hosts(members.decide(late)), [0, 1]);
            members.ended(refused(&[1]), late);
            assert_eq!(members.take_refused(), [1]);
            assert_eq!(hosts(members.decide(late)), [0]);
            members.lost(1, late);
        }
        members.came(1);
        assert!(!members.wants_save(), "nobody is disturbed any more");
        assert_eq!(members.take_refused(), [1]);
        // Those that were there before have no excuse.
        members.ended(refused(&[1]), late);
        assert_eq!(members.decide(late), Decision::End(End::Failed));
    }

    /// Host 0 with ranks 0 and 1, host 1, which came last, with ranks 2 and 3.
    fn joined(restarts_max: u32, late: Duration) -> Membership {
        let mut members = machine(WorkerRange { least: 1, most: 4 }, 2, restarts_max);
        assert_eq!(hosts(members.decide(late)), [0]);
        members.came(1);
        assert!(members.wants_save());
        members.ended(AttemptEnd::Saved, late);
        assert_eq!(hosts(members.decide(late)), [0, 1]);
        members
    }

    #[test]
    fn who_came_last_is_blamed_for_what_may_be_the_reason_and_for_nothing_else() {
        let late = Duration::from_secs(11);
        let diverged = AttemptEnd::Failed {
            rank: Some(3),
            fault: Fault::Final,
        };
        for (end, after, is_blamed) in [
            (refused(&[0]), 1, true),
            (refused(&[0]), 3600, false),
            (refused(&[0, 3]), 3600, true),
            (diverged, 1, false),
        ] {
            let mut members = joined(0, late);
            let after = late + Duration::from_secs(after);
            members.ended(end.clone(), after);
            let refused = members.take_refused();
            assert_eq!(refused == [1], is_blamed, "{end:?} {after:?}");
            let decision = members.decide(after);
            assert_eq!(
                decision == Decision::End(End::Failed),
                !is_blamed,
                "{end:?}"
            );
        }
    }

    /// Whoever starts its launcher again and again.
    #[test]
    fn a_host_that_comes_and_cannot_start_costs_no_restart_and_is_refused_at_last() {
        let late = Duration::from_secs(11);
        for is_quick in [false, true] {
            let mut members = joined(2, late);
            for time in 1..=MISFITS_MAX {
                members.lost(1, late);
                if is_quick {
                    members.came(1);
                }
                members.ended(AttemptEnd::HostLost, late);
                if time < MISFITS_MAX {
                    if !is_quick {
                        assert_eq!(hosts(members.decide(late)), [0]);
                        members.came(1);
                        assert!(members.wants_save());
                        members.ended(AttemptEnd::Saved, late);
                    }
                    assert_eq!(hosts(members.decide(late)), [0, 1]);
                }
            }
            let Decision::Start(plan) = members.decide(late) else {
                panic!("no start");
            };
            assert_eq!(plan.places.len(), 1);
            assert_eq!(plan.counts.restarts, 0);
            members.came(1);
            assert!(!members.wants_save(), "nobody is disturbed any more");
            assert_eq!(members.take_refused().last(), Some(&1));
        }
        // One that has run for a while is waited for, and that is a restart.
        let mut members = joined(2, late);
        let later = late + EARLY;
        members.lost(1, later);
        members.ended(AttemptEnd::HostLost, later);
        assert!(matches!(members.decide(later), Decision::Wait(Some(_))));
        members.came(1);
        let Decision::Start(plan) = members.decide(later) else {
            panic!("no start");
        };
        assert_eq!(plan.counts.restarts, 1);
    }

    #[test]
    fn a_job_that_needs_all_hosts_waits_for_a_lost_one_as_long_as_restarts_are_left() {
        let all = WorkerRange { least: 3, most: 3 };
        let mut members = machine(all, 3, 1);
        let now = Duration::from_secs(1);
        (1..3).for_each(|host| members.came(host));
        assert_eq!(hosts(members.decide(now)), [0, 1, 2]);
        members.lost(1, now);
        members.ended(AttemptEnd::HostLost, now);
        let until = now + Duration::from_secs(10);
        assert_eq!(members.decide(now), Decision::Wait(Some(until)));
        members.came(1);
        let Decision::Start(plan) = members.decide(now) else {
            panic!("no start");
        };
        assert_eq!((plan.start, plan.counts.restarts), (1, 1));
        // No restart is left.
        members.lost(2, now);
        members.ended(AttemptEnd::HostLost, now);
        let end = End::TooFew {
            missing: vec![2],
            left: 2,
        };
        assert_eq!(members.decide(now), Decision::End(end));
    }
}
