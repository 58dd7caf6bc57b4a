//! This launcher as a member of the group of all hosts' launchers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use distribute_net::peers::Connection;
use signal_hook::consts::SIGINT;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;

use crate::error::{LaunchError, Result};
use crate::events::{Event, Events};
use crate::hosts::join::{Joined, Joining};
use crate::hosts::posts::{Instruction, Over, Post, PostBody, Posts};
use crate::hosts::wait::{WaitOutcome, WaitReport};
use crate::hosts::wire::{Frame, Terms, receive, runtime, write};
use crate::job::cluster::{Cluster, Token};
use crate::job::hosts::Hosts;
use crate::job::task::{Role, Task};
use crate::membership::lead::Lead;
use crate::membership::{AttemptEnd, Decision, End, Plan};
use crate::report::attempt::AttemptResult;
use crate::report::console::Screen;
use crate::report::outcome::Outcome;
use crate::thread_scope::ThreadScope;

const OUTBOX_MAX: usize = 1024;

/// The launchers of all hosts, as this launcher sees them.
pub struct LauncherGroup {
    hosts: Hosts,
    outbox: mpsc::Sender<Frame>,
    own_address: IpAddr,
    pub posts: Posts,
    /// On host 0 of an elastic job: who takes part.
    lead: Option<Lead>,
    /// The signal because of which this host leaves the job, which goes on.
    leaving: Option<i32>,
    /// Everybody's random number, from which the tokens of the attempts are made.
    nonce: Token,
}

/// The whole job in one attempt: its cluster, the tasks of this host, and the token.
pub struct AttemptCluster {
    pub cluster: Cluster,
    pub tasks: Vec<Task>,
    pub token: Token,
    /// One for each worker of this host, where a range of ports was named.
    pub data_ports: Vec<u16>,
}

