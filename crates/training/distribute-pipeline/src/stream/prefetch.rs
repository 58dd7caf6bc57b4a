//! Elements that are read ahead of time.

use std::fmt;
use std::path::PathBuf;

use super::ahead::Ahead;
use super::room::{Room, check_number};
use super::{SavedItem, Stream};
use crate::{Cardinality, Result, State};

const STAGE: &str = "prefetch";

/// [`Stream::prefetch`]. Its thread starts with the first element and ends with the value. The
/// elements that are read and not yet taken are part of the state.
#[must_use]
pub struct Prefetch<S: Stream> {
    ahead: Ahead<S, S::Item>,
    depth: i64,
}

impl<S> Prefetch<S>
where
    S: Stream<Item: SavedItem + 'static> + 'static,
{
    pub(super) fn new(input: S, depth: i64) -> Self {
        let room = Room::of_depth(depth);
        Self {
            ahead: Ahead::new(input, STAGE, STAGE.into(), Box::new(Ok), room),
            depth,
        }
    }

    /// How many bytes the elements may take, as they would be saved; by default 64 MiB under
    /// [`AUTOTUNE`](crate::AUTOTUNE), else without a limit. One element may always be read.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.ahead.change_room(|room| room.limit_bytes(bytes));
        self
    }

    fn check_depth(&self) -> Result<()> {
        check_number(STAGE, "the number of elements", self.depth, 0)
    }
}

impl<S> Stream for Prefetch<S>
where
    S: Stream<Item: SavedItem + 'static> + 'static,
{
    type Item = S::Item;

    fn next(&mut self) -> Result<Option<S::Item>> {
        self.check_depth()?;
        self.ahead.next()
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        self.ahead.start(epoch)
    }

    fn state(&self) -> Result<State> {
        self.ahead.state()
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        self.ahead.restore(state)
    }

    fn cardinality(&self) -> Cardinality {
        self.ahead.with_input(Stream::cardinality)
    }

    fn check(&self) -> Result<()> {
        self.check_depth()?;
        self.ahead.with_input(Stream::check)
    }

    fn file(&self) -> Option<PathBuf> {
        // The input has gone on.
        None
    }
}

impl<S: Stream> fmt::Debug for Prefetch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetch")
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use crate::{AUTOTUNE, Source, State, Stream, contract, from_fn, range};

    #[test]
    fn keeps_the_contract_at_every_depth() {
        for depth in [0, 1, 3, 100, AUTOTUNE] {
            let make = || {
                range(0..20)
                    .shuffle(1)
                    .stream()
                    .filter(|x| x % 3 > 0)
                    .prefetch(depth)
            };
            contract::check_stream(make).unwrap();
        }
        contract::check_stream(|| range(0..9).stream().prefetch(5).max_bytes(1)).unwrap();
        contract::check_stream(|| range(0..3).stream().prefetch(1).prefetch(2)).unwrap();
        let mut wrong = range(0..3).stream().prefetch(-2);
        assert!(wrong.check().is_err() && wrong.next().is_err());
    }

    /// Waits until there have been this many reads.
    fn reach(reads: &AtomicUsize, count: usize) {
        let end = Instant::now() + Duration::from_secs(20);
        while reads.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < end, "{reads:?} of {count} reads");
            std::thread::yield_now();
        }
    }

    #[test]
    fn reads_no_more_than_its_depth_ahead_and_leaves_nothing() {
        let reads = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&reads);
        let source = from_fn(1_000, move |index| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok::<_, String>(index)
        });
        let mut stream = source.stream().prefetch(4);
        assert_eq!(stream.next().unwrap(), Some(0));
        reach(&reads, 5);
        // The state is taken once the thread reads nothing.
        assert!(stream.state().is_ok());
        assert_eq!(reads.load(Ordering::SeqCst), 5);
        drop(stream);
        // The thread has given back what it held.
        assert_eq!(Arc::strong_count(&reads), 1);
    }

    #[test]
    fn an_error_comes_at_its_place_also_after_a_restore() {
        let reads = Arc::new(AtomicUsize::new(0));
        let make = || {
            let counter = Arc::clone(&reads);
            let odd = move |x: i64| {
                counter.fetch_add(1, Ordering::SeqCst);
                (x != 3).then_some(x).ok_or("three")
            };
            range(0..6).stream().try_map(odd).prefetch(10)
        };
        let mut stream = make();
        assert_eq!(stream.next().unwrap(), Some(0));
        // The error has been read ahead.
        reach(&reads, 6);
        let state = stream.state().unwrap();
        let mut restored = make();
        restored.restore(&state).unwrap();
        for mut stream in [stream, restored] {
            assert_eq!(stream.next().unwrap(), Some(1));
            assert_eq!(stream.next().unwrap(), Some(2));
            let error = stream.next().unwrap_err().to_string();
            assert!(error.contains("element 3: three"), "{error}");
            assert_eq!(stream.next().unwrap(), Some(4));
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        let make = |x: i64| if x == 2 { panic!("at two") } else { x };
        let mut stream = range(0..4).stream().map(make).prefetch(2);
        assert_eq!(stream.next().unwrap(), Some(0));
        assert_eq!(stream.next().unwrap(), Some(1));
        let error = stream.next().unwrap_err().to_string();
        assert!(error.contains("at two"), "{error}");
    }

    /// An element that cannot be measured.
    #[derive(Debug, serde::Deserialize)]
    struct Unmeasured;

    impl serde::Serialize for Unmeasured {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("not to be saved")
        }
    }

    #[test]
    fn an_element_whose_serialization_panics_ends_no_thread() {
        let items = range(0..3).stream().map(|_| Unmeasured);
        let mut stream = items.prefetch(2).max_bytes(100);
        for _ in 0..3 {
            let error = stream.next().unwrap_err().to_string();
            assert!(error.contains("not to be saved"), "{error}");
        }
        assert!(stream.next().unwrap().is_none());
        let reads = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&reads);
        let items = range(0..3).stream().map(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            Unmeasured
        });
        let mut stream = items.prefetch(2);
        assert!(stream.next().unwrap().is_some());
        reach(&reads, 2);
        let saved = catch_unwind(AssertUnwindSafe(|| stream.state()));
        assert!(saved.is_err());
        assert!(stream.next().unwrap().is_some());
        assert!(stream.next().unwrap().is_some());
        assert!(stream.next().unwrap().is_none());
    }

    #[test]
    fn a_state_with_a_number_at_the_end_of_all_is_refused() {
        let input = range(0..3).stream().state().unwrap();
        let state = State::new("prefetch").number(u64::MAX).inner(input);
        let mut stream = range(0..3).stream().prefetch(2);
        let error = stream.restore(&state).unwrap_err().to_string();
        assert!(error.contains("at most"), "{error}");
    }
}
