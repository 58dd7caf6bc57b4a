//! Decides which hosts and workers take part in each start of a job: a state machine without
//! processes, sockets and clocks.
//!
//! The machine is told which launchers join and leave and how each attempt ended, and
//! decides what happens next. A start has a [`Plan`]: the hosts, and for each host the places of
//! its workers. A worker that is lost for good loses its place; a launcher that joins brings all
//! places of its host. Times are counted from the begin of the job.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::workers::WorkerRange;

pub mod timed;

/// The limits of a job.
#[derive(Debug, Clone)]
pub struct Rules {
    pub workers: WorkerRange,
    /// The number of launchers of the complete job.
    pub hosts: usize,
    pub restarts_max: u32,
    /// How long to wait for a missing launcher while enough others are there.
    pub shrink_after: Duration,
    /// How long the job waits, at its beginning, for enough launchers.
    pub join_timeout: Duration,
}

/// The places of the workers by host: a place is a number below the host's share.
pub type Places = BTreeMap<usize, Vec<usize>>;

/// One start of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How often the job had been started.
    pub start: u32,
    pub places: Places,
    pub counts: Counts,
}

impl Plan {
    pub fn workers(&self) -> usize {
        workers(&self.places)
    }

    /// The host and the place of a worker. Ranks are counted through the hosts in order.
    pub fn place_of(&self, rank: usize) -> Option<(usize, usize)> {
        let of_host = |(host, places): (&usize, &Vec<usize>)| {
            let host = *host;
            places.clone().into_iter().map(move |place| (host, place))
        };
        self.places.iter().flat_map(of_host).nth(rank)
    }
}

/// How often the job was started again, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Starts with the same workers, after a failure or a save that the launcher had not asked for.
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
        /// The worker that failed, without which the job may go on; `None` for another process.
        rank: Option<usize>,
        fault: Fault,
    },
    /// The launcher of a host of the plan is gone.
    HostLost,
}

/// What a failure means for another start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Another start may succeed.
    MayPass,
    /// Another start would end in the same way.
    Final,
    /// Another start with these hosts would end in the same way: the command line, configuration
    /// or input of these workers was refused. The hosts that joined last may be the cause.
    Refused(Vec<usize>),
}

/// What happens next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Start(Plan),
    /// Wait, at most until this time.
    Wait(Option<Duration>),
    End(End),
}

/// Why a job is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Succeeded,
    Preempted,
    /// A process failed in the last attempt.
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
    /// The job waits for it until this time.
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
        /// Whether they were told to save because a launcher waits or leaves.
        is_asked: bool,
    },
    /// A launcher of the plan is gone; the others stop their processes.
    Breaking,
    Ended(End),
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
    /// Whether a launcher of the last plan was lost and has joined again.
    has_returned: bool,
    /// The hosts of the last plan that were not in the one before, or were lost too early in it.
    newcomers: Vec<usize>,
    /// The newcomers that were lost soon after the start.
    lost_early: Vec<usize>,
    /// When the last plan was made.
    started: Duration,
    /// How often the job could not go on with each host.
    misfits: Vec<u32>,
    /// The hosts that are to be told that they do not fit.
    refused: Vec<usize>,
}

/// Workers that do not fit fail before their first step. A launcher does not see steps, so it takes
/// any failure this soon after a start for one before the first step.
const EARLY: Duration = Duration::from_secs(60);

/// How often a host that does not fit may join.
const MISFITS_MAX: u32 = 3;

fn workers(places: &Places) -> usize {
    places.values().map(Vec::len).sum()
}

