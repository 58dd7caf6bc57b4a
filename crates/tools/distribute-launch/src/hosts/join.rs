//! How a launcher becomes a member of the group: it connects to the relay and proves itself, again
//! and again until its deadline.

use std::io;
use std::net::IpAddr;
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
use crate::hosts::part::Part;
use crate::hosts::wait::{WaitOutcome, WaitReport};
use crate::hosts::wire::{Frame, Pace, Session, Settings, Terms, hello, receive, send};
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

/// A launcher's attempt to join the group.
pub struct Joining<'a> {
    pub runtime: &'a Runtime,
    pub hosts: &'a Hosts,
    pub terms: Terms,
    pub part: Part,
    pub session: &'a Session,
    pub received: &'a Receiver<Event>,
    pub screen: &'a Screen,
}

/// A connection to the relay as a member.
pub struct Joined {
    pub connection: Connection,
    /// Where the other hosts reach the processes of this one.
    pub own_address: IpAddr,
    /// The number of posts that the relay has from this launcher.
    pub received: u64,
}

impl Joining<'_> {
    /// Tries again after a broken connection, which says nothing about whether this launcher fits.
    pub fn run(&self) -> Result<WaitOutcome<Joined>> {
        let address = self.hosts.address;
        let tls = self.hosts.tls()?;
        let mut report = WaitReport::new(self.hosts.join_timeout);
        let mut last = "it has not answered".to_owned();
        let mut refusals = 0;
        let mut not_yet = NotYet::default();
        loop {
            let source = match self.attempt(tls.as_ref(), &mut report, &last) {
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
            if not_yet.is_final(&source, self.terms.pace()) {
                return Err(refused(source));
            }
            if report.is_over() {
                return Err(LaunchError::Rendezvous { address, source });
            }
            last = source.to_string();
            self.log(&mut report, &last)?;
            if let Some(signal) = self.signal_within(RETRY_PAUSE)? {
                return Ok(WaitOutcome::Stopped(signal));
            }
        }
    }

    /// Makes one attempt, and returns early at a signal.
    fn attempt(
        &self,
        tls: Option<&TlsSettings>,
        report: &mut WaitReport,
        last: &str,
    ) -> Result<WaitOutcome<Joined>> {
        let mut joining = Box::pin(async {
            let joined = timeout(
                ATTEMPT_TIMEOUT,
                join(self.hosts, self.terms, self.part, self.session, tls),
            )
            .await;
            joined.unwrap_or_else(|late| Err(cannot_meet(self.hosts, late)))
        });
        loop {
            let waiting = async { timeout(POLL_INTERVAL, &mut joining).await };
            if let Ok(joined) = self.runtime.block_on(waiting) {
                return joined.map(WaitOutcome::Done);
            }
            self.log(report, last)?;
            if let Some(signal) = self.signal_within(Duration::ZERO)? {
                return Ok(WaitOutcome::Stopped(signal));
            }
        }
    }

    fn log(&self, report: &mut WaitReport, last: &str) -> Result<()> {
        let Hosts { address, index, .. } = *self.hosts;
        report.log_if_due(self.screen, || {
            format!("host {index} waits for the launcher of host 0 at {address}: {last}")
        })
    }

    /// The signal that reaches the launcher within this time.
    fn signal_within(&self, time: Duration) -> Result<Option<i32>> {
        match self.received.recv_timeout(time) {
            Ok(Event::Signal(signal)) => Ok(Some(signal)),
            Ok(Event::Broken(error)) => Err(error),
            _ => Ok(None),
        }
    }
}

fn cannot_meet(hosts: &Hosts, source: impl Into<io::Error>) -> LaunchError {
    LaunchError::Rendezvous {
        address: hosts.address,
        source: source.into(),
    }
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

/// Connects to the relay and proves itself.
pub async fn join(
    hosts: &Hosts,
    terms: Terms,
    part: Part,
    session: &Session,
    tls: Option<&TlsSettings>,
) -> Result<Joined> {
    let opened = Connection::open(&hosts.dialled().to_string(), tls).await;
    let mut connection = opened.map_err(|(why, is_final)| {
        if is_final {
            refused(why)
        } else {
            cannot_meet(hosts, io::Error::other(why))
        }
    })?;
    let greeted = greet(hosts, terms, part, session, &mut connection).await;
    let (own_address, received) = greeted?;
    Ok(Joined {
        connection,
        own_address,
        received,
    })
}

/// Both sides prove that they know the token. Returns where the other hosts reach this one, and how
/// many of its posts the relay has.
async fn greet(
    hosts: &Hosts,
    terms: Terms,
    part: Part,
    session: &Session,
    connection: &mut Connection,
) -> Result<(IpAddr, u64)> {
    let failed = |source: io::Error| cannot_meet(hosts, source);
    let local = connection.local_addr().map_err(failed)?.ip();
    let settings = Settings {
        terms,
        part,
        own_address: hosts.own_address.unwrap_or(local),
        session: session.clone(),
    };
    let own = hello(hosts, hosts.dialled().to_string(), &settings).map_err(failed)?;
    let greeted = exchange::dial(connection, own, &hosts.security.secret()).await;
    greeted.map_err(|error| match error {
        ExchangeError::Broken(error) => failed(error),
        ExchangeError::Refused(error) => failed(io::Error::other(error)),
        error => refused(error),
    })?;
    let received = match receive(ATTEMPT_TIMEOUT, connection).await.map_err(failed)? {
        Frame::Welcome(received) => received,
        Frame::Refused(why) => return Err(refused(why)),
        Frame::NotYet(why) => return Err(failed(io::Error::other(Refusal(why)))),
        _ => return Err(failed(io::ErrorKind::InvalidData.into())),
    };
    // A member that sends nothing is expected to connect again.
    let beat = Frame::Beat(session.received);
    send(ATTEMPT_TIMEOUT, connection, &beat)
        .await
        .map_err(failed)?;
    Ok((settings.own_address, received))
}
