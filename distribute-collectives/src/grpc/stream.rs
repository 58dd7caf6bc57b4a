//! The bytes of a connection, encrypted or not, handed to HTTP/2 frame by frame.
//!
//! HTTP/2 (`h2`) reads into a buffer that it gives away in pieces, one per DATA frame. When a read
//! stops at the end of such a frame, and the frame is used before the next read, that buffer is
//! used again: no memory is asked for and it stays in the cache. So reads never cross the end of
//! a frame here, and there is a limit of DATA frames per turn.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use distribute_net::peers::Io;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::grpc::raw;
use crate::grpc::socket::SocketState;

/// Read at once where a frame begins: a small message needs one call of the kernel.
const FRONT_BYTES: usize = 4096;

const FRAME_HEADER_BYTES: usize = 9;

/// What a client sends before its first frame.
const PREFACE_BYTES: usize = 24;

/// What HTTP/2 reads from and writes to.
#[derive(Debug)]
pub(super) struct Stream {
    inner: Box<dyn Io>,
    socket: Arc<SocketState>,
    /// What was read where a frame began and is not handed over yet.
    front: Box<[u8; FRONT_BYTES]>,
    start: usize,
    end: usize,
    /// The beginning of a frame header.
    header: [u8; FRAME_HEADER_BYTES],
    header_bytes: usize,
    /// Bytes that belong to the current frame and are not handed over yet.
    frame_left: usize,
    is_data: bool,
}

impl Stream {
    /// What `inner` carries, encrypted or not; `socket` is the one under it.
    pub(super) fn new(inner: Box<dyn Io>, socket: Arc<SocketState>) -> Self {
        Stream {
            inner,
            socket,
            front: Box::new([0; FRONT_BYTES]),
            start: 0,
            end: 0,
            header: [0; FRAME_HEADER_BYTES],
            header_bytes: 0,
            frame_left: 0,
            is_data: false,
        }
    }

    /// The end that reads a client's preface.
    pub(super) fn of_server(mut self) -> Self {
        self.frame_left = PREFACE_BYTES;
        self
    }

    /// Hands over the beginning of a frame, as far as it is known.
    fn hand_over(&mut self, buffer: &mut ReadBuf<'_>) {
        while self.start < self.end && buffer.remaining() > 0 {
            let known = self.end - self.start;
            let in_header = self.frame_left == 0;
            let wanted = if in_header {
                FRAME_HEADER_BYTES - self.header_bytes
            } else {
                self.frame_left
            };
            let bytes = wanted.min(known).min(buffer.remaining());
            let piece = &self.front[self.start..self.start + bytes];
            buffer.put_slice(piece);
            self.start += bytes;
            if in_header {
                let end = self.header_bytes + bytes;
                self.header[self.header_bytes..end].copy_from_slice(piece);
                self.header_bytes = end;
                if end < FRAME_HEADER_BYTES {
                    continue;
                }
                let [a, b, c, kind, ..] = self.header;
                self.header_bytes = 0;
                self.frame_left = u32::from_be_bytes([0, a, b, c]) as usize;
                self.is_data = kind == 0;
            } else {
                self.frame_left -= bytes;
            }
            if self.frame_left == 0 {
                self.end_frame();
                return;
            }
        }
    }

    fn end_frame(&mut self) {
        if std::mem::take(&mut self.is_data) {
            self.socket.note_data_frame();
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.socket.is_reading_allowed() {
            return Poll::Pending;
        }
        if this.start == this.end && this.frame_left > 0 {
            let limit = this.frame_left;
            let inner = Pin::new(&mut this.inner);
            this.frame_left -= ready!(raw::poll_read_some(inner, context, buffer, limit))?;
            if this.frame_left == 0 {
                this.end_frame();
            }
            return Poll::Ready(Ok(()));
        }
        if this.start == this.end {
            let mut front = ReadBuf::new(&mut this.front[..]);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut front))?;
            // A reader may have put another buffer there, of any length.
            (this.start, this.end) = (0, front.filled().len().min(FRONT_BYTES));
        }
        this.hand_over(buffer);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}
