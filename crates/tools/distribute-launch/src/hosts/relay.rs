//! The relay, in the launcher of host 0: it passes every post to all launchers, in one order.
//!
//! All launchers see the same posts in the same order, so all make the same decisions by
//! themselves. The relay decides nothing but who is connected to whom: launchers are a tree, each
//! with a few children, so that a job may have many hosts.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use distribute_net::handshake::Hello;
use distribute_net::peers::{self, Connection};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};
use tokio_stream::{Stream, StreamExt};

use crate::error::{LaunchError, Result};
use crate::events::Event;
use crate::hosts::branch::{Branch, LinkEvent, Upward};
use crate::hosts::children::{FAREWELL_TIME, Greeting, Inbox, NO_TLS, ProvenPeer, serve};
use crate::hosts::members::{Admitted, Members};
use crate::hosts::outbox::WAITING_MAX;
use crate::hosts::part::Part;
use crate::hosts::wait::{WaitOutcome, WaitReport};
use crate::hosts::wire::{Frame, Pace, Session, Settings, Terms, Welcome, hello, runtime};
use crate::job::hosts::Hosts;
use crate::report::console::Screen;
use crate::thread_scope::ThreadScope;

/// How often the relay checks whether a member is away for too long.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// At most for this long, changes of who is connected are gathered and told as one.
const GATHERING_MAX: Duration = Duration::from_millis(10);
/// Changes are gathered for this multiple of the time that sending the last ones took: in a job of
/// a few hosts they are sent at once, and in a job of many hosts the relay has time for the posts.
const GATHERING_PER_TELLING: u32 = 10;
/// How often the same refusal is reported.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(60);
/// How many refusals are remembered for that.
const REFUSALS_MAX: usize = 64;
/// The pause before trying again to listen at an address that this host does not have yet.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Runs until it is dropped.
pub struct Relay {
    _stopper: oneshot::Sender<()>,
}

impl Relay {
    /// Listens where the launchers meet. Waits for an address that this host does not have yet, as
    /// long as for the other launchers.
    pub fn start<'scope, 'env: 'scope>(
        threads: &ThreadScope<'scope, 'env>,
        hosts: &Hosts,
        terms: Terms,
        received: &Receiver<Event>,
        screen: &'env Screen,
    ) -> Result<WaitOutcome<Relay>> {
        let address = hosts.address;
        let failed = |source| LaunchError::Rendezvous { address, source };
        let mut report = WaitReport::new(hosts.join_timeout);
        let listener = loop {
            match TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                    if report.is_over() {
                        return Err(failed(error));
                    }
                    report.log_if_due(screen, || {
                        format!("host 0 waits for its address {address}: {error}")
                    })?;
                }
                Err(error) => return Err(failed(error)),
            }
            match received.recv_timeout(RETRY_PAUSE) {
                Ok(Event::Signal(signal)) => return Ok(WaitOutcome::Stopped(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                _ => {}
            }
        };
        let tls = hosts.tls()?;
        let runtime = runtime()?;
        let (turned_away, refusals) = mpsc::channel(REFUSALS_MAX);
        let connections = {
            let _entered = runtime.enter();
            let told = turned_away.clone();
            let refused = move |address: String, reason: Option<String>| {
                // In a flood only a few are reported.
                let reason = reason.unwrap_or_else(|| NO_TLS.to_string());
                let _many = told.try_send((address, reason));
            };
            let told = turned_away.clone();
            let lacking = hosts.lacking.clone();
            let lacks = move |why: String| {
                lacking.note(&why);
                let _many = told.try_send((String::new(), why));
            };
            peers::accept_or_say(listener, tls, refused, lacks).map_err(failed)?
        };
        let greeting = Greeting {
            hello: own_hello(hosts, terms).map_err(failed)?,
            secret: hosts.security.secret(),
            turned_away,
        };
        let members = Members::new(terms, hosts.arity);
        let pace = terms.pace();
        let (stopper, stop) = oneshot::channel();
        threads.spawn("relay", move || {
            let told = Refusals::new(screen);
            runtime.block_on(run(
                connections,
                greeting,
                members,
                pace,
                refusals,
                told,
                stop,
            ));
        })?;
        Ok(WaitOutcome::Done(Relay { _stopper: stopper }))
    }
}

/// Reports refused connections with the reason. The same report is not repeated often, as an
/// unauthenticated peer may try without end.
struct Refusals<'a> {
    screen: &'a Screen,
    told: BTreeMap<String, Instant>,
}

impl<'a> Refusals<'a> {
    fn new(screen: &'a Screen) -> Refusals<'a> {
        let told = BTreeMap::new();
        Refusals { screen, told }
    }

    fn tell(&mut self, who: &str, why: &str) {
        // The port differs from attempt to attempt.
        let address = who.rsplit_once(':').map_or(who, |(address, _)| address);
        let text = match address {
            "" => format!("host 0 cannot take connections of other launchers: {why}"),
            _ => format!("turned away a launcher at {address}: {why}"),
        };
        let is_new = |last: &Instant| last.elapsed() >= REFUSAL_INTERVAL;
        self.told.retain(|_, last| !is_new(last));
        if self.told.len() < REFUSALS_MAX && !self.told.contains_key(&text) {
            // A write error is noticed elsewhere.
            let _unread = self.screen.log(&text);
            self.told.insert(text, Instant::now());
        }
    }
}

/// The relay's hello.
fn own_hello(hosts: &Hosts, terms: Terms) -> io::Result<Hello> {
    let address = hosts.address;
    let settings = Settings {
        terms,
        // Host 0's part comes with its own membership.
        part: Part::default(),
        own_address: address.ip(),
        session: Session::new().map_err(io::Error::other)?,
    };
    // A relay that listens at all addresses does not know which of them others dial.
    let dialled = if hosts.is_forwarded || address.ip().is_unspecified() {
        String::new()
    } else {
        address.to_string()
    };
    hello(hosts, dialled, &settings)
}

/// A launcher that was sent to its parent has ended its connection to the relay.
struct Parted {
    host: usize,
    member: u64,
    attach: u64,
    has_arrived: bool,
}

/// The relay and the launchers that are connected to it.
struct Centre<'a> {
    members: Members,
    branch: Branch,
    told: Refusals<'a>,
    inbox: Inbox,
    served: JoinSet<()>,
    /// The launchers that are on their way to a parent.
    sent: JoinSet<Parted>,
    pace: Pace,
    /// Whether the list of who is connected has changed since the members were told of it, and
    /// until when further changes are gathered.
    has_changed: bool,
    gathers_until: Instant,
}

