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
use crate::process::guard::Guard;
use crate::process::logs::LogDirectory;
use crate::report::console::Screen;

/// What the attempts of a job share.
pub struct Session<'a, 's> {
    pub job: &'a Job,
    /// What this host starts, counted from 0.
    pub tasks: Vec<Task>,
    pub screen: &'a Screen<'s>,
    pub logs: &'a LogDirectory,
    pub guard: &'a mut Guard,
    /// The launchers of the other hosts, if there are any.
    pub group: Option<LauncherGroup>,
    pub events: Events,
    pub received: Receiver<Event>,
    /// The signal that told this launcher, or that of another host, to stop.
    pub interrupted: Option<i32>,
    /// How many signals this launcher got itself.
    pub signals: usize,
}

impl Session<'_, '_> {
    /// Ports for the processes of this host.
    pub fn ports(&self) -> Result<ReservedPorts> {
        let loopback = Ipv4Addr::LOCALHOST.into();
        let address = self
            .group
            .as_ref()
            .map_or(loopback, LauncherGroup::own_address);
        let needed = self.tasks.len();
        ReservedPorts::new(needed, address).map_err(|source| LaunchError::NoFreePort {
            address,
            needed,
            source,
        })
    }

    /// Gives the processes of this host these ports, and finds what the other hosts have.
    pub fn attempt_cluster(
        &mut self,
        restart: u32,
        ports: &ReservedPorts,
    ) -> Result<WaitOutcome<AttemptCluster>> {
        let cluster = Cluster::with_ports(ports, &self.tasks);
        if let Some(group) = &mut self.group {
            return group.wait_for_hosts(restart, cluster, (&self.received, self.screen));
        }
        Ok(WaitOutcome::Done(AttemptCluster {
            cluster,
            tasks: self.tasks.clone(),
            token: Token::random()?,
        }))
    }

    /// Has a guard that has ended followed by another one.
    pub fn replace_ended_guard(&mut self) -> Result<()> {
        match self.guard.replace_if_ended() {
            Some(message) => self.screen.log(&message),
            None => Ok(()),
        }
    }

    /// This launcher got a signal.
    pub fn note_signal(&mut self, signal: i32) {
        self.interrupted.get_or_insert(signal);
        self.signals += 1;
    }

    pub fn post(&self, item: PostBody) {
        if let Some(group) = &self.group {
            group.post(item);
        }
    }
}
