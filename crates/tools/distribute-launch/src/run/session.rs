//! The state that the attempts of a job share.

use std::net::Ipv4Addr;
use std::sync::mpsc::Receiver;

use crate::error::{LaunchError, Result};
use crate::events::{Event, Events};
use crate::hosts::group::{AttemptCluster, LauncherGroup};
use crate::hosts::wait::WaitOutcome;
use crate::job::Job;
use crate::job::cluster::{Cluster, Token};
use crate::job::ports::ReservedPorts;
use crate::job::task::Task;
use crate::membership::timed::TimedMembership;
use crate::membership::{AttemptEnd, Plan};
use crate::posts::PostBody;
use crate::process::guard::Guard;
use crate::process::logs::LogDirectory;
use crate::process::memory::StateMemory;
use crate::process::runtime_folder::RuntimeFolder;
use crate::process::spawner::Spawner;
use crate::report::console::Screen;
use crate::signals::insists;

/// The state that the attempts of a job share.
pub struct Session<'a> {
    pub job: &'a Job,
    /// The state machine that decides who takes part; `None` where the launcher of host 0 decides.
    pub membership: Option<TimedMembership>,
    pub screen: &'a Screen,
    pub logs: &'a LogDirectory,
    pub runtime: &'a RuntimeFolder,
    /// The memory that the workers keep from attempt to attempt.
    pub memory: &'a StateMemory,
    /// Starts the processes, which die with it.
    pub spawner: &'a Spawner,
    pub guard: &'a mut Guard,
    /// The launchers of the other hosts, if there are any.
    pub group: Option<LauncherGroup>,
    pub events: Events,
    pub received: Receiver<Event>,
    /// The signal that told this launcher, or that of another host, to stop.
    pub interrupted: Option<i32>,
    /// How many insisting signals this launcher has received itself.
    pub signals: usize,
}

impl Session<'_> {
    /// The number of this host in plans.
    pub fn host(&self) -> usize {
        self.group.as_ref().map_or(0, LauncherGroup::index)
    }

    /// The places of this host's workers in a plan.
    pub fn places(&self, plan: &Plan) -> Vec<usize> {
        // The plan of a job on several hosts that is not elastic only has the hosts.
        let has_places = self.group.is_none() || self.job.is_elastic();
        match (plan.places.get(&self.host()), has_places) {
            (Some(places), true) => places.clone(),
            (Some(_), false) => (0..self.job.workers_here()).collect(),
            (None, _) => Vec::new(),
        }
    }

    /// Notes how the attempt ended. Returns, on host 0, the hosts that do not fit: the job goes on
    /// without them.
    pub fn ended(&mut self, end: AttemptEnd) -> Vec<usize> {
        match (&mut self.membership, &mut self.group) {
            (Some(membership), _) => {
                membership.ended(end);
                Vec::new()
            }
            (None, Some(group)) => group.ended(end),
            (None, None) => Vec::new(),
        }
    }

    /// Reserves ports for these processes of this host: one each.
    pub fn ports(&self, tasks: &[Task]) -> Result<ReservedPorts> {
        let loopback = Ipv4Addr::LOCALHOST.into();
        let address = self
            .group
            .as_ref()
            .map_or(loopback, LauncherGroup::own_address);
        let failed = |needed| {
            move |source| LaunchError::NoFreePort {
                address,
                needed,
                source,
            }
        };
        let needed = tasks.len();
        let Some(range) = &self.job.ports else {
            return ReservedPorts::new(needed, address).map_err(failed(needed));
        };
        let reserved = ReservedPorts::within(needed, address, range.clone());
        let (first, last) = (*range.start(), *range.end());
        reserved
            .map_err(failed(needed))?
            .ok_or(LaunchError::NoPortInRange {
                address,
                needed,
                first,
                last,
            })
    }

    /// Assigns the ports to the processes of this host, and learns the addresses of the other
    /// hosts.
    pub fn attempt_cluster(
        &mut self,
        plan: &Plan,
        tasks: Vec<Task>,
        ports: &ReservedPorts,
    ) -> Result<WaitOutcome<AttemptCluster>> {
        let cluster = Cluster::with_ports(ports, &tasks);
        if let Some(group) = &mut self.group {
            let (received, screen) = (&self.received, self.screen);
            return group.wait_for_hosts(plan, cluster, received, screen);
        }
        let token = Token::random()?;
        Ok(WaitOutcome::Done(AttemptCluster {
            cluster,
            tasks,
            token,
        }))
    }

    /// Replaces a guard that has ended.
    pub fn replace_ended_guard(&mut self) -> Result<()> {
        match self.guard.replace_if_ended() {
            Some(message) => self.screen.log(&message),
            None => Ok(()),
        }
    }

    /// Makes this host alone leave the job if `signal` says so; see
    /// [`LauncherGroup::begin_leaving`].
    pub fn begin_leaving(&mut self, signal: i32) -> bool {
        let group = self.group.as_mut();
        group.is_some_and(|group| group.begin_leaving(signal))
    }

    /// The signal that makes this host leave a job that goes on.
    pub fn leaving(&self) -> Option<i32> {
        self.group.as_ref().and_then(LauncherGroup::leaving)
    }

    /// Why the job goes on without this host, if it was slow for long.
    pub fn dropped(&self) -> Option<&str> {
        self.group.as_ref().and_then(LauncherGroup::dropped)
    }

    /// Counts a signal to this launcher.
    pub fn note_signal(&mut self, signal: i32) {
        self.interrupted.get_or_insert(signal);
        self.signals += usize::from(insists(signal));
    }

    pub fn post(&self, item: PostBody) {
        if let Some(group) = &self.group {
            group.post(item);
        }
    }
}