impl Membership {
    /// Only the launcher of host 0 is there at first: it decides.
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
        members.note_arrival(0);
        members
    }

    /// The launcher of a host has joined, for the first time or again.
    pub fn note_arrival(&mut self, host: usize) {
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
    pub fn note_leaving(&mut self, host: usize, now: Duration) {
        let phase = self.phase.clone();
        self.drop_host(host, now);
        self.phase = match phase {
            Phase::Running { .. } => Phase::Running { is_asked: true },
            other => other,
        };
    }

    /// A worker of a host is slow for long. Returns whether the job goes on without the host, or
    /// without this place of it, for the rest of the job: enough workers are left then, and the
    /// running ones are to save and stop. Host 0 stays without its workers, as it decides.
    pub fn note_slow(&mut self, host: usize, place: Option<usize>) -> bool {
        let is_running = matches!(self.phase, Phase::Running { .. });
        let Some(Host::Here(own)) = self.hosts.get(host).filter(|_| is_running) else {
            return false;
        };
        let mut kept = own.clone();
        kept.retain(|one| place.is_some_and(|place| *one != place));
        let left = workers(&self.here()) - own.len() + kept.len();
        if own.is_empty() || left < self.rules.workers.least {
            return false;
        }
        self.hosts[host] = if kept.is_empty() && host > 0 {
            self.misfits[host] = MISFITS_MAX;
            Host::GivenUp
        } else {
            Host::Here(kept)
        };
        self.phase = Phase::Running { is_asked: true };
        true
    }

    /// The launcher of a host is gone. A newcomer that is gone soon after the start could not
    /// begin: the others do not wait for it, and it may not join again and again.
    pub fn note_loss(&mut self, host: usize, now: Duration) {
        let is_new = self.newcomers.contains(&host) && !self.lost_early.contains(&host);
        let is_early = now.saturating_sub(self.started) < EARLY;
        let is_here = matches!(self.hosts.get(host), Some(Host::Here(_)));
        self.drop_host(host, now);
        if is_new && is_early && is_here && workers(&self.here()) >= self.rules.workers.least {
            self.hosts[host] = Host::GivenUp;
            self.misfits[host] += 1;
            self.lost_early.push(host);
        }
    }

    fn drop_host(&mut self, host: usize, now: Duration) {
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
        *state = if may_return {
            Host::Awaited { until }
        } else {
            Host::GivenUp
        };
        if has_part && matches!(self.phase, Phase::Running { .. }) {
            self.phase = Phase::Breaking;
        }
    }

    /// Returns true once per attempt if the workers are to save and stop because a launcher
    /// waits.
    pub fn take_save_request(&mut self) -> bool {
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

    /// The attempt is over on all of its remaining hosts.
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
            // Other failures follow from the loss, or from being stopped for a newcomer.
            _ if is_broken || is_asked => None,
            AttemptEnd::Saved if may_restart => self.restart(),
            AttemptEnd::Saved => Some(End::Preempted),
            AttemptEnd::Failed { .. } if may_restart => self.restart(),
            AttemptEnd::Failed { rank, .. } => {
                if rank.is_some_and(|rank| self.give_up(rank)) {
                    None
                } else {
                    Some(End::Failed)
                }
            }
            AttemptEnd::HostLost => None,
        };
        self.phase = over.map_or(Phase::Gathering, Phase::Ended);
    }

    /// Whether the newcomers may be the reason why these workers were refused: the attempt
    /// has just begun, or a newcomer's worker is among them.
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

    /// Goes on without the newcomers, if there are some and enough workers are left: a newcomer
    /// must not harm the running job.
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
            Phase::Ended(end) => return Decision::End(end.clone()),
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
        let missing = self
            .hosts
            .iter()
            .enumerate()
            .filter(|(_, host)| !matches!(host, Host::Here(_)))
            .map(|(host, _)| host)
            .collect();
        let end = End::TooFew { missing, left };
        self.phase = Phase::Ended(end.clone());
        Decision::End(end)
    }

    /// Gives up launchers whose time is over. Returns until when to wait for the others.
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

    /// The places of the connected launchers. Host 0 is included even without places, as it
    /// decides.
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
            members.note_arrival(1);
            assert!(members.take_save_request() && members.take_refused().is_empty());
            members.ended(AttemptEnd::Saved, late);
            assert_eq!(hosts(members.decide(late)), [0, 1]);
            members.ended(refused(&[1]), late);
            assert_eq!(members.take_refused(), [1]);
            assert_eq!(hosts(members.decide(late)), [0]);
            members.note_loss(1, late);
        }
        members.note_arrival(1);
        assert!(!members.take_save_request(), "no further save is requested");
        assert_eq!(members.take_refused(), [1]);
        // The failure of an older host is not the newcomer's fault.
        members.ended(refused(&[1]), late);
        assert_eq!(members.decide(late), Decision::End(End::Failed));
    }

    /// Host 0 with ranks 0 and 1, host 1, which came last, with ranks 2 and 3.
    fn joined(restarts_max: u32, late: Duration) -> Membership {
        let mut members = machine(WorkerRange { least: 1, most: 4 }, 2, restarts_max);
        assert_eq!(hosts(members.decide(late)), [0]);
        members.note_arrival(1);
        assert!(members.take_save_request());
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

    /// A host whose launcher is started again and again.
    #[test]
    fn a_host_that_comes_and_cannot_start_costs_no_restart_and_is_refused_at_last() {
        let late = Duration::from_secs(11);
        for is_quick in [false, true] {
            let mut members = joined(2, late);
            for time in 1..=MISFITS_MAX {
                members.note_loss(1, late);
                if is_quick {
                    members.note_arrival(1);
                }
                members.ended(AttemptEnd::HostLost, late);
                if time < MISFITS_MAX {
                    if !is_quick {
                        assert_eq!(hosts(members.decide(late)), [0]);
                        members.note_arrival(1);
                        assert!(members.take_save_request());
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
            members.note_arrival(1);
            assert!(!members.take_save_request(), "no further save is requested");
            assert_eq!(members.take_refused().last(), Some(&1));
        }
        // The job waits for a host that has run for a while; that is a restart.
        let mut members = joined(2, late);
        let later = late + EARLY;
        members.note_loss(1, later);
        members.ended(AttemptEnd::HostLost, later);
        assert!(matches!(members.decide(later), Decision::Wait(Some(_))));
        members.note_arrival(1);
        let Decision::Start(plan) = members.decide(later) else {
            panic!("no start");
        };
        assert_eq!(plan.counts.restarts, 1);
    }

    #[test]
    fn a_slow_host_is_left_out_for_good_as_long_as_enough_workers_are_left() {
        let mut members = machine(WorkerRange { least: 2, most: 4 }, 4, 3);
        let now = Duration::from_secs(1);
        (1..4).for_each(|host| members.note_arrival(host));
        assert!(!members.note_slow(1, None), "nothing runs");
        assert_eq!(hosts(members.decide(now)), [0, 1, 2, 3]);
        assert!(members.note_slow(2, None));
        assert!(!members.note_slow(2, None), "it is on its way out");
        members.note_loss(2, now);
        members.ended(AttemptEnd::Saved, now);
        let Decision::Start(plan) = members.decide(now) else {
            panic!("no start");
        };
        assert_eq!(plan.places.keys().collect::<Vec<_>>(), [&0, &1, &3]);
        assert_eq!((plan.counts.shrinks, plan.counts.restarts), (1, 0));
        members.note_arrival(2);
        assert!(!members.take_save_request());
        assert_eq!(members.take_refused(), [2]);
        // Host 0 decides, and stays without workers.
        assert!(members.note_slow(0, None));
        members.ended(AttemptEnd::Saved, now);
        let Decision::Start(plan) = members.decide(now) else {
            panic!("no start");
        };
        assert_eq!((plan.workers(), plan.places[&0].len()), (2, 0));
        assert!(!members.note_slow(1, None), "two are needed");
        members.ended(AttemptEnd::Succeeded, now);
        assert_eq!(members.decide(now), Decision::End(End::Succeeded));
    }

    #[test]
    fn of_one_host_the_slow_worker_is_left_out() {
        let mut members = machine(WorkerRange { least: 2, most: 3 }, 1, 0);
        let now = Duration::from_secs(1);
        assert_eq!(hosts(members.decide(now)), [0]);
        assert!(members.note_slow(0, Some(1)));
        members.ended(AttemptEnd::Saved, now);
        let Decision::Start(plan) = members.decide(now) else {
            panic!("no start");
        };
        assert_eq!(plan.places, Places::from([(0, vec![0, 2])]));
        assert!(!members.note_slow(0, Some(2)));
    }

    #[test]
    fn a_job_that_needs_all_hosts_waits_for_a_lost_one_as_long_as_restarts_are_left() {
        let all = WorkerRange { least: 3, most: 3 };
        let mut members = machine(all, 3, 1);
        let now = Duration::from_secs(1);
        (1..3).for_each(|host| members.note_arrival(host));
        assert_eq!(hosts(members.decide(now)), [0, 1, 2]);
        members.note_loss(1, now);
        members.ended(AttemptEnd::HostLost, now);
        let until = now + Duration::from_secs(10);
        assert_eq!(members.decide(now), Decision::Wait(Some(until)));
        members.note_arrival(1);
        let Decision::Start(plan) = members.decide(now) else {
            panic!("no start");
        };
        assert_eq!((plan.start, plan.counts.restarts), (1, 1));
        // No restart is left.
        members.note_loss(2, now);
        members.ended(AttemptEnd::HostLost, now);
        let end = End::TooFew {
            missing: vec![2],
            left: 2,
        };
        assert_eq!(members.decide(now), Decision::End(end));
    }
}
