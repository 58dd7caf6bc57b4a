//! How a launcher becomes a member of the group: it connects to the relay and proves itself, again
//! and again until its deadline. The relay says to which other launcher it is to connect, if the
//! job has many hosts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use distribute_net::exchange::{self, ExchangeError};
use distribute_net::handshake::HandshakeError;
use distribute_net::peers::Connection;
use distribute_net::tls::TlsSettings;
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::error::{LaunchError, Result};
use crate::events::Event;
use crate::hosts::inner::Door;
use crate::hosts::part::Part;
use crate::hosts::wait::{WaitOutcome, WaitReport};
use crate::hosts::wire::{
    Frame, Listed, Pace, Parent, Session, Settings, Terms, Welcome, hello, receive, send,
};
use crate::job::hosts::Hosts;
use crate::report::console::Screen;

/// How long to wait before connecting again to a host that does not listen yet.
pub const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// The limit for one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often to check for a signal during an attempt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How many refusals in a row are final. One is not enough: without TLS a byte that was changed
/// on the way looks like a launcher that does not fit.
const REFUSALS_MAX: u32 = 5;

/// How many launchers one attempt to join dials besides the relay.
const PARENTS_MAX: usize = 3;

/// A launcher's attempt to join the group.
pub struct Joining<'a> {
    pub runtime: &'a Runtime,
    pub dialer: &'a mut Dialer,
    pub received: &'a Receiver<Event>,
    pub screen: &'a Screen,
}

/// What a launcher says when it connects, now and later.
pub struct Dialer {
    pub hosts: Hosts,
    pub terms: Terms,
    pub part: Part,
    pub session: Session,
    /// Where others connect to this launcher.
    pub door: Option<Door>,
    /// Whether there can be a door.
    wants_door: bool,
}

/// A connection to a parent as a member.
pub struct Joined {
    pub connection: Connection,
    /// Where the other hosts reach the processes of this one.
    pub own_address: IpAddr,
    /// What the relay has said.
    pub welcome: Welcome,
}

impl Joining<'_> {
    /// Tries again after a broken connection, which says nothing about whether this launcher fits.
    pub fn run(&mut self) -> Result<WaitOutcome<Joined>> {
        let address = self.dialer.hosts.address;
        let mut report = WaitReport::new(self.dialer.hosts.join_timeout);
        let mut last = "it has not answered".to_owned();
        let mut refusals = 0;
        let mut not_yet = NotYet::default();
        loop {
            let source = match self.attempt(&mut report, &last) {
                Err(LaunchError::Rendezvous { source, .. }) => source,
                ended => return ended,
            };
            refusals = if does_not_fit(&source) {
                refusals + 1
            } else {
                0
            };
            if refusals == REFUSALS_MAX {
                return Err(refused(source));
            }
            if not_yet.is_final(&source, self.dialer.terms.pace()) {
                return Err(refused(source));
            }
            if report.is_over() {
                return Err(LaunchError::Rendezvous { address, source });
            }
            last = source.to_string();
            let index = self.dialer.hosts.index;
            log(&mut report, self.screen, index, address, &last)?;
            if let Some(signal) = signal_within(self.received, RETRY_PAUSE)? {
                return Ok(WaitOutcome::Stopped(signal));
            }
        }
    }

    /// Makes one attempt, and returns early at a signal.
    fn attempt(&mut self, report: &mut WaitReport, last: &str) -> Result<WaitOutcome<Joined>> {
        let (runtime, received, screen) = (self.runtime, self.received, self.screen);
        let (index, address) = (self.dialer.hosts.index, self.dialer.hosts.address);
        let mut joining = Box::pin(async {
            let joined = timeout(ATTEMPT_TIMEOUT, self.dialer.join(Vec::new())).await;
            joined.unwrap_or_else(|late| Err(cannot_meet(address, late)))
        });
        loop {
            let waiting = async { timeout(POLL_INTERVAL, &mut joining).await };
            if let Ok(joined) = runtime.block_on(waiting) {
                return joined.map(WaitOutcome::Done);
            }
            log(report, screen, index, address, last)?;
            if let Some(signal) = signal_within(received, Duration::ZERO)? {
                return Ok(WaitOutcome::Stopped(signal));
            }
        }
    }
}