impl Centre<'_> {
    /// A launcher has proven itself.
    fn meet(&mut self, peer: ProvenPeer) {
        let is_for_host = |name: &str| peer.is_for_host(name);
        let now = Instant::now();
        let admitted = self
            .members
            .admit(peer.host, &peer.settings, is_for_host, now);
        let Admitted {
            member,
            received,
            next,
            here,
            attach,
            parent,
        } = match admitted {
            Ok(admitted) => admitted,
            Err(rejection) => {
                self.told.tell(&peer.address(), &rejection.why);
                self.served.spawn(peer.refuse(rejection, self.pace));
                return;
            }
        };
        let welcome = Welcome {
            member,
            received,
            next,
            here,
            parent,
        };
        if parent.is_some() {
            let (host, pace) = (peer.host, self.pace);
            self.sent.spawn(async move {
                let has_arrived = peer.send_away(welcome, pace).await;
                Parted {
                    host,
                    member,
                    attach,
                    has_arrived,
                }
            });
        } else if let Some(taken) = self.branch.take(peer.host, member, attach, next) {
            let (log, inbox) = (Arc::clone(self.members.log()), self.inbox.clone());
            let served = serve(peer, taken, welcome, log, inbox, self.pace);
            self.served.spawn(served);
        } else {
            self.members.forget_silent(peer.host, member, attach);
        }
    }

    /// A connection reports something.
    fn note(&mut self, host: usize, connection: u64, said: LinkEvent) {
        let now = Instant::now();
        match self.branch.note(host, connection, said, now) {
            Upward::Nothing => {}
            Upward::Changed => self.has_changed = true,
            Upward::Silent {
                host,
                member,
                attach,
            } => self.members.forget_silent(host, member, attach),
            Upward::Forward(frame) => match *frame {
                Frame::Up(up) => self.members.relay(*up, now),
                Frame::Left { host, member, .. } => self.members.left(host, member),
                _ => {}
            },
        }
    }

    /// A launcher that was sent to its parent is there, or it is gone or tries again.
    fn part(&mut self, parted: Parted) {
        let Parted {
            host,
            member,
            attach,
            has_arrived,
        } = parted;
        if has_arrived {
            self.members.arrived(host, member, attach, Instant::now());
        } else {
            self.members.forget_silent(host, member, attach);
        }
    }

    /// Tells the members who is connected.
    fn take_stock(&mut self) {
        let now = Instant::now();
        self.has_changed = false;
        let cuts = self.members.note_census(&self.branch.census(), now);
        for (host, member) in cuts {
            self.branch.cut(host, member);
        }
        let gathering = now.elapsed() * GATHERING_PER_TELLING;
        self.gathers_until = Instant::now() + gathering.min(GATHERING_MAX);
    }

    fn look(&mut self) {
        let now = Instant::now();
        self.branch.look(now);
        self.take_stock();
        self.members.look(now);
    }
}

async fn run(
    mut connections: impl Stream<Item = io::Result<Connection>> + Unpin,
    greeting: Greeting,
    members: Members,
    pace: Pace,
    mut refusals: mpsc::Receiver<(String, String)>,
    told: Refusals<'_>,
    mut stop: oneshot::Receiver<()>,
) {
    let (inbox, mut said) = mpsc::channel(WAITING_MAX);
    let mut greetings = JoinSet::new();
    let mut centre = Centre {
        members,
        branch: Branch::new(pace.away()),
        told,
        inbox,
        served: JoinSet::new(),
        sent: JoinSet::new(),
        pace,
        has_changed: false,
        gathers_until: Instant::now(),
    };
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = &mut stop => break,
            Some(Ok(connection)) = connections.next() => {
                greetings.spawn(greeting.clone().exchange(connection));
            }
            Some(greeted) = greetings.join_next() => {
                // An unauthenticated peer gets no answer.
                if let Ok(Ok(peer)) = greeted {
                    centre.meet(peer);
                }
            }
            Some((host, connection, frame)) = said.recv() => centre.note(host, connection, frame),
            Some((who, why)) = refusals.recv() => centre.told.tell(&who, &why),
            () = sleep_until(centre.gathers_until.into()), if centre.has_changed => {
                centre.take_stock();
            }
            _ = looks.tick() => centre.look(),
            Some(Ok(parted)) = centre.sent.join_next() => centre.part(parted),
            Some(_) = centre.served.join_next() => {}
        }
    }
    // Members still get the last posts; unauthenticated peers do not.
    drop((connections, greetings, said));
    centre.members.say_farewell();
    let mut served = centre.served;
    let all_served = async { while served.join_next().await.is_some() {} };
    let _late = timeout(FAREWELL_TIME, all_served).await;
}
