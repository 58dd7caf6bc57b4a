//! The protocol between launchers, over TLS where they have certificates.
//!
//! Every message is a text after its length, like the messages of the handshake:
//!
//! ```text
//! launcher -> relay    Hello                       the handshake of all processes of a job,
//! relay -> launcher    proof of the relay, Hello   see distribute_net::handshake
//! launcher -> relay    proof of the launcher
//! relay -> launcher    Welcome, or Refused or NotYet and why
//! launcher -> parent   Census at once, Up, Left, Bye or Quit
//! parent -> launcher   Beat, Post, Cut, Again, Move, Bye or Quit
//! ```
//!
//! A launcher dials the relay, in the launcher of host 0, which admits it and says who its parent
//! is: itself, and the connection stays; or another launcher, which it dials with the same
//! handshake. Meanwhile it beats on the connection to the relay, so that the relay notices if it is
//! killed on its way, and ends it with Arrived. So the launchers are a tree.
//!
//! The posts of a launcher are numbered from 0 and travel up. The relay puts the posts of all into
//! one order, with numbers too, which travels down: a launcher sees from it which of its own posts
//! have arrived. Whatever breaks on the way, a launcher goes on with another parent, says up to
//! which number it has the posts of all, and sends again its own that have not arrived.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use distribute_net::exchange::{receive_text, send_text};
use distribute_net::handshake::{Hello, Purpose};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::error::{LaunchError, Result};
use crate::hosts::log::{Entry, Line, Sender};
use crate::hosts::part::Part;
use crate::job::cluster::Token;
use crate::job::hosts::Hosts;
use crate::job::workers::WorkerRange;
use crate::posts::Post;

/// The version of the protocol after the handshake.
const VERSION: u32 = 9;
/// The longest interval between heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// The least time that a launcher has to connect again.
const CLOSED_TIME_MIN: Duration = Duration::from_secs(1);
/// The lower and the upper bound of the limit for one attempt to connect.
const ATTEMPT_TIMES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
const FRAME_BYTES_MAX: usize = 4 << 20;

/// A message after the handshake, as JSON.
#[derive(Clone, Serialize, Deserialize)]
pub enum Frame {
    /// The launcher is a member of the group.
    Welcome(Box<Welcome>),
    /// The launcher is refused, for this reason.
    Refused(String),
    /// The launcher is refused for now; the reason may pass.
    NotYet(String),
    /// Down: all launchers have the posts of all before this number.
    Beat(u64),
    /// Down: the next post of all.
    Post(Box<Entry>),
    /// Up: the launcher has the posts of all before this number, and who is below it.
    Census { has: u64, below: Vec<Listed> },
    /// Up: a post of this launcher or of one below.
    Up(Box<Up>),
    /// Up: a launcher below has said good-bye. `is_over` tells whether its job is over.
    Left {
        host: usize,
        member: u64,
        is_over: bool,
    },
    /// Down: the job goes on without this launcher, which is below.
    Cut { host: usize, member: u64 },
    /// Down: what was sent up may be lost; all below send again what has not arrived.
    Again,
    /// Down: there is another parent to find.
    Move,
    /// To the relay, from a launcher that it has sent to another one: it is connected there.
    Arrived,
    /// There are no more posts: the job is over.
    Bye,
    /// There are no more posts: the launcher gives up.
    Quit,
}

/// A launcher that is below another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub host: usize,
    /// The number that the relay gave it.
    pub member: u64,
    /// Which of its connections this is.
    pub attach: u64,
    /// It has the posts of all before this number.
    pub has: u64,
    /// How many launchers are between it and the one that lists it. In a list each launcher comes
    /// after its parent.
    pub depth: u32,
    /// If its connection is broken: whether the launcher's system closed it.
    pub is_closed: Option<bool>,
}

/// A post on its way to the relay.
#[derive(Clone, Serialize, Deserialize)]
pub struct Up {
    pub sender: Sender,
    pub post: Post,
}

