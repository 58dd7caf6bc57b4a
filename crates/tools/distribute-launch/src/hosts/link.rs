//! A launcher's connection to its parent. If it breaks, the launcher connects again, to the same
//! parent or another, and no post is lost; if the relay is lost, the launcher joins anew.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distribute_net::peers::Connection;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout, timeout_at};

use crate::error::LaunchError;
use crate::events::{Event, Events};
use crate::hosts::children::FAREWELL_TIME;
use crate::hosts::inner::Inner;
use crate::hosts::join::{Dialer, Joined, RETRY_PAUSE};
use crate::hosts::log::{self, Log};
use crate::hosts::outbox::{Farewell, Next, Outbox};
use crate::hosts::wire::{Frame, Listed, Pace, Session, Up, receive_with_text, send};
use crate::job::hosts::{JOIN_TIMEOUT_OPTION, SHRINK_AFTER_OPTION};
use crate::posts::{Post, PostBody};

/// Within this time, changes below are told as one.
const GATHERING: Duration = Duration::from_millis(20);
/// After how many posts of all the parent is told that this launcher has them, at the latest.
const CONFIRMED: u64 = 256;

/// The launcher's end.
pub struct Link {
    pub dialer: Dialer,
    pub outbox: Arc<Outbox>,
    pub events: Events,
    /// How long to look for a lost relay; `None` if a lost relay ends the job on this host.
    pub return_time: Option<Duration>,
}

/// How a connection ended.
enum End {
    /// Both sides have sent all they had.
    Complete,
    Broken {
        /// Whether the other side has been out of reach for some time.
        is_silent: bool,
    },
}

/// What a launcher has as long as the relay knows it.
struct Membership {
    /// The number that the relay gave it.
    member: u64,
    log: Arc<Log>,
    inner: Arc<Inner>,
    /// The number of the first post of all that the thread that decides has not got.
    delivered: Arc<AtomicU64>,
    /// Whether host 0 has said that the job is over.
    is_over: AtomicBool,
}

impl Link {
    /// Exchanges posts until the job is over or the relay is lost for good.
    pub async fn run(mut self, joined: Joined) {
        let mut next = Some(joined);
        while let Some(joined) = next {
            let member = Membership {
                member: joined.welcome.member,
                log: Log::new(joined.welcome.next),
                inner: Inner::new(self.dialer.hosts.arity, self.dialer.terms.pace()),
                delivered: Arc::new(AtomicU64::new(joined.welcome.next)),
                is_over: AtomicBool::new(false),
            };
            let delivery = self.deliver(&member, &joined.welcome.here);
            let serving = self.serve_children(&member);
            let end = self.stay(&member, joined).await;
            // Children still get what the relay has said last.
            if matches!(end, End::Complete) {
                let _late = timeout(FAREWELL_TIME, member.inner.is_alone()).await;
            }
            member.inner.let_go();
            member.log.close();
            let _panicked = delivery.await;
            if let Some(serving) = serving {
                serving.abort();
                let _aborted = serving.await;
            }
            next = match end {
                End::Complete => None,
                End::Broken { .. } if self.outbox.is_closed() => None,
                End::Broken { .. } => self.find_again().await,
            };
        }
    }

    /// Starts to hand the posts of all to the thread that decides, in their order.
    fn deliver(&self, member: &Membership, here: &[usize]) -> JoinHandle<()> {
        let came = here.iter().map(|host| Post {
            host: *host,
            restart: 0,
            item: PostBody::Came,
        });
        let came: Vec<Post> = came.collect();
        let events = self.events.clone();
        let (log, delivered) = (Arc::clone(&member.log), Arc::clone(&member.delivered));
        let inner = Arc::clone(&member.inner);
        tokio::spawn(async move {
            for post in came {
                if !tell(&events, Event::Post(Box::new(post))).await {
                    return;
                }
            }
            let mut number = delivered.load(Ordering::Relaxed);
            while let log::Next::Line(line) = log.next(number).await {
                let post = Box::new(line.entry.post.clone());
                drop(line);
                if !tell(&events, Event::Post(post)).await {
                    return;
                }
                number += 1;
                delivered.store(number, Ordering::Relaxed);
                if number.is_multiple_of(CONFIRMED) {
                    inner.changed.notify_one();
                }
            }
        })
    }

