//! What the launchers of several hosts tell each other: posts, in frames of JSON.
//!
//! A frame is the length in bytes (4 bytes, little endian) and the text. First the two sides prove
//! to each other that they know the secret, with frames of at most 4 KiB and within 5 s:
//!
//! ```text
//! launcher -> relay   Hello       who it is, and a random number
//! relay -> launcher   Challenge   a random number, and the proof over both
//! launcher -> relay   Proof       the other proof
//! relay -> launcher   Welcome, or Refused and why
//! ```

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::error::{LaunchError, Result};
use crate::hosts::posts::Post;

pub const VERSION: u32 = 2;
/// How often each side sends a heartbeat, if it sends nothing else.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// After this long without a frame the other side is lost.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(12);
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const HANDSHAKE_BYTES_MAX: usize = 4096;
const POST_BYTES_MAX: usize = 4 << 20;

/// What travels in both directions, once both sides know each other.
#[derive(Serialize, Deserialize)]
pub enum Frame {
    Beat,
    Post(Box<Post>),
    /// The launcher needs no more posts.
    Bye,
}

/// What must be equal on all hosts, and who says so.
#[derive(Clone, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    pub host: usize,
    pub hosts: usize,
    pub restarts_max: u32,
    pub nonce: String,
}

#[derive(Serialize, Deserialize)]
pub struct Challenge {
    pub nonce: String,
    pub proof: String,
}

#[derive(Serialize, Deserialize)]
pub enum Answer {
    Welcome,
    Refused(String),
}

/// Which side proves something, so that a proof cannot be sent back.
#[derive(Clone, Copy)]
pub enum Side {
    Launcher,
    Relay,
}

fn mac(secret: &[u8], parts: &[&str]) -> Option<Hmac<Sha256>> {
    // HMAC takes keys of every length.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part.as_bytes());
    }
    Some(mac)
}

fn side_mac(secret: &[u8], side: Side, hello: &Hello, nonce: &str) -> Option<Hmac<Sha256>> {
    let label = match side {
        Side::Launcher => "distribute-launch proof of the launcher",
        Side::Relay => "distribute-launch proof of the relay",
    };
    let hello = serde_json::to_string(hello).ok()?;
    mac(secret, &[label, &hello, nonce])
}

/// HMAC-SHA256 over parts as hexadecimal digits.
pub fn derive(secret: &[u8], parts: &[&str]) -> Option<String> {
    let bytes: [u8; 32] = mac(secret, parts)?.finalize().into_bytes().into();
    Some(hex(&bytes))
}

pub fn proof(secret: &[u8], side: Side, hello: &Hello, nonce: &str) -> Option<String> {
    let mac = side_mac(secret, side, hello, nonce)?;
    Some(hex(&mac.finalize().into_bytes()))
}

/// Whether `received` is the proof of that side; takes as long for every wrong one.
pub fn verify(secret: &[u8], side: Side, hello: &Hello, nonce: &str, received: &str) -> bool {
    let mac = side_mac(secret, side, hello, nonce);
    let received = unhex(received);
    mac.zip(received)
        .is_some_and(|(mac, received)| mac.verify_slice(&received).is_ok())
}

pub fn random() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| LaunchError::System {
        what: "no random numbers",
        source: io::Error::other(error),
    })?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let pairs = digits?;
    let byte = |pair: &[u32]| u8::try_from(pair[0] * 16 + pair[1]).ok();
    pairs.chunks_exact(2).map(byte).collect()
}

pub fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend(text);
    stream.write_all(&frame)
}

/// Reads one frame of at most `bytes_max`, all of it within `timeout`: who sends a byte now and
/// then is as late as who sends none.
fn receive<T: DeserializeOwned>(
    stream: &TcpStream,
    bytes_max: usize,
    timeout: Duration,
) -> io::Result<T> {
    let until = Instant::now() + timeout;
    let length = receive_bytes(stream, 4, until)?;
    let length = length.try_into().map_or(u32::MAX, u32::from_le_bytes);
    let length = usize::try_from(length).map_err(io::Error::other)?;
    if length > bytes_max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(serde_json::from_slice(&receive_bytes(
        stream, length, until,
    )?)?)
}

/// Memory grows with what has arrived, not with what was announced.
fn receive_bytes(mut stream: &TcpStream, count: usize, until: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while bytes.len() < count {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let room = buffer.len().min(count - bytes.len());
        match stream.read(&mut buffer[..room]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

pub fn receive_frame(stream: &TcpStream) -> io::Result<Frame> {
    receive(stream, POST_BYTES_MAX, SILENCE_LIMIT)
}

/// Sends at once, and gives up when nothing can be sent for too long.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(SILENCE_LIMIT))
}

/// Receives a frame of the handshake.
pub fn receive_handshake<T: DeserializeOwned>(stream: &TcpStream) -> io::Result<T> {
    receive(stream, HANDSHAKE_BYTES_MAX, HANDSHAKE_TIMEOUT)
}

/// Wakes whoever reads from or writes to it.
pub fn close(stream: &TcpStream, how: Shutdown) {
    let _closed_already = stream.shutdown(how);
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::{Frame, Hello, Side, proof, receive, receive_frame, send, verify};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn error(bytes: &[u8]) -> io::Error {
        let (mut sender, receiver) = pair();
        sender.write_all(bytes).unwrap();
        drop(sender);
        receive_frame(&receiver).map(|_| ()).unwrap_err()
    }

    #[test]
    fn frames_arrive_and_broken_ones_are_errors() {
        let (sender, receiver) = pair();
        send(&sender, &Frame::Bye).unwrap();
        assert!(matches!(receive_frame(&receiver), Ok(Frame::Bye)));
        assert_eq!(error(&[255; 64]).kind(), io::ErrorKind::InvalidData);
        assert_eq!(error(&[3, 0]).kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(
            error(b"\x05\0\0\0\"By").kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(
            error(b"\x05\0\0\0{\"x\":").kind(),
            io::ErrorKind::InvalidData
        );
        let deep = [&60_000_u32.to_le_bytes()[..], &[b'['; 60_000]].concat();
        assert_eq!(error(&deep).kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_slow_frame_is_late() {
        let (mut sender, receiver) = pair();
        sender.write_all(&[5, 0, 0, 0, b'"']).unwrap();
        let start = Instant::now();
        let result = receive::<Frame>(&receiver, 100, Duration::from_millis(50));
        let kind = result.map(|_| ()).unwrap_err().kind();
        assert!(matches!(
            kind,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ));
        assert!(start.elapsed() < Duration::from_secs(4));
    }

    #[test]
    fn a_proof_holds_for_one_secret_one_side_and_one_hello() {
        let hello = |host| Hello {
            version: 1,
            host,
            hosts: 2,
            restarts_max: 0,
            nonce: "n".to_owned(),
        };
        let own = proof(b"secret", Side::Relay, &hello(1), "m").unwrap();
        let holds =
            |secret: &[u8], side, host, nonce| verify(secret, side, &hello(host), nonce, &own);
        assert!(holds(b"secret", Side::Relay, 1, "m"));
        assert!(!holds(b"Secret", Side::Relay, 1, "m"));
        assert!(!holds(b"secret", Side::Launcher, 1, "m"));
        assert!(!holds(b"secret", Side::Relay, 0, "m"));
        assert!(!holds(b"secret", Side::Relay, 1, "x"));
        for broken in ["", "0", "zz", &own[2..]] {
            assert!(!verify(b"secret", Side::Relay, &hello(1), "m", broken));
        }
    }
}
