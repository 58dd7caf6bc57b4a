//! What travels between launchers, over TLS where they have certificates.
//!
//! Every message is a text behind its length, as those of the handshake:
//!
//! ```text
//! launcher -> relay   Hello                       the handshake of all processes of a job,
//! relay -> launcher   proof of the relay, Hello   see distribute_net::handshake
//! launcher -> relay   proof of the launcher
//! relay -> launcher   Welcome, or Refused and why
//! both                Beat, Post, Bye             from the launcher a Beat at once
//! ```

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use distribute_net::exchange::{receive_text, send_text};
use distribute_net::handshake::{Hello, Purpose};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::error::{LaunchError, Result};
use crate::hosts::posts::Post;
use crate::job::hosts::Hosts;
use crate::job::workers::WorkerRange;

/// The version of what follows the handshake.
const VERSION: u32 = 5;
/// How often each side sends a heartbeat, if it sends nothing else.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// After this long without a frame, or with one on its way, the other side is lost.
const SILENCE_LIMIT: Duration = Duration::from_secs(12);
const FRAME_BYTES_MAX: usize = 4 << 20;

/// What travels once both sides have proven themselves, as JSON.
#[derive(Clone, Serialize, Deserialize)]
pub enum Frame {
    /// The launcher is a member of the group.
    Welcome,
    /// It is not, for this reason.
    Refused(String),
    Beat,
    Post(Box<Post>),
    /// The launcher needs no more posts.
    Bye,
}

/// What all launchers of a job must have alike.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Terms {
    /// How many hosts the job has.
    pub hosts: usize,
    pub restarts_max: u32,
    /// The least and the greatest number of workers of an elastic job.
    pub workers: Option<WorkerRange>,
}

/// What the relay compares, beside what every handshake does.
#[derive(Serialize, Deserialize)]
pub struct Settings {
    pub terms: Terms,
    /// Where the other hosts reach the processes of this one.
    pub own_address: IpAddr,
}

/// What the launcher of a host says first, about itself and the address of the relay.
pub fn hello(hosts: &Hosts, relay: String, settings: &Settings) -> io::Result<Hello> {
    let mut hello = Hello::new(Purpose::Launcher, VERSION, env!("CARGO_PKG_VERSION"));
    hello.address = relay;
    hello.identity.task = u32::try_from(hosts.index).map_err(io::Error::other)?;
    hello.details = serde_json::to_string(settings)?;
    Ok(hello)
}

/// What a thread waits with for other hosts.
pub fn runtime() -> Result<Runtime> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(LaunchError::system("cannot wait for other hosts"))
}

/// Sends one frame; an error if the other side takes it too slowly.
pub async fn send(stream: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    let text = serde_json::to_string(frame)?;
    timeout(SILENCE_LIMIT, send_text(stream, &text)).await?
}

/// Receives a frame, all of it before the other side counts as lost: who sends a byte now and then
/// is as late as who sends none.
pub async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    receive_within(SILENCE_LIMIT, stream).await
}

async fn receive_within(
    limit: Duration,
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<Frame> {
    let text = timeout(limit, receive_text(stream, FRAME_BYTES_MAX)).await??;
    Ok(serde_json::from_str(&text)?)
}

/// Sends frames, and heartbeats between them, until there are no more to come or the other side is
/// gone.
pub async fn write(mut stream: impl AsyncWrite + Unpin, mut frames: mpsc::Receiver<Frame>) {
    loop {
        let frame = match timeout(HEARTBEAT_INTERVAL, frames.recv()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(_) => Frame::Beat,
        };
        if send(&mut stream, &frame).await.is_err() {
            return;
        }
    }
    let _closed_already = stream.shutdown().await;
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    fn error(bytes: &[u8]) -> io::ErrorKind {
        let received = runtime().unwrap().block_on(receive(&mut &*bytes));
        received.map(|_| ()).unwrap_err().kind()
    }

    #[test]
    fn frames_arrive_and_broken_ones_are_errors() {
        runtime().unwrap().block_on(async {
            let (mut sender, mut receiver) = duplex(100);
            send(&mut sender, &Frame::Bye).await.unwrap();
            assert!(matches!(receive(&mut receiver).await, Ok(Frame::Bye)));
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
            let (received, ()) = tokio::join!(receive_within(limit, &mut receiver), slowly);
            let kind = received.map(|_| ()).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::TimedOut);
        });
    }
}