impl LauncherGroup {
    /// Connects to the relay, which may not be there yet, and says what it waits for. `lead` is
    /// that of an elastic job on host 0.
    pub fn join(
        threads: &ThreadScope<'_, '_>,
        hosts: &Hosts,
        (terms, lead): (Terms, Option<Lead>),
        events: &Events,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<WaitOutcome<LauncherGroup>> {
        let runtime = runtime()?;
        let joining = Joining {
            runtime: &runtime,
            hosts,
            terms,
            received,
            screen,
        };
        let Joined {
            connection,
            own_address,
        } = match joining.run()? {
            WaitOutcome::Done(joined) => joined,
            WaitOutcome::Stopped(signal) => return Ok(WaitOutcome::Stopped(signal)),
            WaitOutcome::HostLost => return Ok(WaitOutcome::HostLost),
        };
        let (outbox, frames) = mpsc::channel(OUTBOX_MAX);
        let events = events.clone();
        threads.spawn("group", move || {
            runtime.block_on(take_part(connection, frames, &events));
        })?;
        Ok(WaitOutcome::Done(LauncherGroup {
            hosts: hosts.clone(),
            outbox,
            own_address,
            posts: Posts::new(hosts.count, terms.workers.is_some()),
            lead,
            leaving: None,
            nonce: Token::random()?,
        }))
    }

    /// The job is over, and the other hosts know as much as this one. Without this call, they take
    /// the end of the connection for the loss of this host.
    pub fn leave(&self) {
        let _gone = self.outbox.try_send(Frame::Bye);
    }

    /// The number of this host.
    pub fn index(&self) -> usize {
        self.hosts.index
    }

    /// Whether with this signal this host alone leaves: that of an elastic job, other than host 0,
    /// when its scheduler takes it away. SIGINT, and a second signal, is for the whole job.
    pub fn leaves(&mut self, signal: i32) -> bool {
        let may_leave = self.posts.is_elastic() && self.hosts.index > 0;
        let leaves = may_leave && self.leaving.is_none() && signal != SIGINT;
        if leaves {
            self.leaving = Some(signal);
        }
        leaves
    }

    /// The signal because of which this host leaves the job, which goes on.
    pub fn leaving(&self) -> Option<i32> {
        self.leaving
    }

    /// Where the other hosts reach this one.
    pub fn own_address(&self) -> IpAddr {
        self.own_address
    }

    /// Tells all launchers, this one included.
    pub fn post(&self, item: PostBody) {
        let (host, restart) = (self.hosts.index, self.posts.restart());
        // Never full but with a connection that is about to be given up.
        let _lost = self.outbox.try_send(Frame::Post(Box::new(Post {
            host,
            restart,
            item,
        })));
    }

    /// Remembers what a launcher has told; an error if one is gone that the job cannot do without,
    /// or has told more than there is to tell.
    pub fn record(&mut self, post: Post) -> Result<()> {
        if let Some(lead) = &mut self.lead {
            match post.item {
                PostBody::Came => lead.came(post.host),
                PostBody::Lost => lead.lost(post.host),
                PostBody::Leave => lead.leaves(post.host),
                _ => {}
            }
            if lead.wants_save() {
                self.post(PostBody::Save);
            }
        }
        self.posts.record(post)
    }

    /// The attempt of an elastic job is over.
    pub fn ended(&mut self, end: AttemptEnd) {
        if let Some(lead) = &mut self.lead {
            lead.ended(end);
        }
    }

    /// What host 0 of an elastic job tells all to do next; on host 0, says that. `outcome` is that
    /// of the last attempt.
    pub fn next(
        &mut self,
        outcome: Option<&Outcome>,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<WaitOutcome<Instruction>> {
        let index = self.hosts.index;
        let mut report = WaitReport::endless();
        let mut has_decided = false;
        loop {
            if let Some(signal) = self.posts.stop_signal() {
                return Ok(WaitOutcome::Stopped(signal));
            }
            if let Some(instruction) = self.posts.take_instruction(index) {
                return Ok(WaitOutcome::Done(instruction));
            }
            let mut until = None;
            if let Some(lead) = self.lead.as_mut().filter(|_| !has_decided) {
                let (decision, wait) = lead.decide();
                has_decided = !matches!(decision, Decision::Wait(_));
                until = wait;
                self.tell(decision, outcome);
            }
            report.log_if_due(screen, || {
                format!("host {index} waits for the next start of the job")
            })?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.map_or(report.left(), |left| left.min(report.left()));
            match received.recv_timeout(left) {
                Ok(Event::Post(post)) => self.record(*post)?,
                Ok(Event::Signal(signal)) if index == 0 => self.post(PostBody::Stop(signal)),
                // No process of this host runs: the job goes on without it.
                Ok(Event::Signal(signal)) => return Ok(WaitOutcome::Stopped(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LaunchError::HostLost { host: 0 });
                }
            }
        }
    }

    /// Tells all what was decided.
    fn tell(&self, decision: Decision, outcome: Option<&Outcome>) {
        match (decision, outcome) {
            (Decision::Wait(_), _) => {}
            (Decision::Start(plan), _) => self.post(PostBody::Plan(plan)),
            (Decision::End(End::TooFew { missing, left }), _) => {
                self.post(PostBody::Over(Over::TooFew { missing, left }));
            }
            (Decision::End(_), Some(outcome)) => {
                self.post(PostBody::Over(Over::Outcome(outcome.clone())));
            }
            // No end but that of an attempt, which has an outcome.
            (Decision::End(_), None) => {}
        }
    }

    /// Waits until all hosts are ready for an attempt.
    pub fn wait_for_hosts(
        &mut self,
        plan: &Plan,
        cluster: Cluster,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<WaitOutcome<AttemptCluster>> {
        let restart = plan.start;
        match self.posts.is_elastic() {
            true => self.posts.begin_plan(plan),
            false => self.posts.begin_attempt(restart),
        }
        self.post(PostBody::Ready(self.nonce.secret().to_owned(), cluster));
        let mut report = WaitReport::new(self.hosts.join_timeout);
        loop {
            if let Some(signal) = self.posts.stop_signal() {
                return Ok(WaitOutcome::Stopped(signal));
            }
            if self.posts.has_lost() {
                return Ok(WaitOutcome::HostLost);
            }
            let ready = self.posts.ready();
            let hosts = self.posts.hosts().iter().copied();
            let missing: Vec<usize> = hosts.filter(|host| !ready.contains_key(host)).collect();
            if missing.is_empty() {
                return self.attempt_cluster(restart, &ready).map(WaitOutcome::Done);
            }
            if report.is_over() {
                return Err(LaunchError::HostsMissing { missing });
            }
            let here: Vec<usize> = ready.keys().copied().collect();
            report.log_if_due(screen, || self.describe(&here, &missing))?;
            match received.recv_timeout(report.left()) {
                Ok(Event::Post(post)) => self.record(*post)?,
                Ok(Event::Signal(signal)) if self.leaves(signal) => {
                    return Ok(WaitOutcome::Stopped(signal));
                }
                Ok(Event::Signal(signal)) => self.post(PostBody::Stop(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LaunchError::HostsMissing { missing });
                }
            }
        }
    }

    /// The hosts that are there and those that are missing, as a message.
    fn describe(&self, here: &[usize], missing: &[usize]) -> String {
        let Hosts { index, address, .. } = self.hosts;
        format!(
            "host {index} waits for the launchers of the hosts {missing:?} to come to {address}; \
             here are {here:?} of {}",
            self.posts.hosts().len()
        )
    }

    fn attempt_cluster(
        &self,
        restart: u32,
        ready: &BTreeMap<usize, (&String, &Cluster)>,
    ) -> Result<AttemptCluster> {
        let mut cluster = Cluster::default();
        let mut tasks = Vec::new();
        let restart = restart.to_string();
        let mut parts = vec![restart.as_bytes()];
        for (host, (nonce, part)) in ready {
            parts.push(nonce.as_bytes());
            let added = cluster.append(part);
            if *host == self.hosts.index {
                tasks = added;
            }
        }
        cluster.reconcile_chief(&mut tasks);
        if !self.posts.is_elastic() {
            let parts = ready.iter().map(|(host, (_, part))| (*host, *part));
            cluster.check_parts(parts)?;
        }
        let is_evaluator = |task: &Task| task.role == Role::Evaluator;
        if cluster.tasks().filter(is_evaluator).count() > 1 {
            let what = "more than one host starts an evaluator: ask for it on one".to_owned();
            return Err(LaunchError::InvalidHosts { what });
        }
        let security = &self.hosts.security;
        let token = Token::of(&security.derive("distribute-launch job token", &parts));
        Ok(AttemptCluster {
            cluster,
            tasks,
            token,
            data_ports: Vec::new(),
        })
    }

    /// Sends how this host's part ended, waits for the other hosts, and returns the results of all
    /// hosts as one.
    pub fn gather(
        &mut self,
        ended: AttemptResult,
        received: &Receiver<Event>,
    ) -> Result<(AttemptResult, Option<i32>)> {
        self.post(PostBody::Ended(ended));
        loop {
            if let Some(whole) = self.posts.combined() {
                return Ok(whole);
            }
            // The relay says within seconds if a host is gone, and its silence is noticed too.
            match received.recv() {
                Ok(Event::Post(post)) => self.record(*post)?,
                Ok(Event::Signal(signal)) if self.leaves(signal) => {}
                Ok(Event::Signal(signal)) => self.post(PostBody::Stop(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) => {}
                Err(_) => return Err(LaunchError::HostLost { host: 0 }),
            }
        }
    }
}

/// Sends this launcher's frames and hears of posts, until either ends.
async fn take_part(connection: Connection, frames: mpsc::Receiver<Frame>, events: &Events) {
    let (reader, writer) = tokio::io::split(connection);
    tokio::select! {
        () = read(reader, events) => {}
        () = write(writer, frames) => {}
    }
}

/// Turns posts into events until the connection ends.
async fn read(mut reader: impl AsyncRead + Unpin, events: &Events) {
    loop {
        let (post, is_last) = match receive(&mut reader).await {
            Ok(Frame::Post(post)) => (post, false),
            Ok(_) => continue,
            Err(_) => {
                let (host, restart, item) = (0, u32::MAX, PostBody::Lost);
                let lost = Post {
                    host,
                    restart,
                    item,
                };
                (Box::new(lost), true)
            }
        };
        let events = events.clone();
        // Heartbeats go on while nobody takes the event.
        let delivered = tokio::task::spawn_blocking(move || events.deliver(Event::Post(post)));
        if !delivered.await.unwrap_or(false) || is_last {
            return;
        }
    }
}
