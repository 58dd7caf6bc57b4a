//! How a launcher becomes a member of the group: it connects to the relay and proves itself, again
//! and again until its deadline.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::error::{LaunchError, Result};
use crate::events::Event;
use crate::hosts::wait::{WaitOutcome, WaitReport};
use crate::hosts::wire::{
    Answer, Challenge, Hello, Side, VERSION, close, prepare, proof, random, receive_handshake,
    send, verify,
};
use crate::job::hosts::Hosts;
use crate::report::console::Screen;
use crate::thread_scope::ThreadScope;

/// How long to wait before connecting again to a host that does not listen yet.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long one attempt to connect takes: a signal is heard after it at the latest.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked for a signal while an attempt is under way.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What happens while a launcher tries to join.
pub struct Joining<'a, 's, 'scope, 'env> {
    pub threads: &'a ThreadScope<'scope, 'env>,
    pub hosts: &'a Hosts,
    pub restarts_max: u32,
    pub received: &'a Receiver<Event>,
    pub screen: &'a Screen<'s>,
}

impl Joining<'_, '_, '_, '_> {
    /// A connection that breaks says nothing about whether this launcher is welcome.
    pub fn run(&self) -> Result<WaitOutcome<TcpStream>> {
        let address = self.hosts.address;
        let mut report = WaitReport::new(self.hosts.join_timeout);
        let mut last = "it has not answered".to_owned();
        loop {
            let source = match self.attempt(&mut report, &last) {
                Err(LaunchError::Rendezvous { source, .. }) => source,
                ended => return ended,
            };
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

    /// One attempt, on a thread of its own so that a signal is heard meanwhile.
    fn attempt(&self, report: &mut WaitReport, last: &str) -> Result<WaitOutcome<TcpStream>> {
        let address = self.hosts.address;
        let failed = |source| LaunchError::Rendezvous { address, source };
        let stream = dial(&address).map_err(failed)?;
        let connection = stream.try_clone().map_err(failed)?;
        let (sender, outcome) = sync_channel(1);
        let (hosts, restarts_max) = (self.hosts.clone(), self.restarts_max);
        self.threads.spawn("join the group", move || {
            let joined = handshake(&hosts, restarts_max, &stream);
            let _gone = sender.send(joined.map(|()| stream));
        })?;
        let ended = loop {
            match outcome.recv_timeout(POLL_INTERVAL) {
                Ok(joined) => return joined.map(WaitOutcome::Done),
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(failed(io::ErrorKind::Other.into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let logged = self.log(report, last);
            match logged.and_then(|()| self.signal_within(Duration::ZERO)) {
                Ok(None) => {}
                Ok(Some(signal)) => break Ok(WaitOutcome::Stopped(signal)),
                Err(error) => break Err(error),
            }
        };
        // The attempt is given up.
        close(&connection, Shutdown::Both);
        ended
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

/// Connects to somebody who listens there.
fn dial(address: &SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, DIAL_TIMEOUT)?;
    if stream.local_addr()? == stream.peer_addr()? {
        // The system drew this very port for the attempt, which makes TCP answer itself.
        return Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "nobody listens there",
        ));
    }
    Ok(stream)
}

/// Proves to the relay that this launcher knows the secret, and makes sure that the relay does.
fn handshake(hosts: &Hosts, restarts_max: u32, stream: &TcpStream) -> Result<()> {
    let address = hosts.address;
    let failed = |source| LaunchError::Rendezvous { address, source };
    prepare(stream).map_err(failed)?;
    let hello = Hello {
        version: VERSION,
        host: hosts.index,
        hosts: hosts.count,
        restarts_max,
        nonce: random()?,
    };
    send(stream, &hello).map_err(failed)?;
    let challenge: Challenge = receive_handshake(stream).map_err(failed)?;
    let nonce = &challenge.nonce;
    let refused = |why: &str| LaunchError::HostRefused {
        why: why.to_owned(),
    };
    if !verify(&hosts.secret, Side::Relay, &hello, nonce, &challenge.proof) {
        return Err(refused("the secrets differ"));
    }
    let own = proof(&hosts.secret, Side::Launcher, &hello, nonce);
    let own = own.ok_or_else(|| refused("the secret cannot be used as a key"))?;
    send(stream, &own).map_err(failed)?;
    match receive_handshake(stream).map_err(failed)? {
        Answer::Welcome => Ok(()),
        Answer::Refused(why) => Err(refused(&why)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Two ports next to each other: Linux gives connections those of one parity first.
    #[test]
    fn a_socket_connected_to_itself_is_no_relay() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port() & !1;
        drop(free);
        let pair = [port, port + 1].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let is_drawn = pair.iter().cycle().take(300_000).any(|at| match dial(at) {
            Ok(stream) => {
                assert_ne!(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
                false
            }
            Err(error) => error.to_string() == "nobody listens there",
        });
        assert!(is_drawn, "chance never drew the port");
    }
}
