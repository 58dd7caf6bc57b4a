//! One element after the other: [`Stream`] and its transformations.

mod ahead;
mod batch;
mod bucket;
mod cache;
mod cache_file;
mod choose;
mod concatenate;
mod enumerate;
mod filter;
mod from_iter;
mod group_by_window;
mod interleave;
mod map;
mod map_with_rng;
mod pack;
mod padded_batch;
mod parallel_map;
mod prefetch;
mod rebatch;
mod repeat;
mod room;
mod sample;
mod scan;
mod shard;
mod shuffle;
mod skip;
mod take;
mod take_while;
mod unbatch;
mod unique;
mod window;
mod zip;

use std::path::PathBuf;

pub use batch::Batch;
pub use bucket::{Bucket, Buckets};
pub use cache::Cache;
pub use cache_file::CacheFile;
pub use choose::{Choose, choose_from};
pub use concatenate::Concatenate;
pub use enumerate::Enumerate;
pub use filter::Filter;
pub use from_iter::{FromIter, from_iter};
pub use group_by_window::GroupByWindow;
pub use interleave::Interleave;
pub use map::Map;
pub use map_with_rng::MapWithRng;
pub use pack::{Pack, Packed};
pub use padded_batch::PaddedBatch;
pub use parallel_map::ParallelMap;
pub use prefetch::Prefetch;
pub use rebatch::Rebatch;
pub use repeat::Repeat;
pub use room::AUTOTUNE;
pub use sample::{Sample, sample_from};
pub use scan::Scan;
use serde::Serialize;
use serde::de::DeserializeOwned;
pub use shard::Shard;
pub use shuffle::Shuffle;
pub use skip::Skip;
pub use take::Take;
pub use take_while::TakeWhile;
pub use unbatch::Unbatch;
pub use unique::Unique;
pub use window::Window;
pub use zip::Zip;

use crate::{Array, BoxError, Cardinality, Count, ElementRng, Result, State};

/// Methods that hand on to the field `input`.
macro_rules! as_input {
    () => {};
    (check $(, $($rest:tt)*)?) => {
        fn check(&self) -> $crate::Result<()> {
            self.input.check()
        }
        $crate::stream::as_input!($($($rest)*)?);
    };
    (file $(, $($rest:tt)*)?) => {
        fn file(&self) -> Option<std::path::PathBuf> {
            self.input.file()
        }
        $crate::stream::as_input!($($($rest)*)?);
    };
    (start $(, $($rest:tt)*)?) => {
        fn start(&mut self, epoch: u64) -> $crate::Result<()> {
            self.input.start(epoch)
        }
        $crate::stream::as_input!($($($rest)*)?);
    };
    // Start and state of a stage that holds one number: its name, the field, and the largest value.
    (number($stage:expr, $field:ident, $most:expr) $(, $($rest:tt)*)?) => {
        fn start(&mut self, epoch: u64) -> $crate::Result<()> {
            self.$field = 0;
            self.input.start(epoch)
        }

        fn state(&self) -> $crate::Result<$crate::State> {
            let state = $crate::State::new($stage).number(self.$field);
            Ok(state.inner(self.input.state()?))
        }

        fn restore(&mut self, state: &$crate::State) -> $crate::Result<()> {
            let mut state = state.read($stage)?;
            self.$field = state.number_to(($most)(self))?;
            self.input.restore(state.inner()?)?;
            state.finish()
        }
        $crate::stream::as_input!($($($rest)*)?);
    };
    // The state of a stage that holds nothing itself.
    (state($stage:expr) $(, $($rest:tt)*)?) => {
        fn state(&self) -> $crate::Result<$crate::State> {
            Ok($crate::State::new($stage).inner(self.input.state()?))
        }

        fn restore(&mut self, state: &$crate::State) -> $crate::Result<()> {
            let mut state = state.read($stage)?;
            self.input.restore(state.inner()?)?;
            state.finish()
        }
        $crate::stream::as_input!($($($rest)*)?);
    };
}
pub(crate) use as_input;

/// An element that a buffer may hold while a state is saved: every type that serde serializes and
/// deserializes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a saved state",
    note = "this stage holds elements, which a checkpoint must keep: derive `Serialize` and \
            `Deserialize`, or let it hold file names or indices and read the elements behind it \
            (`source.stream().shuffle(..).map(read)`)"
)]
pub trait SavedItem: Serialize + DeserializeOwned + Send {}

impl<T: Serialize + DeserializeOwned + Send> SavedItem for T {}

/// The elements of a stream as an iterator: [`Stream::elements`].
#[derive(Debug)]
pub struct Elements<'a, S> {
    stream: &'a mut S,
}

