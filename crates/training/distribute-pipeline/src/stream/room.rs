//! How many threads work ahead, and how much they may hold.

use std::io;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{PipelineError, Result, State};

/// As a number of elements or threads: as many as measured waiting shows to be useful
/// (TensorFlow: `tf.data.AUTOTUNE`).
pub const AUTOTUNE: i64 = -1;

/// What elements that are read ahead may take at most, unless it is set: 64 MiB, so that the states
/// of several stages fit into a checkpoint.
pub(crate) const BUDGET: usize = State::MAX_BYTES / 4;

/// The most elements that are read ahead by `AUTOTUNE`.
const DEEPEST: usize = 64;

/// The most threads of a stage.
const MOST_THREADS: i64 = 1024;

/// The number of elements that are looked at before threads or depth change.
const WINDOW: u32 = 16;

/// Threads and places for elements. If they are tuned, then after each 16 elements: where the
/// consumer has waited for more than a twentieth of the time, there is one thread more (up to the
/// number of cores) or, with one thread, twice the depth (up to 64). They never shrink.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    threads: usize,
    depth: usize,
    tunes_threads: bool,
    tunes_depth: bool,
    /// The most bytes of the elements that are ready; `None` without a limit.
    bytes: Option<usize>,
    held: usize,
    seen: u32,
    waited: Duration,
    since: Option<Instant>,
}

impl Room {
    /// Of one thread, `depth` elements ahead.
    pub(crate) fn of_depth(depth: i64) -> Self {
        let tunes = depth == AUTOTUNE;
        Self {
            threads: 1,
            depth: usize::try_from(depth).unwrap_or(2).max(1),
            tunes_threads: false,
            tunes_depth: tunes,
            bytes: tunes.then_some(BUDGET),
            held: 0,
            seen: 0,
            waited: Duration::ZERO,
            since: None,
        }
    }

    /// Of this number of threads, each with an element in the making and one ready.
    pub(crate) fn of_threads(threads: i64) -> Self {
        let tunes = threads == AUTOTUNE;
        let threads = usize::try_from(threads).unwrap_or(1).max(1);
        Self {
            threads,
            depth: threads.saturating_mul(2),
            tunes_threads: tunes,
            ..Self::of_depth(if tunes { AUTOTUNE } else { 1 })
        }
    }

    pub(crate) fn limit_bytes(&mut self, bytes: usize) {
        self.bytes = Some(bytes);
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn has_place(&self, held: usize) -> bool {
        // One element always has, however large it is.
        held == 0 || (held < self.depth && self.bytes.is_none_or(|bytes| self.held < bytes))
    }

    /// Whether the bytes of elements count.
    pub(crate) fn is_limited(&self) -> bool {
        self.bytes.is_some()
    }

    pub(crate) fn added(&mut self, bytes: usize) {
        self.held = self.held.saturating_add(bytes);
    }

    pub(crate) fn clear(&mut self) {
        (self.held, self.seen, self.waited, self.since) = (0, 0, Duration::ZERO, None);
    }

    /// An element was taken, for which the consumer had to wait so long.
    pub(crate) fn taken(&mut self, bytes: usize, waited: Duration) {
        self.held = self.held.saturating_sub(bytes);
        self.waited += waited;
        self.seen += 1;
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.seen < WINDOW {
            return;
        }
        self.tune(since.elapsed());
        (self.seen, self.waited, self.since) = (0, Duration::ZERO, Some(Instant::now()));
    }

    fn tune(&mut self, elapsed: Duration) {
        if self.waited.saturating_mul(20) <= elapsed {
            return;
        }
        let cores = available_parallelism().map_or(1, usize::from);
        if self.tunes_threads && self.threads < cores {
            self.threads += 1;
            self.depth = self.depth.max(2 * self.threads);
        } else if self.tunes_depth {
            self.depth = (2 * self.depth).min(DEEPEST.max(self.depth));
        }
    }
}

/// A number of elements or threads, from `least` on, or [`AUTOTUNE`].
pub(crate) fn check_number(stage: &'static str, name: &str, number: i64, least: i64) -> Result<()> {
    if number == AUTOTUNE || number >= least {
        return Ok(());
    }
    let what = format!("{name} is {number}; pass at least {least}, or AUTOTUNE (-1)");
    Err(PipelineError::argument(stage, what))
}

/// A number of threads, at most 1024, or [`AUTOTUNE`].
pub(crate) fn check_threads(stage: &'static str, name: &str, number: i64) -> Result<()> {
    check_number(stage, name, number, 1)?;
    if number <= MOST_THREADS {
        return Ok(());
    }
    let what = format!("{name} is {number}; pass at most {MOST_THREADS}, or AUTOTUNE (-1)");
    Err(PipelineError::argument(stage, what))
}

/// The bytes of an element, as it would be saved.
pub(crate) fn bytes_of<T: Serialize>(item: &T) -> usize {
    /// Counts what is written to it.
    struct Counter(usize);

    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut counter = Counter(0);
    // What cannot be serialized is found when a state is saved.
    let _ = rmp_serde::encode::write(&mut counter, item);
    counter.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_adds_depth_and_threads_and_leisure_does_not() {
        let wait = |room: &mut Room, waited| {
            for _ in 0..4 * WINDOW {
                room.taken(0, waited);
            }
        };
        let mut calm = Room::of_depth(AUTOTUNE);
        wait(&mut calm, Duration::ZERO);
        assert_eq!(calm.depth, 2);
        let mut starved = Room::of_depth(AUTOTUNE);
        wait(&mut starved, Duration::from_secs(1));
        assert_eq!((starved.depth, starved.threads), (32, 1));
        let mut threads = Room::of_threads(AUTOTUNE);
        wait(&mut threads, Duration::from_secs(1));
        assert!(threads.threads <= available_parallelism().map_or(1, usize::from));
        let mut fixed = Room::of_threads(3);
        wait(&mut fixed, Duration::from_secs(1));
        assert_eq!((fixed.threads, fixed.depth), (3, 6));
    }

    #[test]
    fn bytes_are_a_limit_too() {
        let mut room = Room::of_depth(10);
        room.limit_bytes(100);
        assert!(room.is_limited() && bytes_of(&vec![1.0_f32; 50]) > 200);
        room.added(250);
        assert!(room.has_place(0) && !room.has_place(1));
        room.taken(250, Duration::ZERO);
        assert!(room.has_place(1));
    }
}