    /// Starts to serve the launchers that connect to this one, if any may.
    fn serve_children(&self, member: &Membership) -> Option<JoinHandle<()>> {
        let Dialer { hosts, terms, .. } = &self.dialer;
        let door = self.dialer.door.as_ref()?;
        let started = member.inner.start(door, hosts, *terms, &member.log);
        started
            .inspect_err(|error| {
                let error = error.to_string();
                tracing::warn!(error, "no other launcher can connect to this one");
            })
            .ok()
    }

    /// Exchanges posts with one parent after the other, until the relay or this launcher goes.
    async fn stay(&mut self, member: &Membership, joined: Joined) -> End {
        let mut joined = joined;
        loop {
            let Joined {
                connection,
                welcome,
                ..
            } = joined;
            let end = self.serve(member, connection, welcome.received).await;
            member.inner.unplug();
            let End::Broken { is_silent } = end else {
                return end;
            };
            match self.resume(member, is_silent).await {
                Some(again) => joined = again,
                None => return end,
            }
        }
    }

    /// Sends this launcher's posts from number `received` on, and what those below say, and
    /// receives the posts of all.
    async fn serve(&self, member: &Membership, connection: Connection, received: u64) -> End {
        let Some(number) = self.outbox.connect(received) else {
            let is_silent = false;
            return End::Broken { is_silent };
        };
        let pace = self.dialer.terms.pace();
        let (mut reader, writer) = tokio::io::split(connection);
        let forwarded = member.inner.plug();
        tokio::select! {
            end = self.read(member, &mut reader, pace.silence()) => end,
            end = self.write(member, writer, number, forwarded, pace) => end,
        }
    }

    /// Receives the posts of all until the connection ends.
    async fn read(
        &self,
        member: &Membership,
        reader: &mut (impl AsyncRead + Unpin),
        silence: Duration,
    ) -> End {
        let (log, inner) = (&member.log, &member.inner);
        let is_silent = loop {
            match receive_with_text(silence, reader).await {
                Ok((Frame::Post(entry), text)) => {
                    let entry = *entry;
                    let own = entry.sender.filter(|it| it.member == member.member);
                    if let Some(own) = own {
                        self.outbox.acknowledge(own.number.saturating_add(1));
                    }
                    if entry.post.host == 0 && matches!(entry.post.item, PostBody::JobEnd(_)) {
                        member.is_over.store(true, Ordering::Relaxed);
                    }
                    log.push(log::Line { entry, text });
                }
                Ok((Frame::Beat(all_have), _)) => {
                    log.trim(all_have.min(member.delivered.load(Ordering::Relaxed)));
                }
                Ok((Frame::Again, _)) => {
                    self.outbox.rewind();
                    inner.ask_again();
                }
                Ok((Frame::Cut { host, member }, _)) => inner.cut(host, member),
                // The relay ends; a post has said so before.
                Ok((Frame::Bye, _)) => {
                    log.close();
                    return End::Complete;
                }
                // The relay goes on without this launcher, or the parent without the relay.
                Ok((Frame::Quit | Frame::Move, _)) => break false,
                Ok(_) => {}
                Err(error) => break error.kind() == io::ErrorKind::TimedOut,
            }
        };
        End::Broken { is_silent }
    }

