//! The listening side of the connections between launchers, at the relay and at every other
//! launcher that has children.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use distribute_net::exchange::{self, ExchangeError};
use distribute_net::handshake::{Hello, Secret};
use distribute_net::peers::Connection;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::hosts::branch::{LinkEvent, Taken};
use crate::hosts::line::{ChildLine, Last, Order};
use crate::hosts::log::{Log, Next};
use crate::hosts::members::Rejection;
use crate::hosts::wire::{Frame, Pace, Settings, Welcome, receive, send, send_line};

/// How long a launcher waits at its end until those that are connected to it have left.
pub const FAREWELL_TIME: Duration = Duration::from_secs(5);
/// The refusal of a connection without TLS, where this side uses TLS.
pub const NO_TLS: &str = "it began no TLS handshake; give all launchers their --certs DIR";

/// The listening side of every handshake.
#[derive(Clone)]
pub struct Greeting {
    pub hello: Hello,
    pub secret: Secret,
    /// Refusals: the address, and the reason.
    pub turned_away: mpsc::Sender<(String, String)>,
}

/// An authenticated launcher.
pub struct ProvenPeer {
    pub host: usize,
    pub settings: Settings,
    pub connection: Connection,
}

impl ProvenPeer {
    /// Its address, as shown in reports.
    pub fn address(&self) -> String {
        format!("{} (host {}):0", self.settings.own_address, self.host)
    }

    /// Whether its certificate names an address.
    pub fn is_for_host(&self, name: &str) -> bool {
        self.connection.guard().channel().is_for_host(name)
    }

    /// Says why the launcher is not admitted.
    pub async fn refuse(mut self, rejection: Rejection, pace: Pace) {
        let Rejection { why, may_pass } = rejection;
        let refused = if may_pass {
            Frame::NotYet(why)
        } else {
            Frame::Refused(why)
        };
        let _gone = send(pace.silence(), &mut self.connection, &refused).await;
    }

    /// Sends the launcher to its parent. Returns whether it says that it is there, before this
    /// connection breaks or is silent.
    pub async fn send_away(mut self, welcome: Welcome, pace: Pace) -> bool {
        let (limit, welcome) = (pace.silence(), Frame::Welcome(Box::new(welcome)));
        let mut is_alive = send(limit, &mut self.connection, &welcome).await.is_ok();
        while is_alive {
            match receive(limit, &mut self.connection).await {
                Ok(Frame::Arrived) => return true,
                received => is_alive = matches!(received, Ok(Frame::Beat(_))),
            }
        }
        false
    }
}

impl Greeting {
    /// Both sides prove that they know the token. The guard of the connection sets the deadline.
    pub async fn exchange(self, mut connection: Connection) -> io::Result<ProvenPeer> {
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

/// What the connections of children report: the host, the connection, and what happened.
pub type Inbox = mpsc::Sender<(usize, u64, LinkEvent)>;

/// Serves one connection of a child until it or this launcher goes.
pub async fn serve(
    peer: ProvenPeer,
    taken: Taken,
    welcome: Welcome,
    log: Arc<Log>,
    inbox: Inbox,
    pace: Pace,
) {
    let ProvenPeer {
        host,
        mut connection,
        ..
    } = peer;
    let limit = pace.silence();
    let Taken {
        line,
        connection: number,
    } = taken;
    let next = welcome.next;
    let welcome = Frame::Welcome(Box::new(welcome));
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
        () = write(writer, &log, &line, next, pace) => false,
    };
    // Ignored if the connection has been replaced or its launcher has left.
    let said = LinkEvent::Broken { is_closed };
    let _over = inbox.send((host, number, said)).await;
}

/// Sends the posts of all from number `next` on to a child, with heartbeats and orders between
/// them, until there is no more to send or the child is gone.
async fn write(
    mut stream: impl AsyncWrite + Unpin,
    log: &Log,
    orders: &ChildLine,
    mut next: u64,
    pace: Pace,
) {
    let limit = pace.silence();
    // Heartbeats go out between posts too: a silent side counts as lost.
    let mut beats = interval(pace.beat());
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let frame = tokio::select! {
            order = orders.next(next) => match order {
                Order::Send(frame) => frame,
                Order::End(Last::Quit) => Frame::Quit,
                Order::End(Last::Move { .. }) => Frame::Move,
                Order::End(Last::Replaced) => return,
            },
            _ = beats.tick() => Frame::Beat(log.first()),
            post = log.next(next) => match post {
                Next::Line(line) => {
                    if send_line(limit, &mut stream, &line.text).await.is_err() {
                        return;
                    }
                    next += 1;
                    continue;
                }
                Next::Farewell => Frame::Bye,
            },
        };
        let sent = send(limit, &mut stream, &frame).await;
        if matches!(frame, Frame::Bye | Frame::Quit | Frame::Move) {
            let _closed_already = stream.shutdown().await;
            return;
        }
        if sent.is_err() {
            return;
        }
    }
}
