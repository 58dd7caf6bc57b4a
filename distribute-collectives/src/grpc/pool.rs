//! Memory for segments on their way out, used again and again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Buf;

/// Free memory that is kept for later segments; more is given back.
const KEPT_BYTES: usize = 4 << 20;

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// Buffers that no segment uses.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Mutex<Free>,
}

impl Pool {
    /// A segment of `bytes` unspecified bytes. Until it is dropped it counts in `outstanding`.
    pub(super) fn take(self: &Arc<Self>, bytes: usize, outstanding: &Arc<AtomicUsize>) -> Segment {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // The one that was used last: it is still in the cache.
        let mut buffer = free.buffers.pop().unwrap_or_default();
        free.bytes -= buffer.len();
        drop(free);
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        outstanding.fetch_add(bytes, Ordering::Relaxed);
        Segment {
            buffer,
            start: 0,
            end: bytes,
            pool: self.clone(),
            outstanding: outstanding.clone(),
        }
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + buffer.len() <= KEPT_BYTES {
            free.bytes += buffer.len();
            free.buffers.push(buffer);
        }
    }
}

/// One message, owned by HTTP/2 until it has been written.
#[derive(Debug)]
pub(super) struct Segment {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    pool: Arc<Pool>,
    outstanding: Arc<AtomicUsize>,
}

impl Segment {
    /// All bytes of a segment that was not sent yet.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }
}

impl Buf for Segment {
    fn remaining(&self) -> usize {
        self.end - self.start
    }

    fn chunk(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn advance(&mut self, bytes: usize) {
        self.start = self.end.min(self.start + bytes);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.outstanding.fetch_sub(self.end, Ordering::Relaxed);
        self.pool.put(std::mem::take(&mut self.buffer));
    }
}
