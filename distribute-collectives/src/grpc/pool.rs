//! Memory for segments on their way out, used again and again.

use std::io::IoSlice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Buf;

use crate::grpc::lent_bytes::LentBytes;
use crate::sync::unpoisoned;

/// Free memory that is kept for later segments; more is given back.
const KEPT_BYTES: usize = 4 << 20;

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// Buffers that no segment uses.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Free>);

impl Pool {
    /// A segment of `bytes` unspecified bytes. Until it is dropped it counts in `outstanding`.
    pub(super) fn take(self: &Arc<Self>, bytes: usize, outstanding: &Arc<AtomicUsize>) -> Segment {
        let mut free = unpoisoned(self.0.lock());
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
            lent: None,
            counted: bytes,
            pool: self.clone(),
            outstanding: outstanding.clone(),
        }
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut free = unpoisoned(self.0.lock());
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
    /// What follows the buffer's bytes and was not copied there.
    lent: Option<Arc<LentBytes>>,
    /// Bytes in `outstanding`.
    counted: usize,
    pool: Arc<Pool>,
    outstanding: Arc<AtomicUsize>,
}

impl Segment {
    /// All bytes of a segment that was not sent yet.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    /// The same segment with these bytes at its end.
    pub(super) fn followed_by(mut self, lent: Arc<LentBytes>) -> Self {
        let bytes = lent.left();
        self.outstanding.fetch_add(bytes, Ordering::Relaxed);
        self.counted += bytes;
        self.lent = Some(lent);
        self
    }

    /// The same segment with a copy of these bytes at its end, for a segment without lent ones.
    pub(super) fn followed_by_copy(mut self, bytes: &[u8]) -> Self {
        self.outstanding.fetch_add(bytes.len(), Ordering::Relaxed);
        self.counted += bytes.len();
        self.buffer.truncate(self.end);
        self.buffer.extend_from_slice(bytes);
        self.end = self.buffer.len();
        self
    }

    fn lent(&self) -> &[u8] {
        self.lent.as_deref().map_or(&[], LentBytes::bytes)
    }
}

impl Buf for Segment {
    fn remaining(&self) -> usize {
        self.end - self.start + self.lent.as_deref().map_or(0, LentBytes::left)
    }

    fn chunk(&self) -> &[u8] {
        match &self.buffer[self.start..self.end] {
            [] => self.lent(),
            own => own,
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = [&self.buffer[self.start..self.end], self.lent()];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let filled = slices.iter_mut().zip(parts);
        filled
            .map(|(slice, part)| *slice = IoSlice::new(part))
            .count()
    }

    fn advance(&mut self, bytes: usize) {
        let own = bytes.min(self.end - self.start);
        self.start += own;
        if let Some(lent) = &self.lent {
            lent.advance(bytes - own);
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.outstanding.fetch_sub(self.counted, Ordering::Relaxed);
        self.pool.put(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::grpc::lent_bytes;

    proptest! {
        #[test]
        fn a_segment_is_its_own_bytes_and_then_the_lent_ones(
            own in prop::collection::vec(any::<u8>(), 0..20),
            lent in prop::collection::vec(any::<u8>(), 0..20),
            steps in prop::collection::vec(0_usize..9, 0..9),
        ) {
            let outstanding = Arc::default();
            let mut segment = Arc::<Pool>::default().take(own.len(), &outstanding);
            segment.bytes_mut().copy_from_slice(&own);
            let mut left = own;
            left.extend(&lent);
            let bytes = left.len();
            let segment = lent_bytes::lend(&mut Arc::default(), &lent, |lent| {
                let mut segment = segment.followed_by(lent);
                for step in steps {
                    let step = step.min(left.len());
                    segment.advance(step);
                    left.drain(..step);
                    let mut slices = [IoSlice::new(&[]); 3];
                    let count = segment.chunks_vectored(&mut slices);
                    let found: Vec<_> = slices[..count].iter().flat_map(|s| s.to_vec()).collect();
                    assert_eq!(found, left);
                    assert!(slices[..count].iter().all(|slice| !slice.is_empty()));
                    assert_eq!(segment.remaining(), left.len());
                }
                segment
            });
            prop_assert_eq!(outstanding.load(Ordering::Relaxed), bytes);
            let mut segment = segment;
            let rest = segment.copy_to_bytes(segment.remaining());
            prop_assert_eq!(&rest[..], &left[..]);
            drop(segment);
            prop_assert_eq!(outstanding.load(Ordering::Relaxed), 0);
        }
    }
}