fn log(
    report: &mut WaitReport,
    screen: &Screen,
    index: usize,
    address: SocketAddr,
    last: &str,
) -> Result<()> {
    report.log_if_due(screen, || {
        format!("host {index} waits for the launcher of host 0 at {address}: {last}")
    })
}

/// The signal that reaches the launcher within this time.
fn signal_within(received: &Receiver<Event>, time: Duration) -> Result<Option<i32>> {
    match received.recv_timeout(time) {
        Ok(Event::Signal(signal)) => Ok(Some(signal)),
        Ok(Event::Broken(error)) => Err(error),
        _ => Ok(None),
    }
}

fn cannot_meet(address: SocketAddr, source: impl Into<io::Error>) -> LaunchError {
    let source = source.into();
    LaunchError::Rendezvous { address, source }
}

/// Why the relay does not take this launcher in yet.
#[derive(Debug, Error)]
#[error("{0}")]
struct Refusal(String);

/// Since when the relay has answered "not yet".
#[derive(Default)]
struct NotYet(Option<Instant>);

impl NotYet {
    /// Whether the relay has answered so for longer than a lost connection can stay unnoticed.
    fn is_final(&mut self, error: &io::Error, pace: Pace) -> bool {
        let inner = error.get_ref();
        if !inner.is_some_and(|inner| inner.is::<Refusal>()) {
            self.0 = None;
            return false;
        }
        let since = self.0.get_or_insert_with(Instant::now);
        since.elapsed() > pace.silence() + pace.attempt()
    }
}

/// Whether a handshake says that the two launchers do not fit.
fn does_not_fit(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner.is_some_and(|inner| inner.is::<HandshakeError>())
}

fn refused(why: impl ToString) -> LaunchError {
    LaunchError::HostRefused {
        why: why.to_string(),
    }
}

impl Dialer {
    /// What the launcher of this host says, in a job of these terms.
    pub fn new(hosts: &Hosts, terms: Terms, part: Part) -> Result<Dialer> {
        Ok(Dialer {
            hosts: hosts.clone(),
            terms,
            part,
            session: Session::new()?,
            door: None,
            // With a few hosts the relay is the parent of all.
            wants_door: hosts.index > 0 && terms.hosts > hosts.arity + 1,
        })
    }

    /// Connects to the relay, and to the parent that it names, with `below` as who is below this
    /// launcher.
    pub async fn join(&mut self, below: Vec<Listed>) -> Result<Joined> {
        let tls = self.hosts.tls()?;
        let (address, relay) = (self.hosts.address, self.hosts.dialled());
        let mut last = None;
        for _parent in 0..PARENTS_MAX {
            self.session.attach += 1;
            let mut joined = self.dial(relay, tls.as_ref(), None).await?;
            let Some(parent) = joined.welcome.parent else {
                self.begin(&mut joined, below).await?;
                return Ok(joined);
            };
            match self.reach(parent, tls.as_ref(), joined, &below).await {
                Ok(joined) => return Ok(joined),
                Err(error) => {
                    let Parent { host, address } = parent;
                    last = Some(format!("host {host} at {address}: {}", reason(&error)));
                }
            }
        }
        let why = io::Error::other(last.unwrap_or_default());
        Err(cannot_meet(address, why))
    }

    /// Connects to the parent that the relay has named. By its own connection the relay notices
    /// meanwhile if this launcher is killed.
    async fn reach(
        &mut self,
        parent: Parent,
        tls: Option<&TlsSettings>,
        relay: Joined,
        below: &[Listed],
    ) -> Result<Joined> {
        let Joined {
            connection: mut relay,
            welcome,
            ..
        } = relay;
        let (address, pace) = (self.hosts.address, self.terms.pace());
        let failed = |error| cannot_meet(address, error);
        // Until this succeeds, also if the attempt is given up because the parent does not answer:
        // the relay is to name another one.
        self.session.avoid.insert(parent.host);
        let mut joined = {
            let dialling = self.dial(parent.address, tls, Some((parent.host, &welcome)));
            let mut dialling = Box::pin(dialling);
            loop {
                if let Ok(joined) = timeout(pace.beat(), &mut dialling).await {
                    break joined?;
                }
                let sent = send(pace.silence(), &mut relay, &Frame::Beat(0)).await;
                sent.map_err(failed)?;
            }
        };
        joined.welcome = welcome;
        self.begin(&mut joined, below.to_vec()).await?;
        let sent = send(pace.silence(), &mut relay, &Frame::Arrived).await;
        sent.map_err(failed)?;
        Ok(joined)
    }