    /// Sends what this launcher and those below have to say, until there is no more or the parent
    /// is gone.
    async fn write(
        &self,
        member: &Membership,
        mut stream: impl AsyncWrite + Unpin,
        connection: u64,
        mut forwarded: mpsc::Receiver<Frame>,
        pace: Pace,
    ) -> End {
        let (inner, limit) = (&member.inner, pace.silence());
        let mut beats = interval(pace.beat());
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut last, mut until) = (None, Instant::now());
        let is_silent = true;
        loop {
            let frame = tokio::select! {
                _ = beats.tick() => member.census(),
                () = inner.changed.notified() => {
                    sleep(GATHERING).await;
                    member.census()
                }
                Some(frame) = forwarded.recv() => frame,
                next = self.outbox.next(connection), if last.is_none() => match next {
                    Next::Post(number, post) => member.up(number, *post),
                    Next::Farewell(farewell) => {
                        let is_over = member.is_over.load(Ordering::Relaxed);
                        inner.dismiss(is_over, member.log.end());
                        last = Some(farewell);
                        until = Instant::now() + FAREWELL_TIME;
                        continue;
                    }
                    Next::Replaced => return End::Broken { is_silent },
                },
                _ = timeout_at(until.into(), inner.is_alone()), if last.is_some() => break,
            };
            if send(limit, &mut stream, &frame).await.is_err() {
                return End::Broken { is_silent };
            }
        }
        inner.let_go();
        while let Ok(frame) = forwarded.try_recv() {
            if send(limit, &mut stream, &frame).await.is_err() {
                return End::Broken { is_silent };
            }
        }
        let last = match last {
            Some(Farewell::JobEnded) => Frame::Bye,
            Some(Farewell::Quit) | None => Frame::Quit,
        };
        let sent = send(limit, &mut stream, &last).await;
        let _closed_already = stream.shutdown().await;
        sent.map_or(End::Broken { is_silent }, |()| End::Complete)
    }

    /// Connects again, within the time that the relay waits for it. The children of a launcher
    /// that does not succeed at once look for other parents: the relay may be within their reach.
    async fn resume(&mut self, member: &Membership, is_silent: bool) -> Option<Joined> {
        self.dialer.session.resumes = true;
        let until = Instant::now() + self.dialer.terms.pace().away();
        let mut is_long = is_silent;
        while Instant::now() < until && !self.outbox.is_closed() {
            if is_long {
                member.inner.let_go();
            }
            self.dialer.session.has = member.log.end();
            match self.attempt(member.inner.census()).await {
                Ok(joined) => return Some(joined),
                // The relay has dropped this session.
                Err(LaunchError::HostRefused { .. }) => return None,
                Err(_) => self.pause().await,
            }
            is_long = true;
        }
        None
    }

    /// Joins a lost relay anew, once this launcher is ready.
    async fn find_again(&mut self) -> Option<Joined> {
        self.outbox.detach();
        let lost = Event::Post(Box::new(Post::relay_is_lost()));
        tell(&self.events, lost).await;
        let time = self.return_time?;
        if !self.outbox.return_is_wanted().await {
            return None;
        }
        let until = Instant::now() + time;
        let mut error = self.begin_session().err();
        while error.is_none() && !self.outbox.is_closed() {
            match self.attempt(Vec::new()).await {
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
            tell(&self.events, Event::Broken(error)).await;
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
            tried: Some(format!("{}: {why}", self.dialer.hosts.address)),
            option: match self.dialer.terms.workers {
                Some(_) => SHRINK_AFTER_OPTION,
                None => JOIN_TIMEOUT_OPTION,
            },
        }
    }

    fn begin_session(&mut self) -> Result<(), LaunchError> {
        let door = self.dialer.session.door;
        self.dialer.session = Session::new()?;
        self.dialer.session.door = door;
        Ok(())
    }

    /// Makes one attempt; stops early if this launcher gives up.
    async fn attempt(&mut self, below: Vec<Listed>) -> Result<Joined, LaunchError> {
        let address = self.dialer.hosts.address;
        let failed = |source| LaunchError::Rendezvous { address, source };
        let limit = self.dialer.terms.pace().attempt();
        let outbox = Arc::clone(&self.outbox);
        tokio::select! {
            joined = timeout(limit, self.dialer.join(below)) => match joined {
                Ok(joined) => joined,
                Err(late) => Err(failed(io::Error::from(late))),
            },
            () = outbox.closed() => Err(failed(io::ErrorKind::Interrupted.into())),
        }
    }

    async fn pause(&self) {
        tokio::select! {
            () = sleep(RETRY_PAUSE) => {}
            () = self.outbox.closed() => {}
        }
    }
}

impl Membership {
    /// What this launcher has of the posts of all, and who is below it.
    fn census(&self) -> Frame {
        Frame::Census {
            has: self.delivered.load(Ordering::Relaxed),
            below: self.inner.census(),
        }
    }

    /// A post of this launcher.
    fn up(&self, number: u64, post: Post) -> Frame {
        let member = self.member;
        let sender = log::Sender { member, number };
        Frame::Up(Box::new(Up { sender, post }))
    }
}

/// Hands an event to the thread that decides, waiting for room. Returns false if the thread is
/// gone.
async fn tell(events: &Events, event: Event) -> bool {
    let events = events.clone();
    let delivered = tokio::task::spawn_blocking(move || events.send(event));
    delivered.await.unwrap_or(false)
}