impl<S: Stream> Iterator for Elements<'_, S> {
    type Item = Result<S::Item>;

    fn next(&mut self) -> Option<Self::Item> {
        self.stream.next().transpose()
    }
}

/// Elements that come one after the other, whose place can be saved and restored.
///
/// A stream is one pass over data, an *epoch*; it stands at its beginning when it is made, in
/// epoch 0. [`start`](Self::start) begins another pass.
/// [`contract::check_stream`](crate::contract::check_stream) checks an implementation.
///
/// ```
/// use distribute_pipeline::{Result, State, Stream};
///
/// /// Counts down.
/// struct Countdown {
///     from: u64,
///     left: u64,
/// }
///
/// impl Stream for Countdown {
///     type Item = u64;
///
///     fn next(&mut self) -> Result<Option<u64>> {
///         let item = self.left.checked_sub(1);
///         self.left = item.unwrap_or(0);
///         Ok(item)
///     }
///
///     fn start(&mut self, _epoch: u64) -> Result<()> {
///         self.left = self.from;
///         Ok(())
///     }
///
///     fn state(&self) -> Result<State> {
///         Ok(State::new("countdown").number(self.left))
///     }
///
///     fn restore(&mut self, state: &State) -> Result<()> {
///         let mut state = state.read("countdown")?;
///         self.left = state.number_to(self.from)?;
///         state.finish()
///     }
/// }
///
/// distribute_pipeline::contract::check_stream(|| Countdown { from: 5, left: 5 })?;
/// # Ok::<(), distribute_pipeline::PipelineError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no `Stream`: elements that come one after the other",
    note = "a `Source` becomes one by `.stream()`"
)]
pub trait Stream: Send {
    /// An element.
    type Item: Send;

    /// The next element; `None` at the end of the pass, and again if it is asked again. It may
    /// block, to read a file or to wait for a thread.
    ///
    /// # Errors
    /// If the element cannot be read or made. Asked again, a stream may go on behind it or give the
    /// error again.
    fn next(&mut self) -> Result<Option<Self::Item>>;

    /// Begins the pass number `epoch`, wherever the stream is. The same number gives the same
    /// elements; shuffles and augmentations give other ones in another epoch.
    ///
    /// # Errors
    /// If the data cannot be opened again.
    fn start(&mut self, epoch: u64) -> Result<()>;

    /// Where the stream is, between the last element and the next one.
    ///
    /// # Errors
    /// If an element that a buffer holds cannot be serialized.
    fn state(&self) -> Result<State>;

    /// Goes to where a stream of the same pipeline was when its state was saved. The elements that
    /// follow are the same, and data that was read before is not read again. After an error the
    /// stream must be started or restored before it is read.
    ///
    /// # Errors
    /// If the state is of another pipeline or damaged, or if the data cannot be opened.
    fn restore(&mut self, state: &State) -> Result<()>;

    /// How many elements one pass has; [`Cardinality::Unknown`] by default.
    fn cardinality(&self) -> Cardinality {
        Cardinality::Unknown
    }

    /// Whether the pipeline can work: the wrong arguments that `next` would give as an error.
    ///
    /// # Errors
    /// The first wrong argument.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The file that the last element was read from, for messages; `None`, the default, if it is
    /// unknown.
    fn file(&self) -> Option<PathBuf> {
        None
    }

    /// The elements that are left, as an iterator.
    fn elements(&mut self) -> Elements<'_, Self>
    where
        Self: Sized,
    {
        Elements { stream: self }
    }

    /// Every element through a function (TensorFlow: `map`).
    /// [`num_parallel_calls`](Map::num_parallel_calls) calls it on several threads.
    fn map<U, F>(
        self,
        function: F,
    ) -> Map<Self, impl Fn(Self::Item) -> Result<U, BoxError> + use<Self, U, F>>
    where
        Self: Sized,
        U: Send,
        F: Fn(Self::Item) -> U,
    {
        Map::new(self, std::any::type_name::<F>(), move |item| {
            Ok(function(item))
        })
    }

    /// [`map`](Self::map) by a function that may fail: the error names the element, its file and
    /// the function.
    fn try_map<U, E, F>(
        self,
        function: F,
    ) -> Map<Self, impl Fn(Self::Item) -> Result<U, BoxError> + use<Self, U, E, F>>
    where
        Self: Sized,
        U: Send,
        E: Into<BoxError>,
        F: Fn(Self::Item) -> Result<U, E>,
    {
        Map::new(self, std::any::type_name::<F>(), move |item| {
            function(item).map_err(Into::into)
        })
    }

    /// [`map`](Self::map) by a function with random numbers, for augmentations: they follow from
    /// seed, epoch and the element's place in this stream ([`element_rng`](crate::element_rng)).
    fn map_with_rng<U, F>(self, seed: u64, function: F) -> MapWithRng<Self, F>
    where
        Self: Sized,
        U: Send,
        F: Fn(Self::Item, &mut ElementRng) -> U + Send,
    {
        MapWithRng::new(self, seed, function)
    }

