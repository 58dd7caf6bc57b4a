//! Reads into memory that was never written, and a call of the kernel without a safe wrapper.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::ioctl::{Getter, Opcode, ioctl};
use tokio::io::{AsyncRead, ReadBuf};

/// `SIOCOUTQ`, by its other name.
const TIOCOUTQ: Opcode = 0x5411;
const SIOCOUTQNSD: Opcode = 0x894b;

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
///
/// # Errors
/// The errors of the stream, and that it put other memory in the place of the buffer.
pub(super) fn poll_read_some(
    stream: Pin<&mut impl AsyncRead>,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
    limit: usize,
) -> Poll<io::Result<usize>> {
    let mut limited = buffer.take(limit);
    let (memory, most) = (limited.filled().as_ptr(), limited.capacity());
    ready!(stream.poll_read(context, &mut limited))?;
    let bytes = limited.filled().len();
    // A reader is safe code, and may put another `ReadBuf` where this one was.
    if limited.filled().as_ptr() != memory || bytes > most {
        return Poll::Ready(Err(io::Error::other("a reader exchanged the buffer")));
    }
    // SAFETY: `limited` has the memory that it had before (just checked), which is the beginning of
    // the unfilled part of `buffer`, and its first `bytes` bytes are filled: `ReadBuf` has it from
    // the code that read, or wrote, them there.
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

/// Bytes written to a TCP socket that were not sent: there is no room for them at the other end, or
/// on the way.
pub(super) fn unsent_bytes(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: this request writes one C int to the address that `Getter` passes.
    let bytes = unsafe { ioctl(socket, Getter::<SIOCOUTQNSD, std::ffi::c_int>::new()) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// A reader of safe code that hands over memory of its own.
    struct Swapper {
        bytes: usize,
    }

    impl AsyncRead for Swapper {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let mut other = ReadBuf::new(Box::leak(vec![7; self.bytes].into_boxed_slice()));
            other.set_filled(self.bytes);
            *buffer = other;
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_reader_that_exchanges_the_buffer_fills_nothing() {
        for bytes in [0, 3, 100] {
            let mut memory = [const { std::mem::MaybeUninit::uninit() }; 8];
            let mut buffer = ReadBuf::uninit(&mut memory);
            let mut reader = Swapper { bytes };
            let mut context = Context::from_waker(Waker::noop());
            let read = poll_read_some(Pin::new(&mut reader), &mut context, &mut buffer, 5);
            let Poll::Ready(Err(error)) = read else {
                panic!("{read:?}");
            };
            assert!(error.to_string().contains("exchanged"), "{error}");
            assert!(buffer.initialized().is_empty() && buffer.filled().is_empty());
        }
    }

    #[test]
    fn an_honest_reader_fills_at_most_the_limit() {
        let mut memory = [0; 8];
        let mut buffer = ReadBuf::new(&mut memory);
        let mut context = Context::from_waker(Waker::noop());
        let mut reader = &b"more than five"[..];
        let read = poll_read_some(Pin::new(&mut reader), &mut context, &mut buffer, 5);
        assert!(matches!(read, Poll::Ready(Ok(5))), "{read:?}");
        assert_eq!(buffer.filled(), b"more ");
    }
}