/// What a launcher hears when it is admitted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Welcome {
    /// The number of this launcher among all that were ever admitted.
    pub member: u64,
    /// How many of its posts the relay has.
    pub received: u64,
    /// The number of the first post of all that it has not got.
    pub next: u64,
    /// The hosts that are there, for a launcher that is new.
    pub here: Vec<usize>,
    /// The launcher to connect to, if it is not this one.
    pub parent: Option<Parent>,
}

/// Another launcher, to which a launcher connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    pub host: usize,
    pub address: SocketAddr,
}

/// How long the two sides of a connection wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace(Duration);

impl Pace {
    /// Derives all times from how long a host may be out of reach.
    pub fn new(timeout: Duration) -> Pace {
        Pace(timeout)
    }

    /// How often each side sends something.
    pub fn beat(self) -> Duration {
        (self.0 / 6).min(HEARTBEAT_INTERVAL)
    }

    /// A connection is broken if no frame arrives, or none can be sent, for this
    /// long.
    pub fn silence(self) -> Duration {
        self.0 / 2
    }

    /// How long to wait for another connection. Together with the silence before, this is
    /// enough also for a host that is within reach again at the last moment.
    pub fn away(self) -> Duration {
        self.0
    }

    /// The same for a connection that the other end has closed, while processes fail.
    pub fn closed(self) -> Duration {
        (self.0 / 12).max(CLOSED_TIME_MIN).min(self.0)
    }

    /// How long an attempt to connect again may take.
    pub fn attempt(self) -> Duration {
        let [least, most] = ATTEMPT_TIMES;
        (self.0 / 6).clamp(least, most)
    }
}

/// What all launchers of a job must have alike.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Terms {
    /// How many hosts the job has.
    pub hosts: usize,
    pub restarts_max: u32,
    /// The least and the greatest number of workers of an elastic job.
    pub workers: Option<WorkerRange>,
    /// How long a host may be out of reach.
    pub host_timeout: Duration,
}

impl Terms {
    pub fn pace(&self) -> Pace {
        Pace::new(self.host_timeout)
    }
}

/// Links the successive connections of one launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Session {
    /// A random text that no other launcher has.
    id: String,
    /// Whether it is not the first connection.
    pub resumes: bool,
    /// The launcher has the posts of all before this number.
    pub has: u64,
    /// Which of the launcher's connections this is, counted from 1.
    pub attach: u64,
    /// The number that the relay gave the launcher, when it dials its parent.
    pub member: Option<u64>,
    /// Where other launchers can connect to this one.
    pub door: Option<SocketAddr>,
    /// Launchers to which it cannot connect.
    pub avoid: BTreeSet<usize>,
}

impl Session {
    pub fn new() -> Result<Session> {
        Ok(Session {
            id: Token::random()?.secret().to_owned(),
            resumes: false,
            has: 0,
            attach: 0,
            member: None,
            door: None,
            avoid: BTreeSet::new(),
        })
    }

    /// Whether both belong to one launcher.
    pub fn is_same(&self, other: &Session) -> bool {
        self.id == other.id
    }
}

/// What the relay compares besides what every handshake compares.
#[derive(Serialize, Deserialize)]
pub struct Settings {
    pub terms: Terms,
    /// What the host starts.
    pub part: Part,
    /// Where the other hosts reach the processes of this one.
    pub own_address: IpAddr,
    pub session: Session,
}

/// A launcher's hello: its settings, and the address of the relay.
pub fn hello(hosts: &Hosts, relay: String, settings: &Settings) -> io::Result<Hello> {
    let mut hello = Hello::new(Purpose::Launcher, VERSION, env!("CARGO_PKG_VERSION"));
    hello.address = relay;
    hello.identity.task = u32::try_from(hosts.index).map_err(io::Error::other)?;
    hello.details = serde_json::to_string(settings)?;
    Ok(hello)
}

