//! Memory of pulled values that are not used any more, kept for the next ones: for fresh memory the
//! kernel clears every page, which takes longer than receiving the value.

use std::collections::TryReserveError;
use std::sync::{Arc, Weak};

use burn::tensor::{AllocationProperty, DType, TensorData};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use crate::client::tensor::tensor;

/// Smaller values are left to the allocator.
const LARGE_BYTES: usize = 1 << 20;
/// Of any element.
const ALIGNMENT: usize = 8;

/// Keeps at most as many bytes as the largest pull had.
#[derive(Debug, Default)]
pub(super) struct Pool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Vec<u8>>,
    kept_bytes: usize,
    most_bytes: usize,
}

/// A value's bytes, which go back when it is dropped.
struct PooledBytes {
    bytes: Vec<u8>,
    pool: Weak<Pool>,
}

impl AsRef<[u8]> for PooledBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PooledBytes {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.put(std::mem::take(&mut self.bytes));
        }
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A pull of this many bytes begins.
    pub(super) fn expect(&self, bytes: usize) {
        let mut state = self.state();
        state.most_bytes = state.most_bytes.max(bytes);
    }

    /// An empty buffer with room for this many bytes.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn take(&self, bytes: usize) -> Result<Vec<u8>, TryReserveError> {
        if bytes >= LARGE_BYTES {
            let mut state = self.state();
            let fits = |free: &Vec<u8>| (bytes..=bytes + bytes / 4).contains(&free.capacity());
            if let Some(place) = state.free.iter().position(fits) {
                let mut found = state.free.swap_remove(place);
                state.kept_bytes -= found.capacity();
                found.clear();
                return Ok(found);
            }
        }
        let mut made = Vec::new();
        made.try_reserve_exact(bytes)?;
        Ok(made)
    }

    /// Keeps a buffer, in place of older ones if there are too many.
    pub(super) fn put(&self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        let mut state = self.state();
        if capacity < LARGE_BYTES || capacity > state.most_bytes {
            return;
        }
        while state.kept_bytes + capacity > state.most_bytes {
            let oldest = state.free.remove(0);
            state.kept_bytes -= oldest.capacity();
        }
        state.kept_bytes += capacity;
        state.free.push(buffer);
    }

    /// A tensor of these bytes; they come back when it is dropped.
    pub(super) fn lend(
        self: &Arc<Self>,
        bytes: Vec<u8>,
        shape: Vec<usize>,
        dtype: DType,
    ) -> TensorData {
        if bytes.len() < LARGE_BYTES || bytes.as_ptr().align_offset(ALIGNMENT) != 0 {
            return tensor(bytes, shape, dtype);
        }
        let pool = Arc::downgrade(self);
        let shared = Bytes::from_owner(PooledBytes { bytes, pool });
        let bytes = burn::tensor::Bytes::from_shared(shared, AllocationProperty::Native);
        TensorData::from_bytes(bytes, shape, dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 2 * LARGE_BYTES;

    fn filled(pool: &Pool, value: f32, bytes: usize) -> Vec<u8> {
        let mut buffer = pool.take(bytes).unwrap();
        assert!(buffer.is_empty() && buffer.capacity() >= bytes);
        buffer.extend(value.to_le_bytes().repeat(bytes / 4));
        buffer
    }

    #[test]
    fn memory_of_dropped_values_is_used_again_and_no_other() {
        let pool = Arc::new(Pool::default());
        pool.expect(SIZE);
        let (first, second) = (filled(&pool, 1.0, SIZE), filled(&pool, 2.0, SIZE));
        let places = [first.as_ptr(), second.as_ptr()];
        let lend = |bytes| pool.lend(bytes, vec![SIZE / 4], DType::F32);
        let [mut first, second] = [first, second].map(lend);
        let copy = first.clone();
        // A writer gets memory of its own.
        first.as_mut_slice::<f32>().unwrap()[0] = 5.0;
        assert_eq!(copy.as_slice::<f32>().unwrap()[..2], [1.0, 1.0]);
        assert_eq!(first.as_slice::<f32>().unwrap()[..2], [5.0, 1.0]);
        drop((first, copy));
        let third = filled(&pool, 3.0, SIZE - 100);
        assert_ne!(third.as_ptr(), places[1]);
        assert!(
            second
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .all(|value| *value == 2.0)
        );
        drop((third, second));
        let fourth = filled(&pool, 4.0, SIZE);
        assert_eq!(fourth.as_ptr(), places[1]);
    }

    #[test]
    fn no_more_is_kept_than_the_largest_pull_had() {
        let pool = Pool::default();
        pool.put(Vec::with_capacity(SIZE));
        assert_eq!(pool.state().kept_bytes, 0);
        pool.expect(2 * SIZE);
        for extra in 0..5 {
            pool.put(Vec::with_capacity(SIZE - extra));
        }
        pool.put(vec![0; 10]);
        let state = pool.state();
        let kept: Vec<usize> = state.free.iter().map(Vec::capacity).collect();
        assert_eq!(kept, [SIZE - 3, SIZE - 4]);
        assert_eq!(state.kept_bytes, kept.iter().sum::<usize>());
    }
}
