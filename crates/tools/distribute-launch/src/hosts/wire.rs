//! The protocol between launchers, over TLS where they have certificates.
//!
//! Every message is a text after its length, like the messages of the handshake:
//!
//! ```text
//! launcher -> relay   Hello                       the handshake of all processes of a job,
//! relay -> launcher   proof of the relay, Hello   see distribute_net::handshake
//! launcher -> relay   proof of the launcher
//! relay -> launcher   Welcome, or Refused or NotYet and why
//! both                Beat, Post, Bye or Quit     from the launcher a Beat at once
//! ```
//!
//! The posts of each direction are numbered from 0, and each side says how many it has. A
//! connection that breaks is followed by another one of the same session, over which the posts go
//! on with the first that has not arrived.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distribute_net::exchange::{receive_text, send_text};
use distribute_net::handshake::{Hello, Purpose};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::error::{LaunchError, Result};
use crate::hosts::outbox::{Farewell, Next, Outbox};
use crate::hosts::part::Part;
use crate::job::cluster::Token;
use crate::job::hosts::Hosts;
use crate::job::workers::WorkerRange;
use crate::posts::Post;

/// The version of the protocol after the handshake.
const VERSION: u32 = 8;
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
    /// The launcher is a member of the group; the relay has this many posts from it.
    Welcome(u64),
    /// The launcher is refused, for this reason.
    Refused(String),
    /// The launcher is refused for now; the reason may pass.
    NotYet(String),
    /// This many posts of the other side have arrived.
    Beat(u64),
    Post(Box<Post>),
    /// There are no more posts: the job is over.
    Bye,
    /// There are no more posts: the launcher gives up.
    Quit,
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
    fn beat(self) -> Duration {
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
    /// The number of posts that the launcher has from the relay.
    pub received: u64,
}

impl Session {
    pub fn new() -> Result<Session> {
        Ok(Session {
            id: Token::random()?.secret().to_owned(),
            resumes: false,
            received: 0,
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
    let text = serde_json::to_string(frame)?;
    timeout(limit, send_text(stream, &text)).await?
}

/// Receives a frame. The limit is for the whole frame: a peer that sends a byte now and then is
/// as late as one that sends none.
pub async fn receive(limit: Duration, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let text = timeout(limit, receive_text(stream, FRAME_BYTES_MAX)).await??;
    Ok(serde_json::from_str(&text)?)
}

/// How the writing side of a connection ended.
pub enum Written {
    /// All has been sent.
    All,
    Broken,
    /// Another connection has taken its place.
    Replaced,
}

/// Sends the posts from number `next` on over this connection, with heartbeats between them, until
/// the posts end or the other side is gone.
pub async fn write(
    mut stream: impl AsyncWrite + Unpin,
    outbox: &Outbox,
    connection: u64,
    mut next: u64,
    received: &AtomicU64,
    pace: Pace,
) -> Written {
    let limit = pace.silence();
    // Heartbeats go out between posts too: a silent side counts as lost, and so does one that
    // never confirms posts.
    let mut beats = interval(pace.beat());
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let frame = tokio::select! {
            _ = beats.tick() => Frame::Beat(received.load(Ordering::Relaxed)),
            post = outbox.next(connection, next) => match post {
                Next::Post(post) => {
                    next += 1;
                    Frame::Post(post)
                }
                Next::Farewell(farewell) => {
                    let last = match farewell {
                        Farewell::JobEnded => Frame::Bye,
                        Farewell::Quit => Frame::Quit,
                    };
                    let sent = send(limit, &mut stream, &last).await;
                    let _closed_already = stream.shutdown().await;
                    return sent.map_or(Written::Broken, |()| Written::All);
                }
                Next::Replaced => return Written::Replaced,
            },
        };
        if send(limit, &mut stream, &frame).await.is_err() {
            return Written::Broken;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

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