    /// The elements that a function keeps (TensorFlow: `filter`).
    fn filter<F>(self, keeps: F) -> Filter<Self, F>
    where
        Self: Sized,
        F: Fn(&Self::Item) -> bool + Send,
    {
        Filter::new(self, keeps)
    }

    /// A random order, drawn from a buffer of `buffer` elements (TensorFlow: `shuffle`).
    fn shuffle(self, buffer: u64, seed: u64) -> Shuffle<Self>
    where
        Self: Sized,
        Self::Item: SavedItem,
    {
        Shuffle::new(self, buffer, seed)
    }

    /// The elements of several streams in turn: `function` makes a stream of each element, a file
    /// name for example, and [`cycle_length`](Interleave::cycle_length) of them are open at the
    /// same time (TensorFlow: `interleave`).
    fn interleave<T, F>(
        self,
        function: F,
    ) -> Interleave<Self, T, impl Fn(Self::Item) -> Result<T, BoxError> + use<Self, T, F>>
    where
        Self: Sized,
        Self::Item: SavedItem + Clone,
        T: Stream,
        F: Fn(Self::Item) -> T,
    {
        Interleave::new(self, move |item| Ok(function(item)))
    }

    /// [`interleave`](Self::interleave) by a function that may fail, to open a file for example.
    fn try_interleave<T, E, F>(
        self,
        function: F,
    ) -> Interleave<Self, T, impl Fn(Self::Item) -> Result<T, BoxError> + use<Self, T, E, F>>
    where
        Self: Sized,
        Self::Item: SavedItem + Clone,
        T: Stream,
        E: Into<BoxError>,
        F: Fn(Self::Item) -> Result<T, E>,
    {
        Interleave::new(self, move |item| function(item).map_err(Into::into))
    }

    /// The elements of the streams that `function` makes of each element, one stream after the
    /// other (TensorFlow: `flat_map`).
    fn flat_map<T, F>(
        self,
        function: F,
    ) -> Interleave<Self, T, impl Fn(Self::Item) -> Result<T, BoxError> + use<Self, T, F>>
    where
        Self: Sized,
        Self::Item: SavedItem + Clone,
        T: Stream,
        F: Fn(Self::Item) -> T,
    {
        self.interleave(function)
    }

    /// Lists of `size` elements (TensorFlow: `batch`); the last one may be short.
    fn batch(self, size: u64) -> Batch<Self>
    where
        Self: Sized,
    {
        Batch::new(self, size)
    }

    /// Arrays of `size` elements, filled up with `padding` to the longest (TensorFlow:
    /// `padded_batch`). The elements are lists or [`Array`]s.
    fn padded_batch<T>(self, size: u64, padding: T) -> PaddedBatch<Self, T>
    where
        Self: Sized,
        Self::Item: Into<Array<T>>,
    {
        PaddedBatch::new(self, size, padding)
    }

    /// Padded batches of elements of about the same length (TensorFlow:
    /// `bucket_by_sequence_length`); the length is the first axis.
    fn bucket_by_sequence_length<T>(self, buckets: Buckets, padding: T) -> Bucket<Self, T>
    where
        Self: Sized,
        Self::Item: Into<Array<T>>,
        T: SavedItem + Clone + 'static,
    {
        Bucket::new(self, buckets, padding)
    }

    /// Rows of fixed length, each of as many of the next sequences as fit (sequence packing, as in
    /// T5 and in Grain). A sequence longer than a row is an error.
    fn pack<T>(self, length: usize, padding: T) -> Pack<Self, T>
    where
        Self: Stream<Item = Vec<T>> + Sized,
        T: SavedItem + Clone,
    {
        Pack::new(self, length, padding)
    }

    /// Lists of `size` elements that may overlap or lie apart (TensorFlow: `window`).
    fn window(self, size: u64) -> Window<Self>
    where
        Self: Sized,
        Self::Item: SavedItem + Clone,
    {
        Window::new(self, size)
    }

    /// Lists of `size(key)` elements with the same key (TensorFlow: `group_by_window`).
    fn group_by_window<K, N>(self, key: K, size: N) -> GroupByWindow<Self, K, N>
    where
        Self: Sized,
        Self::Item: SavedItem,
        K: Fn(&Self::Item) -> i64 + Send,
        N: Fn(i64) -> u64 + Send,
    {
        GroupByWindow::new(self, key, size)
    }

    /// Batches of another size (TensorFlow: `rebatch`).
    fn rebatch<T>(self, size: u64) -> Rebatch<Self, T>
    where
        Self: Sized,
        Self::Item: IntoIterator<Item = T>,
        T: SavedItem,
    {
        Rebatch::new(self, size)
    }

