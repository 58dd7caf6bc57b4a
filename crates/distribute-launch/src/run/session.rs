//! What the attempts of a job share.

use std::net::Ipv4Addr;
use std::sync::mpsc::Receiver;

use crate::error::{LaunchError, Result};
use crate::events::{Event, Events};
use crate::hosts::group::{AttemptCluster, LauncherGroup};
use crate::hosts::posts::PostBody;
use crate::hosts::wait::WaitOutcome;
use crate::job::Job;
use crate::job::cluster::{Cluster, Token};
use crate::job::ports::ReservedPorts;
use crate::job::task::Task;
use crate::membership::lead::Lead;
use crate::membership::{AttemptEnd, Plan};
use crate::process::guard::Guard;
use crate::process::logs::LogDirectory;
use crate::process::memory::StateMemory;
use crate::report::console::Screen;
use crate::signals::insists;

/// What the attempts of a job share.
pub struct Session<'a, 's> {
    pub job: &'a Job,
    /// Who takes part; none where the launcher of host 0 decides.
    pub lead: Option<Lead>,
    pub screen: &'a Screen<'s>,
    pub logs: &'a LogDirectory,
    /// What the workers keep from attempt to attempt.
    pub memory: &'a StateMemory,
    pub guard: &'a mut Guard,
    /// The launchers of the other hosts, if there are any.
    pub group: Option<LauncherGroup>,
    pub events: Events,
    pub received: Receiver<Event>,
    /// The signal that told this launcher, or that of another host, to stop.
    pub interrupted: Option<i32>,
    /// How many signals this launcher got itself by which people insist.
    pub signals: usize,
}

impl Session<'_, '_> {
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

    /// The attempt is over. On host 0, the hosts without which the job goes on because they do not
    /// fit.
    pub fn ended(&mut self, end: AttemptEnd) -> Vec<usize> {
        match (&mut self.lead, &mut self.group) {
            (Some(lead), _) => {
                lead.ended(end);
                Vec::new()
            }
            (None, Some(group)) => group.ended(end),
            (None, None) => Vec::new(),
        }
    }

    /// Ports for so many processes of this host.
    pub fn ports(&self, needed: usize) -> Result<ReservedPorts> {
        let loopback = Ipv4Addr::LOCALHOST.into();
        let address = self
            .group
            .as_ref()
            .map_or(loopback, LauncherGroup::own_address);
        ReservedPorts::new(needed, address).map_err(|source| LaunchError::NoFreePort {
            address,
            needed,
            source,
        })
    }

    /// Gives the processes of this host these ports, and finds what the other hosts have.
    pub fn attempt_cluster(
        &mut self,
        plan: &Plan,
        (tasks, ports): (Vec<Task>, &ReservedPorts),
    ) -> Result<WaitOutcome<AttemptCluster>> {
        let cluster = Cluster::with_ports(ports, &tasks);
        if let Some(group) = &mut self.group {
            return group.wait_for_hosts(plan, cluster, (&self.received, self.screen));
        }
        let token = Token::random()?;
        Ok(WaitOutcome::Done(AttemptCluster {
            cluster,
            tasks,
            token,
        }))
    }

    /// Has a guard that has ended followed by another one.
    pub fn replace_ended_guard(&mut self) -> Result<()> {
        match self.guard.replace_if_ended() {
            Some(message) => self.screen.log(&message),
            None => Ok(()),
        }
    }

    /// Whether with this signal this host alone leaves, see [`LauncherGroup::leaves`].
    pub fn leaves(&mut self, signal: i32) -> bool {
        let group = self.group.as_mut();
        group.is_some_and(|group| group.leaves(signal))
    }

    /// The signal because of which this host leaves a job that goes on.
    pub fn leaving(&self) -> Option<i32> {
        self.group.as_ref().and_then(LauncherGroup::leaving)
    }

    /// This launcher got a signal.
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
