//! Two calls of the kernel that have no safe wrapper.

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Opcode, ioctl};
use tokio::io::ReadBuf;

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

/// Bytes written to a TCP socket that the peer's kernel has not acknowledged.
pub(super) fn unacknowledged_bytes(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: this request writes one C int to the address that `Getter` passes.
    let bytes = unsafe { ioctl(socket, Getter::<TIOCOUTQ, std::ffi::c_int>::new()) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}
