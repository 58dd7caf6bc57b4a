//! How examples are ordered and cut: TensorFlow's rules as pure functions.

use std::ops::Range;

use distribute_core::{Error, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The examples of a batch of `examples` that replica `replica` of `replicas` gets: with
/// `q = ceil(examples / replicas)` every replica in turn takes the next `q`, or what is left.
///
/// 10 over 3 are 4, 4 and 2; 5 over 4 are 2, 2, 1 and 0. Without replicas the result is empty.
///
/// ```
/// use distribute_data::split::replica_range;
///
/// assert_eq!(replica_range(10, 3, 2), 8..10);
/// ```
pub fn replica_range(examples: usize, replicas: usize, replica: usize) -> Range<usize> {
    if replica >= replicas {
        return examples..examples;
    }
    let share = examples.div_ceil(replicas);
    let start = share.saturating_mul(replica).min(examples);
    start..start.saturating_add(share).min(examples)
}

/// The sizes of the parts that [`replica_range`] cuts a batch into, in replica order.
///
/// ```
/// use distribute_data::split::per_replica_sizes;
///
/// assert_eq!(per_replica_sizes(5, 4), [2, 2, 1, 0]);
/// ```
pub fn per_replica_sizes(examples: usize, replicas: usize) -> Vec<usize> {
    (0..replicas)
        .map(|replica| replica_range(examples, replicas, replica).len())
        .collect()
}

/// What epoch `epoch` reads, `read` examples, of a stream that goes through `examples` examples
/// again and again: shuffled anew each time, or in order. Epochs go on where the one before ended.
pub(crate) fn stream(examples: usize, seed: Option<u64>, read: usize, epoch: usize) -> Vec<usize> {
    let mut order = Vec::with_capacity(read);
    let start = epoch.saturating_mul(read);
    let length = examples.max(1);
    let (mut time, mut place) = (start / length, start % length);
    while order.len() < read && examples > 0 {
        let count = (read - order.len()).min(examples - place);
        match seed {
            Some(seed) => {
                let shuffled = shuffled(examples, seed, time as u64).into_iter();
                order.extend(shuffled.skip(place).take(count));
            }
            None => order.extend(place..place + count),
        }
        (time, place) = (time + 1, 0);
    }
    order
}

/// The sizes of the successive batches that worker `worker` of `workers` cuts its stream of
/// examples into, again and again, when every worker reads a stream of its own
/// (TensorFlow: `batch_sizes_for_worker`, used under the auto-shard policies OFF and FILE).
///
/// The global batch is divided over all replicas, the first ones taking one more if it does not
/// divide evenly; each worker starts with its own replicas' sizes. One entry per replica.
///
/// # Errors
/// If there are no workers or replicas, or `worker` is not one of them.
///
/// ```
/// use distribute_data::split::batch_sizes_for_worker;
///
/// assert_eq!(batch_sizes_for_worker(7, 2, 2, 0)?, [2, 2, 2, 1]);
/// assert_eq!(batch_sizes_for_worker(7, 2, 2, 1)?, [2, 1, 2, 2]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub fn batch_sizes_for_worker(
    global_batch_size: usize,
    workers: usize,
    replicas_per_worker: usize,
    worker: usize,
) -> Result<Vec<usize>> {
    let replicas = workers.checked_mul(replicas_per_worker).unwrap_or(0);
    if replicas == 0 || worker >= workers {
        return Err(Error::invalid(format!(
            "worker {worker} of {workers} with {replicas_per_worker} replicas each: pass at least \
             one worker and replica, and a worker index below their number"
        )));
    }
    let (share, larger) = (global_batch_size / replicas, global_batch_size % replicas);
    let mut sizes: Vec<usize> = (0..replicas)
        .map(|replica| share + usize::from(replica < larger))
        .collect();
    sizes.rotate_left(worker * replicas_per_worker);
    Ok(sizes)
}

/// The order of the examples in an epoch: the same on every machine, in every version.
///
/// A Fisher-Yates shuffle from the end: for `i` from `len - 1` down to 1, position `i` is
/// exchanged with `(draw * (i + 1)) >> 64`. The draws are successive 64-bit outputs of ChaCha8
/// whose 32-byte key holds `seed` and `epoch` as little-endian 64-bit numbers and then zeros.
pub fn shuffled(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    let mut order: Vec<usize> = (0..len).collect();
    for i in (1..len).rev() {
        let draw = u128::from(rng.next_u64());
        order.swap(i, ((draw * (i as u128 + 1)) >> 64) as usize);
    }
    order
}