    /// The elements of batches (TensorFlow: `unbatch`).
    fn unbatch<T>(self) -> Unbatch<Self, T>
    where
        Self: Sized,
        Self::Item: IntoIterator<Item = T>,
        T: SavedItem,
    {
        Unbatch::new(self)
    }

    /// Pairs of elements, as many as the shorter stream has (TensorFlow: `zip`).
    fn zip<S: Stream>(self, other: S) -> Zip<Self, S>
    where
        Self: Sized,
    {
        Zip::new(self, other)
    }

    /// This stream's elements, then the other's (TensorFlow: `concatenate`).
    fn concatenate<S: Stream<Item = Self::Item>>(self, other: S) -> Concatenate<Self, S>
    where
        Self: Sized,
    {
        Concatenate::new(self, other)
    }

    /// The first elements (TensorFlow: `take`); a negative number takes all.
    fn take(self, count: impl Into<Count>) -> Take<Self>
    where
        Self: Sized,
    {
        Take::new(self, count.into())
    }

    /// The elements behind the first ones (TensorFlow: `skip`); a negative number skips all.
    fn skip(self, count: impl Into<Count>) -> Skip<Self>
    where
        Self: Sized,
    {
        Skip::new(self, count.into())
    }

    /// The elements before the first one that a function refuses (TensorFlow: `take_while`).
    fn take_while<F>(self, keeps: F) -> TakeWhile<Self, F>
    where
        Self: Sized,
        F: Fn(&Self::Item) -> bool + Send,
    {
        TakeWhile::new(self, keeps)
    }

    /// The elements `index`, `index + shards`, ... (TensorFlow: `shard`).
    fn shard(self, shards: u64, index: u64) -> Shard<Self>
    where
        Self: Sized,
    {
        Shard::new(self, shards, index)
    }

    /// Several passes, one after the other (TensorFlow: `repeat`); a negative number repeats
    /// without end. A shuffle before it gives another order in each pass.
    fn repeat(self, times: impl Into<Count>) -> Repeat<Self>
    where
        Self: Sized,
    {
        Repeat::new(self, times.into())
    }

    /// Pairs of a number, counted from `start`, and the element (TensorFlow: `enumerate`).
    fn enumerate(self, start: u64) -> Enumerate<Self>
    where
        Self: Sized,
    {
        Enumerate::new(self, start)
    }

    /// Each element once (TensorFlow: `unique`).
    fn unique(self) -> Unique<Self>
    where
        Self: Sized,
        Self::Item: SavedItem + Ord + Clone,
    {
        Unique::new(self)
    }

    /// A function with a memory, which starts as `initial` in each epoch (TensorFlow: `scan`).
    fn scan<M, U, F>(self, initial: M, function: F) -> Scan<Self, M, F>
    where
        Self: Sized,
        M: SavedItem + Clone,
        U: Send,
        F: Fn(&mut M, Self::Item) -> U + Send,
    {
        Scan::new(self, initial, function)
    }

    /// Keeps the elements in memory, and gives them again in each later epoch (TensorFlow:
    /// `cache`). Shuffles and augmentations belong behind it.
    fn cache(self) -> Cache<Self>
    where
        Self: Sized,
        Self::Item: SavedItem + Clone,
    {
        Cache::new(self)
    }

    /// [`cache`](Self::cache) in a file.
    fn cache_file(self, path: impl Into<PathBuf>) -> CacheFile<Self>
    where
        Self: Sized,
        Self::Item: SavedItem,
    {
        CacheFile::new(self, path.into())
    }

    /// Reads up to `elements` elements ahead on a thread, or as many as waiting shows to be useful
    /// ([`AUTOTUNE`]) (TensorFlow: `prefetch`).
    fn prefetch(self, elements: i64) -> Prefetch<Self>
    where
        Self: Sized + 'static,
        Self::Item: SavedItem + 'static,
    {
        Prefetch::new(self, elements)
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<S: Stream + ?Sized> Stream for $pointer {
            type Item = S::Item;

            fn next(&mut self) -> Result<Option<S::Item>> {
                (**self).next()
            }

            fn start(&mut self, epoch: u64) -> Result<()> {
                (**self).start(epoch)
            }

            fn state(&self) -> Result<State> {
                (**self).state()
            }

            fn restore(&mut self, state: &State) -> Result<()> {
                (**self).restore(state)
            }

            fn cardinality(&self) -> Cardinality {
                (**self).cardinality()
            }

            fn check(&self) -> Result<()> {
                (**self).check()
            }

            fn file(&self) -> Option<PathBuf> {
                (**self).file()
            }
        }
    )*};
}
forward!(&mut S, Box<S>);
