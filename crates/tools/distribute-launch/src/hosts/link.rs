//! A launcher's connection to the relay. If it breaks, the launcher connects again and no
//! post is lost; if the relay is lost, the launcher joins anew.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distribute_net::peers::Connection;
use tokio::io::AsyncRead;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::error::LaunchError;
use crate::events::{Event, Events};
use crate::hosts::join::{Joined, RETRY_PAUSE, join};
use crate::hosts::outbox::Outbox;
use crate::hosts::part::Part;
use crate::hosts::wire::{Frame, Session, Terms, Written, receive, write};
use crate::job::hosts::{Hosts, JOIN_TIMEOUT_OPTION, SHRINK_AFTER_OPTION};
use crate::posts::Post;

/// The launcher's end.
pub struct Link {
    pub hosts: Hosts,
    pub terms: Terms,
    pub part: Part,
    pub outbox: Arc<Outbox>,
    pub session: Session,
    pub delivery: Delivery,
    /// How long to look for a lost relay; `None` if a lost relay ends the job on this host.
    pub return_time: Option<Duration>,
}

/// How a connection ended.
enum End {
    /// Both sides have sent all they had.
    Complete,
    Broken,
}

impl Link {
    /// Exchanges posts until the job is over or the relay is lost for good.
    pub async fn run(mut self, joined: Joined) {
        let mut next = Some(joined);
        while let Some(Joined {
            connection,
            received,
            ..
        }) = next
        {
            match self.serve(connection, received).await {
                End::Complete => return,
                End::Broken => {}
            }
            next = self.resume().await;
            if next.is_none() && !self.outbox.is_closed() {
                next = self.find_again().await;
            }
        }
    }

    /// Sends this launcher's posts from number `received` on and receives the posts of all
    /// launchers.
    async fn serve(&mut self, connection: Connection, received: u64) -> End {
        let Some(number) = self.outbox.connect(received) else {
            return End::Broken;
        };
        let pace = self.terms.pace();
        let (mut reader, writer) = tokio::io::split(connection);
        let heard = Arc::clone(&self.delivery.received);
        tokio::select! {
            end = self.delivery.read(&mut reader, &self.outbox, pace.silence()) => end,
            written = write(writer, &self.outbox, number, received, &heard, pace) => {
                match written {
                    Written::All => End::Complete,
                    Written::Broken | Written::Replaced => End::Broken,
                }
            }
        }
    }

    /// Connects again, within the time that the relay waits for it.
    async fn resume(&mut self) -> Option<Joined> {
        self.delivery.settle().await;
        self.session.resumes = true;
        self.session.received = self.delivery.received.load(Ordering::Relaxed);
        let until = Instant::now() + self.terms.pace().away();
        while Instant::now() < until && !self.outbox.is_closed() {
            match self.attempt().await {
                Ok(joined) => return Some(joined),
                // The relay has dropped this session.
                Err(LaunchError::HostRefused { .. }) => return None,
                Err(_) => self.pause().await,
            }
        }
        None
    }

    /// Joins a lost relay anew, once this launcher is ready.
    async fn find_again(&mut self) -> Option<Joined> {
        self.outbox.detach();
        self.delivery.lost().await;
        let time = self.return_time?;
        if !self.outbox.return_is_wanted().await {
            return None;
        }
        let until = Instant::now() + time;
        self.delivery.received.store(0, Ordering::Relaxed);
        let mut error = self.begin_session().err();
        while error.is_none() && !self.outbox.is_closed() {
            match self.attempt().await {
                Ok(joined) => {
                    self.outbox.attach();
                    return Some(joined);
                }
                Err(refused @ LaunchError::HostRefused { .. }) => error = Some(refused),
                Err(last) if Instant::now() >= until => error = Some(self.stays_away(time, &last)),
                Err(_) => self.pause().await,
            }
        }
        if let Some(error) = error {
            self.delivery.tell(Event::Broken(error)).await;
        }
        None
    }

    /// The error for a relay that did not come back; `last` is the error of the last attempt to
    /// connect.
    fn stays_away(&self, waited: Duration, last: &LaunchError) -> LaunchError {
        let why = match last {
            LaunchError::Rendezvous { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        LaunchError::HostStaysAway {
            hosts: vec![0],
            waited,
            restarts: None,
            tried: Some(format!("{}: {why}", self.hosts.address)),
            option: match self.terms.workers {
                Some(_) => SHRINK_AFTER_OPTION,
                None => JOIN_TIMEOUT_OPTION,
            },
        }
    }

    fn begin_session(&mut self) -> Result<(), LaunchError> {
        self.session = Session::new()?;
        Ok(())
    }

    /// Makes one attempt; stops early if this launcher gives up.
    async fn attempt(&self) -> Result<Joined, LaunchError> {
        let failed = |source| LaunchError::Rendezvous {
            address: self.hosts.address,
            source,
        };
        let tls = self.hosts.tls()?;
        let (terms, part) = (self.terms, self.part);
        let joining = join(&self.hosts, terms, part, &self.session, tls.as_ref());
        tokio::select! {
            joined = timeout(self.terms.pace().attempt(), joining) => match joined {
                Ok(joined) => joined,
                Err(late) => Err(failed(io::Error::from(late))),
            },
            () = self.outbox.closed() => Err(failed(io::ErrorKind::Interrupted.into())),
        }
    }

    async fn pause(&self) {
        tokio::select! {
            () = sleep(RETRY_PAUSE) => {}
            () = self.outbox.closed() => {}
        }
    }
}

/// Hands posts to the thread that decides, in their order, even across the end of a connection.
pub struct Delivery {
    events: Events,
    /// The number of the relay's posts that were handed on.
    received: Arc<AtomicU64>,
    /// The post that is being handed on.
    pending: Option<JoinHandle<bool>>,
}

impl Delivery {
    pub fn new(events: &Events) -> Delivery {
        Delivery {
            events: events.clone(),
            received: Arc::default(),
            pending: None,
        }
    }

    /// Turns posts into events until the connection ends.
    async fn read(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        outbox: &Outbox,
        silence: Duration,
    ) -> End {
        loop {
            match receive(silence, reader).await {
                Ok(Frame::Post(post)) => {
                    self.settle().await;
                    self.received.fetch_add(1, Ordering::Relaxed);
                    if !self.tell(Event::Post(post)).await {
                        return End::Complete;
                    }
                }
                Ok(Frame::Beat(received)) => outbox.acknowledge(received),
                // The relay ends; a post has said so before.
                Ok(Frame::Bye) => return End::Complete,
                // The relay goes on without this launcher.
                Ok(Frame::Quit) | Err(_) => return End::Broken,
                Ok(_) => {}
            }
        }
    }

    /// Hands on an event; heartbeats go on while it waits. Returns false if the receiver is gone.
    async fn tell(&mut self, event: Event) -> bool {
        self.settle().await;
        let events = self.events.clone();
        let delivered = tokio::task::spawn_blocking(move || events.send(event));
        self.pending = Some(delivered);
        self.settle().await
    }

    /// Waits until the pending event is handed on. A caller may stop waiting and call again.
    async fn settle(&mut self) -> bool {
        let delivered = match &mut self.pending {
            Some(pending) => pending.await.unwrap_or(false),
            None => true,
        };
        self.pending = None;
        delivered
    }

    async fn lost(&mut self) {
        self.tell(Event::Post(Box::new(Post::relay_is_lost())))
            .await;
    }
}
