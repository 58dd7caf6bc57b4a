//! This launcher as a member of the group of all hosts' launchers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use distribute_net::peers::Connection;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;

use crate::error::{LaunchError, Result};
use crate::events::{Event, Events};
use crate::hosts::join::{Joined, Joining};
use crate::hosts::posts::{Post, PostBody, Posts};
use crate::hosts::wait::{WaitOutcome, WaitReport};
use crate::hosts::wire::{Frame, receive, runtime, write};
use crate::job::cluster::{Cluster, Token};
use crate::job::hosts::Hosts;
use crate::job::task::{Role, Task};
use crate::report::attempt::AttemptResult;
use crate::report::console::Screen;
use crate::thread_scope::ThreadScope;

const OUTBOX_MAX: usize = 1024;

/// The launchers of all hosts, as this launcher sees them.
pub struct LauncherGroup {
    hosts: Hosts,
    outbox: mpsc::Sender<Frame>,
    own_address: IpAddr,
    pub posts: Posts,
    /// Everybody's random number, from which the tokens of the attempts are made.
    nonce: Token,
}

/// The whole job in one attempt: its cluster, the tasks of this host, and the token.
pub struct AttemptCluster {
    pub cluster: Cluster,
    pub tasks: Vec<Task>,
    pub token: Token,
}

impl LauncherGroup {
    /// Connects to the relay, which may not be there yet, and says what it waits for.
    pub fn join(
        threads: &ThreadScope<'_, '_>,
        hosts: &Hosts,
        restarts_max: u32,
        events: &Events,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<WaitOutcome<LauncherGroup>> {
        let runtime = runtime()?;
        let joining = Joining {
            runtime: &runtime,
            hosts,
            restarts_max,
            received,
            screen,
        };
        let Joined {
            connection,
            own_address,
        } = match joining.run()? {
            WaitOutcome::Done(joined) => joined,
            WaitOutcome::Stopped(signal) => return Ok(WaitOutcome::Stopped(signal)),
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
            posts: Posts::new(hosts.count),
            nonce: Token::random()?,
        }))
    }

    /// The job is over, and the other hosts know as much as this one. Without this call, they take
    /// the end of the connection for the loss of this host.
    pub fn leave(&self) {
        let _gone = self.outbox.try_send(Frame::Bye);
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

    /// Waits until all hosts are ready for an attempt.
    pub fn wait_for_hosts(
        &mut self,
        restart: u32,
        cluster: Cluster,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<WaitOutcome<AttemptCluster>> {
        self.posts.begin_attempt(restart);
        self.post(PostBody::Ready(self.nonce.secret().to_owned(), cluster));
        let mut report = WaitReport::new(self.hosts.join_timeout);
        loop {
            if let Some(signal) = self.posts.stop_signal() {
                return Ok(WaitOutcome::Stopped(signal));
            }
            let ready = self.posts.ready();
            if ready.len() == self.hosts.count {
                return self.attempt_cluster(restart, &ready).map(WaitOutcome::Done);
            }
            let missing = (0..self.hosts.count).filter(|host| !ready.contains_key(host));
            let missing: Vec<usize> = missing.collect();
            if report.is_over() {
                return Err(LaunchError::HostsMissing { missing });
            }
            let here: Vec<usize> = ready.keys().copied().collect();
            report.log_if_due(screen, || self.describe(&here, &missing))?;
            match received.recv_timeout(report.left()) {
                Ok(Event::Post(post)) => self.posts.record(*post)?,
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
            self.hosts.count
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
                Ok(Event::Post(post)) => self.posts.record(*post)?,
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
        let post = match receive(&mut reader).await {
            Ok(Frame::Post(post)) => post,
            Ok(_) => continue,
            Err(_) => Box::new(Post {
                host: 0,
                restart: u32::MAX,
                item: PostBody::Lost,
            }),
        };
        let is_last = matches!(post.item, PostBody::Lost);
        let events = events.clone();
        // Heartbeats go on while nobody takes the event.
        let delivered = tokio::task::spawn_blocking(move || events.deliver(Event::Post(post)));
        if !delivered.await.unwrap_or(false) || is_last {
            return;
        }
    }
}
