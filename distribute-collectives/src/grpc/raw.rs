//! Reads into memory that was never written, and a call of the kernel without a safe wrapper.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::ioctl::{Getter, Opcode, ioctl};
use tokio::io::{AsyncRead, ReadBuf};

/// `SIOCOUTQ`, by its other name.
const TIOCOUTQ: Opcode = 0x5411;

/// Reads into the part of a buffer that was never written, without clearing it first.
pub(super) fn read(fd: impl AsFd, buffer: &mut ReadBuf<'_>) -> io::Result<usize> {
    // SAFETY: the slice is only handed to the kernel, which writes initialised bytes to it and
    // never takes initialised ones away.
    let unfilled = unsafe { buffer.unfilled_mut() };
    let (read, _) = rustix::io::read(fd, unfilled)?;
    let bytes = read.len();
    // SAFETY: the kernel has just written the first `bytes` bytes of the unfilled part.
    unsafe { buffer.assume_init(bytes) };
    buffer.advance(bytes);
    Ok(bytes)
}

/// Reads at most `limit` bytes; returns how many.
pub(super) fn poll_read_some(
    stream: Pin<&mut impl AsyncRead>,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
    limit: usize,
) -> Poll<io::Result<usize>> {
    let mut limited = buffer.take(limit);
    ready!(stream.poll_read(context, &mut limited))?;
    let bytes = limited.filled().len();
    // SAFETY: `limited` is the beginning of the unfilled part of `buffer` (a reader cannot put
    // other memory there: `ReadBuf` does not let it) and its first `bytes` bytes are filled.
    unsafe { buffer.assume_init(bytes) };
    buffer.advance(bytes);
    Poll::Ready(Ok(bytes))
}

/// Bytes written to a TCP socket that the peer's kernel has not acknowledged.
pub(super) fn unacknowledged_bytes(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: this request writes one C int to the address that `Getter` passes.
    let bytes = unsafe { ioctl(socket, Getter::<TIOCOUTQ, std::ffi::c_int>::new()) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}