/// The runtime of a thread that talks to other hosts.
pub fn runtime() -> Result<Runtime> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(LaunchError::system("cannot wait for other hosts"))
}

/// Sends one frame; an error if the other side takes it too slowly.
pub async fn send(
    limit: Duration,
    stream: &mut (impl AsyncWrite + Unpin),
    frame: &Frame,
) -> io::Result<()> {
    send_line(limit, stream, &serde_json::to_string(frame)?).await
}

/// Sends the text of a frame.
pub async fn send_line(
    limit: Duration,
    stream: &mut (impl AsyncWrite + Unpin),
    text: &str,
) -> io::Result<()> {
    timeout(limit, send_text(stream, text)).await?
}

/// Receives a frame. The limit is for the whole frame: a peer that sends a byte now and then is
/// as late as one that sends none.
pub async fn receive(limit: Duration, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    Ok(receive_with_text(limit, stream).await?.0)
}

/// As [`receive`], with the frame's text.
pub async fn receive_with_text(
    limit: Duration,
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<(Frame, String)> {
    let text = timeout(limit, receive_text(stream, FRAME_BYTES_MAX)).await??;
    Ok((serde_json::from_str(&text)?, text))
}

/// An entry of the log with the text of the frame that carries it.
pub fn line(entry: Entry) -> io::Result<Line> {
    let frame = Frame::Post(Box::new(entry.clone()));
    let text = serde_json::to_string(&frame)?;
    Ok(Line { entry, text })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn error(bytes: &[u8]) -> io::ErrorKind {
        let received = runtime().unwrap().block_on(receive(LIMIT, &mut &*bytes));
        received.map(|_| ()).unwrap_err().kind()
    }

    #[test]
    fn frames_arrive_and_broken_ones_are_errors() {
        runtime().unwrap().block_on(async {
            let (mut sender, mut receiver) = duplex(100);
            send(LIMIT, &mut sender, &Frame::Bye).await.unwrap();
            assert!(matches!(
                receive(LIMIT, &mut receiver).await,
                Ok(Frame::Bye)
            ));
        });
        assert_eq!(error(&[255; 64]), io::ErrorKind::InvalidData);
        assert_eq!(error(&[0, 3]), io::ErrorKind::UnexpectedEof);
        assert_eq!(error(b"\0\0\0\x05\"By"), io::ErrorKind::UnexpectedEof);
        assert_eq!(error(b"\0\0\0\x05{\"x\":"), io::ErrorKind::InvalidData);
        assert_eq!(error(b"\0\0\0\x05\"By\xff\""), io::ErrorKind::InvalidData);
        let deep = [&60_000_u32.to_be_bytes()[..], &[b'['; 60_000]].concat();
        assert_eq!(error(&deep), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_slow_frame_is_late() {
        runtime().unwrap().block_on(async {
            let limit = Duration::from_millis(200);
            let (mut sender, mut receiver) = duplex(100);
            let slowly = async {
                for byte in [0, 0, 0, 5, b'"', b'B', b'y', b'e', b'"'] {
                    sender.write_all(&[byte]).await.unwrap();
                    tokio::time::sleep(limit / 5).await;
                }
            };
            let (received, ()) = tokio::join!(receive(limit, &mut receiver), slowly);
            let kind = received.map(|_| ()).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::TimedOut);
        });
    }

    /// A host that is within reach again when the time is almost over finds that it is waited for.
    #[test]
    fn who_is_out_of_reach_for_less_than_the_limit_is_not_lost() {
        for seconds in [3, 12, 60, 600] {
            let timeout = Duration::from_secs(seconds);
            let pace = Pace::new(timeout);
            // The last frame may be one beat old when the silence begins.
            let lost = pace.silence() + pace.away() - pace.beat();
            assert!(lost >= timeout + pace.attempt() / 3, "{seconds}");
            assert!(pace.silence() > 2 * pace.beat(), "{seconds}");
        }
    }
}
