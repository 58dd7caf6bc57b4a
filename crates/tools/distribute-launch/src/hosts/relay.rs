//! The relay, in the launcher of host 0: it passes every post to all launchers, in one order.
//!
//! All launchers see the same posts in the same order, so all make the same decisions by
//! themselves. The relay decides nothing.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use distribute_net::exchange::{self, ExchangeError};
use distribute_net::handshake::{Hello, Secret};
use distribute_net::peers::{self, Connection};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::{Stream, StreamExt};

use crate::error::{LaunchError, Result};
use crate::events::Event;
use crate::hosts::members::{Admitted, LinkEvent, Members, Rejection};
use crate::hosts::outbox::WAITING_MAX;
use crate::hosts::part::Part;
use crate::hosts::wait::{WaitOutcome, WaitReport};
use crate::hosts::wire::{
    Frame, Pace, Session, Settings, Terms, hello, receive, runtime, send, write,
};
use crate::job::hosts::Hosts;
use crate::report::console::Screen;
use crate::thread_scope::ThreadScope;

/// How often the relay checks whether a member is away for too long.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long the relay waits at its end until the last posts are sent.
const FAREWELL_TIME: Duration = Duration::from_secs(5);
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
        let members = Members::new(terms);
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

async fn run(
    mut connections: impl Stream<Item = io::Result<Connection>> + Unpin,
    greeting: Greeting,
    mut members: Members,
    pace: Pace,
    mut refusals: mpsc::Receiver<(String, String)>,
    mut told: Refusals<'_>,
    mut stop: oneshot::Receiver<()>,
) {
    let (inbox, mut said) = mpsc::channel(WAITING_MAX);
    let (mut greetings, mut served) = (JoinSet::new(), JoinSet::new());
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
                    let guard = peer.connection.guard();
                    let is_for_host = |name: &str| guard.channel().is_for_host(name);
                    let admitted = members.admit(peer.host, &peer.settings, is_for_host);
                    if let Err(rejection) = &admitted {
                        told.tell(&peer.address(), &rejection.why);
                    }
                    served.spawn(serve(peer, admitted, inbox.clone(), pace));
                }
            }
            Some((host, connection, frame)) = said.recv() => {
                members.note(host, connection, frame);
            }
            Some((who, why)) = refusals.recv() => told.tell(&who, &why),
            _ = looks.tick() => members.look(Instant::now()),
            Some(_) = served.join_next() => {}
        }
    }
    // Members still get the last posts; unauthenticated peers do not.
    drop((connections, greetings, said));
    members.say_farewell();
    let all_served = async { while served.join_next().await.is_some() {} };
    let _late = timeout(FAREWELL_TIME, all_served).await;
}

/// The refusal of a connection without TLS, where this side uses TLS.
const NO_TLS: &str = "it began no TLS handshake; give all launchers their --certs DIR";

/// The relay's side of every handshake.
#[derive(Clone)]
struct Greeting {
    hello: Hello,
    secret: Secret,
    /// Refusals: the address, and the reason.
    turned_away: mpsc::Sender<(String, String)>,
}

/// An authenticated launcher.
struct ProvenPeer {
    host: usize,
    settings: Settings,
    connection: Connection,
}

impl ProvenPeer {
    /// Its address, as shown in reports.
    fn address(&self) -> String {
        format!("{} (host {}):0", self.settings.own_address, self.host)
    }
}

impl Greeting {
    /// Both sides prove that they know the token. The guard of the connection sets the deadline.
    async fn exchange(self, mut connection: Connection) -> io::Result<ProvenPeer> {
        let greeted = exchange::listen(&mut connection, self.hello, &self.secret).await;
        let greeted = greeted.map_err(|error| {
            if let (ExchangeError::Refused(why), Ok(address)) = (&error, connection.peer_addr()) {
                // In a flood only a few are reported.
                let _many = self
                    .turned_away
                    .try_send((address.to_string(), why.to_string()));
            }
            io::Error::other(error)
        });
        let peer = greeted?.peer;
        Ok(ProvenPeer {
            // A number that is too large belongs to no host.
            host: usize::try_from(peer.identity.task).unwrap_or(usize::MAX),
            settings: peer.read_details().map_err(io::Error::other)?,
            connection,
        })
    }
}

/// Serves one connection of a launcher until it or the relay goes.
async fn serve(
    peer: ProvenPeer,
    admitted: Result<Admitted, Rejection>,
    inbox: mpsc::Sender<(usize, u64, LinkEvent)>,
    pace: Pace,
) {
    let ProvenPeer {
        host,
        mut connection,
        ..
    } = peer;
    let limit = pace.silence();
    let Admitted {
        outbox,
        received,
        connection: number,
        next,
    } = match admitted {
        Ok(admitted) => admitted,
        Err(Rejection { why, may_pass }) => {
            let refused = if may_pass {
                Frame::NotYet(why)
            } else {
                Frame::Refused(why)
            };
            let _gone = send(limit, &mut connection, &refused).await;
            return;
        }
    };
    let welcome = Frame::Welcome(received.load(Ordering::Relaxed));
    if send(limit, &mut connection, &welcome).await.is_err() {
        let said = LinkEvent::Broken { is_closed: true };
        let _over = inbox.send((host, number, said)).await;
        return;
    }
    let (mut reader, writer) = tokio::io::split(connection);
    let read = async {
        loop {
            let frame = match receive(limit, &mut reader).await {
                Ok(frame) => frame,
                Err(error) => return error.kind() != io::ErrorKind::TimedOut,
            };
            let is_last = matches!(frame, Frame::Bye | Frame::Quit);
            let _over = inbox.send((host, number, LinkEvent::Frame(frame))).await;
            if is_last {
                return true;
            }
        }
    };
    let is_closed = tokio::select! {
        is_closed = read => is_closed,
        _written = write(writer, &outbox, number, next, &received, pace) => false,
    };
    // Ignored if the connection has been replaced or its launcher has left.
    let said = LinkEvent::Broken { is_closed };
    let _over = inbox.send((host, number, said)).await;
}