    /// A member that sends nothing is expected to connect again.
    async fn begin(&mut self, joined: &mut Joined, below: Vec<Listed>) -> Result<()> {
        let has = joined.welcome.next;
        let census = Frame::Census { has, below };
        let sent = send(ATTEMPT_TIMEOUT, &mut joined.connection, &census).await;
        sent.map_err(|error| cannot_meet(self.hosts.address, error))?;
        self.session.avoid.clear();
        Ok(())
    }

    /// Connects to the relay, or to the launcher of a host, as the relay has said in its welcome;
    /// and proves itself.
    async fn dial(
        &mut self,
        to: SocketAddr,
        tls: Option<&TlsSettings>,
        parent: Option<(usize, &Welcome)>,
    ) -> Result<Joined> {
        let address = self.hosts.address;
        let opened = Connection::open(&to.to_string(), tls).await;
        let mut connection = opened.map_err(|(why, is_final)| {
            if is_final {
                refused(why)
            } else {
                cannot_meet(address, io::Error::other(why))
            }
        })?;
        let (own_address, welcome) = self.greet(to, &mut connection, parent).await?;
        Ok(Joined {
            connection,
            own_address,
            welcome,
        })
    }

    /// Both sides prove that they know the token. Returns where the other hosts reach this one, and
    /// what the other side says.
    async fn greet(
        &mut self,
        to: SocketAddr,
        connection: &mut Connection,
        parent: Option<(usize, &Welcome)>,
    ) -> Result<(IpAddr, Welcome)> {
        let failed = |source: io::Error| cannot_meet(to, source);
        let local = connection.local_addr().map_err(failed)?.ip();
        let own_address = self.hosts.own_address.unwrap_or(local);
        self.open_door(own_address);
        let mut session = self.session.clone();
        if let Some((_, welcome)) = parent {
            (session.member, session.has) = (Some(welcome.member), welcome.next);
        }
        let settings = Settings {
            terms: self.terms,
            part: self.part,
            own_address,
            session,
        };
        let own = hello(&self.hosts, to.to_string(), &settings).map_err(failed)?;
        let greeted = exchange::dial(connection, own, &self.hosts.security.secret()).await;
        let greeted = greeted.map_err(|error| match error {
            ExchangeError::Broken(error) => failed(error),
            ExchangeError::Refused(error) => failed(io::Error::other(error)),
            error => refused(error),
        })?;
        let wanted = parent.map_or(0, |(host, _)| host);
        if usize::try_from(greeted.peer.identity.task) != Ok(wanted) {
            return Err(failed(io::Error::other("another launcher answers there")));
        }
        match receive(ATTEMPT_TIMEOUT, connection).await.map_err(failed)? {
            Frame::Welcome(welcome) => Ok((own_address, *welcome)),
            Frame::Refused(why) => Err(refused(why)),
            Frame::NotYet(why) => Err(failed(io::Error::other(Refusal(why)))),
            _ => Err(failed(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Lets others connect to this launcher, if the job has many hosts. Without a port the launcher
    /// has no children.
    fn open_door(&mut self, at: IpAddr) {
        if !std::mem::take(&mut self.wants_door) {
            return;
        }
        match Door::open(at, self.hosts.ports.clone()) {
            Ok(door) => {
                self.session.door = Some(door.address);
                self.door = Some(door);
            }
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(error, "no other launcher can connect to this one");
            }
        }
    }
}

/// Why a launcher could not be reached, without the address where all meet.
fn reason(error: &LaunchError) -> String {
    match error {
        LaunchError::Rendezvous { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}
