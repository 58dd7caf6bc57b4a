//! A non-blocking socket as tokio's traits, without tokio's reactor.
//!
//! A call that cannot proceed notes what it waits for and returns `Pending`; nothing is registered
//! anywhere. The thread that drives the connection asks for it ([`SocketState::pollfd`]) and blocks
//! in `poll(2)`.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{SendAncillaryBuffer, SendFlags};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::grpc::raw;
use crate::grpc::stall::Sent;

/// No limit for [`SocketState::allow_frames`]: more DATA frames than ever come.
const UNLIMITED: usize = usize::MAX;

/// Shared by the connection that reads and writes and the loop that drives it. Used by one thread
/// at a time; the atomics only make it `Sync`.
#[derive(Debug)]
pub(super) struct SocketState {
    stream: TcpStream,
    /// DATA frames that may still be read before the connection is to look at what it has.
    allowed: AtomicUsize,
    /// The last read, or the last write, found that the kernel cannot do it now.
    read_blocked: AtomicBool,
    write_blocked: AtomicBool,
    /// Bytes read and written so far, and those written.
    moved: AtomicU64,
    written: AtomicU64,
    /// Why nothing can be written any more.
    write_error: OnceLock<String>,
}

impl SocketState {
    /// Wraps a socket that is connected.
    pub(super) fn new(stream: TcpStream) -> io::Result<Arc<Self>> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Arc::new(SocketState {
            stream,
            allowed: AtomicUsize::new(UNLIMITED),
            read_blocked: AtomicBool::new(false),
            write_blocked: AtomicBool::new(false),
            moved: AtomicU64::new(0),
            written: AtomicU64::new(0),
            write_error: OnceLock::new(),
        }))
    }

    /// Lets the connection read this many DATA frames.
    pub(super) fn allow_frames(&self, frames: usize) {
        self.allowed.store(frames, Ordering::Relaxed);
    }

    /// Whether the connection may read now; if not, that is why it stops.
    pub(super) fn is_reading_allowed(&self) -> bool {
        self.read_blocked.store(false, Ordering::Relaxed);
        self.allowed.load(Ordering::Relaxed) > 0
    }

    /// Notes that a whole DATA frame was read.
    pub(super) fn note_data_frame(&self) {
        let allowed = self.allowed.load(Ordering::Relaxed);
        self.allowed
            .store(allowed.saturating_sub(1), Ordering::Relaxed);
    }

    /// Whether the connection stopped reading only because of
    /// [`allow_frames`](Self::allow_frames).
    pub(super) fn may_read_more(&self) -> bool {
        !self.read_blocked.load(Ordering::Relaxed)
    }

    /// Whether the kernel's buffer was full at the last write.
    pub(super) fn is_write_blocked(&self) -> bool {
        self.write_blocked.load(Ordering::Relaxed)
    }

    /// Changes whenever bytes were read or written.
    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// What the connection waits for, when it may read or not.
    pub(super) fn pollfd(&self, reading: bool) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, reading);
        flags.set(PollFlags::OUT, self.is_write_blocked());
        PollFd::new(&self.stream, flags)
    }

    /// Why nothing can be written any more.
    pub(super) fn write_error(&self) -> Option<&str> {
        self.write_error.get().map(String::as_str)
    }

    /// Whether the peer's kernel has everything that was written.
    pub(super) fn is_delivered(&self) -> bool {
        self.write_error.get().is_some()
            || raw::unacknowledged_bytes(&self.stream).unwrap_or(0) == 0
    }

    /// What the kernel says of what was written; nothing where it does not say.
    pub(super) fn sent(&self) -> Option<Sent> {
        let unsent = raw::unsent_bytes(&self.stream).ok()?;
        let unacknowledged = raw::unacknowledged_bytes(&self.stream).ok()?;
        let written = self.written.load(Ordering::Relaxed);
        Some(Sent {
            in_flight: unacknowledged.saturating_sub(unsent),
            acknowledged: written.saturating_sub(unacknowledged as u64),
        })
    }

    /// The addresses of both ends.
    pub(super) fn ends(&self) -> Option<[SocketAddr; 2]> {
        Some([
            self.stream.local_addr().ok()?,
            self.stream.peer_addr().ok()?,
        ])
    }

    /// Ends the connection in both directions.
    pub(super) fn shut_down(&self) {
        // Fails when the peer has ended it before.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn note_moved(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn write(&self, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let len = slices.iter().map(|slice| slice.len()).sum();
        if self.write_error.get().is_some() {
            return Poll::Ready(Ok(len));
        }
        let mut control = SendAncillaryBuffer::default();
        loop {
            match rustix::net::sendmsg(&self.stream, slices, &mut control, SendFlags::NOSIGNAL) {
                Ok(bytes) => {
                    self.write_blocked.store(false, Ordering::Relaxed);
                    self.note_moved(bytes);
                    self.written.fetch_add(bytes as u64, Ordering::Relaxed);
                    return Poll::Ready(Ok(bytes));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    self.write_blocked.store(true, Ordering::Relaxed);
                    return Poll::Pending;
                }
                Err(error) => {
                    // What the peer had sent before it left can still be read, but HTTP/2 would
                    // give up at once: say so only when reading ends.
                    self.write_blocked.store(false, Ordering::Relaxed);
                    let _ = self.write_error.set(io::Error::from(error).to_string());
                    return Poll::Ready(Ok(len));
                }
            }
        }
    }
}

/// The socket, for the connection.
#[derive(Debug)]
pub(super) struct Socket(pub(super) Arc<SocketState>);

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let state = &*self.0;
        loop {
            match raw::read(&state.stream, buffer) {
                Ok(bytes) => {
                    state.note_moved(bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    state.read_blocked.store(true, Ordering::Relaxed);
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.write(&[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.write(slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ = self.0.stream.shutdown(Shutdown::Write);
        Poll::Ready(Ok(()))
    }
}
