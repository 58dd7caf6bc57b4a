//! Random access: [`Source`] and its transformations. An index is all that travels.

mod batch;
mod cache;
mod concatenate;
mod enumerate;
mod from_fn;
mod items;
mod map;
mod map_with_rng;
mod mix;
mod range;
mod repeat;
mod shard;
mod shuffle;
mod shuffled_source;
mod skip;
mod source_stream;
mod take;
mod zip;

use std::path::PathBuf;
use std::sync::Arc;

pub use batch::Batch;
pub use cache::Cache;
pub use concatenate::Concatenate;
pub use enumerate::Enumerate;
pub use from_fn::{FromFn, from_fn};
pub use items::{Items, items};
pub use map::Map;
pub use map_with_rng::MapWithRng;
pub use mix::{Mix, mix};
pub use range::{Range, range};
pub use repeat::Repeat;
pub use shard::Shard;
pub use shuffle::Shuffle;
pub use shuffled_source::ShuffledSource;
pub use skip::Skip;
pub use source_stream::SourceStream;
pub use take::Take;
pub use zip::Zip;

use crate::{BoxError, Count, ElementRng, PipelineError, Result};

/// The length of a source without end: of [`Source::repeat`] with `-1`.
pub const ENDLESS: u64 = u64::MAX;

/// A data set with a length, any element of which can be read by its index, by several threads at
/// the same time.
///
/// Write `len` and `get`; a source that gives other elements in other epochs (a shuffle) writes
/// `get_in_epoch` too, and one that reads from another source hands the epoch on.
/// [`contract::check_source`](crate::contract::check_source) checks an implementation.
///
/// ```
/// use distribute_pipeline::{Result, Source};
///
/// struct Squares;
///
/// impl Source for Squares {
///     type Item = u64;
///
///     fn len(&self) -> u64 {
///         100
///     }
///
///     fn get(&self, index: u64) -> Result<u64> {
///         Ok(index * index)
///     }
/// }
///
/// let batches = Squares.shuffle(42).batch(8).drop_remainder(true);
/// assert_eq!(batches.len(), 12);
/// assert_ne!(batches.get_in_epoch(0, 3)?, batches.get_in_epoch(1, 3)?);
/// # Ok::<(), distribute_pipeline::PipelineError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no `Source`: elements that can be read by index",
    note = "a `Vec` becomes one by `items(vec)`, a closure by `from_fn(len, |index| ..)`"
)]
pub trait Source: Send + Sync {
    /// An element.
    type Item: Send;

    /// The number of elements; [`ENDLESS`] without end.
    fn len(&self) -> u64;

    /// Whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index`: that of epoch 0, if the epochs differ. It may block, to read a file.
    ///
    /// # Errors
    /// If there is no such element, or if it cannot be read.
    fn get(&self, index: u64) -> Result<Self::Item>;

    /// The element at `index` in the epoch `epoch`. By default the epochs are alike.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<Self::Item> {
        let _ = epoch;
        self.get(index)
    }

    /// Whether the pipeline can work: the wrong arguments that `get` would give as an error.
    ///
    /// # Errors
    /// The first wrong argument.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The file that an element is read from, for messages; `None`, the default, if it is unknown.
    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        let _ = (epoch, index);
        None
    }

    /// The elements one after the other, in the order of their indices. Its state is an epoch and
    /// an index.
    fn stream(self) -> SourceStream<Self>
    where
        Self: Sized,
    {
        SourceStream::new(self)
    }

    /// Every element through a function (TensorFlow: `map`), when it is asked for.
    fn map<U, F>(self, function: F) -> Map<Self, impl Fn(Self::Item) -> Result<U, BoxError>>
    where
        Self: Sized,
        U: Send,
        F: Fn(Self::Item) -> U + Send + Sync,
    {
        Map::new(self, std::any::type_name::<F>(), move |item| {
            Ok(function(item))
        })
    }

    /// [`map`](Self::map) by a function that may fail: the error names the element, its file and
    /// the function.
    fn try_map<U, E, F>(self, function: F) -> Map<Self, impl Fn(Self::Item) -> Result<U, BoxError>>
    where
        Self: Sized,
        U: Send,
        E: Into<BoxError>,
        F: Fn(Self::Item) -> Result<U, E> + Send + Sync,
    {
        Map::new(self, std::any::type_name::<F>(), move |item| {
            function(item).map_err(Into::into)
        })
    }

    /// [`map`](Self::map) by a function with random numbers, for augmentations: they follow from
    /// seed, epoch and index ([`element_rng`](crate::element_rng)). The index is the place in this
    /// source.
    fn map_with_rng<U, F>(self, seed: u64, function: F) -> MapWithRng<Self, F>
    where
        Self: Sized,
        U: Send,
        F: Fn(Self::Item, &mut ElementRng) -> U + Send + Sync,
    {
        MapWithRng::new(self, seed, function)
    }

    /// All elements in another order in each epoch, by a [`Permutation`](crate::Permutation) that
    /// is computed and takes no memory. Unlike a buffer of TensorFlow's `shuffle`, it shuffles
    /// over the whole source.
    fn shuffle(self, seed: u64) -> Shuffle<Self>
    where
        Self: Sized,
    {
        Shuffle::new(self, seed)
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

    /// The elements `index`, `index + shards`, ... (TensorFlow: `shard`).
    fn shard(self, shards: u64, index: u64) -> Shard<Self>
    where
        Self: Sized,
    {
        Shard::new(self, shards, index)
    }

    /// Pairs of the elements at the same index, as many as the shorter source has
    /// (TensorFlow: `zip`).
    fn zip<S: Source>(self, other: S) -> Zip<Self, S>
    where
        Self: Sized,
    {
        Zip::new(self, other)
    }

    /// This source's elements, then the other's (TensorFlow: `concatenate`).
    fn concatenate<S: Source<Item = Self::Item>>(self, other: S) -> Concatenate<Self, S>
    where
        Self: Sized,
    {
        Concatenate::new(self, other)
    }

    /// The source several times, one pass after the other (TensorFlow: `repeat`); a negative number
    /// repeats without end. A shuffle before it gives another order in each pass.
    fn repeat(self, times: impl Into<Count>) -> Repeat<Self>
    where
        Self: Sized,
    {
        Repeat::new(self, times.into())
    }

    /// Lists of `size` elements (TensorFlow: `batch`); the last one may be short.
    fn batch(self, size: u64) -> Batch<Self>
    where
        Self: Sized,
    {
        Batch::new(self, size)
    }

    /// Pairs of a number, counted from `start`, and the element (TensorFlow: `enumerate`).
    fn enumerate(self, start: u64) -> Enumerate<Self>
    where
        Self: Sized,
    {
        Enumerate::new(self, start)
    }

    /// Keeps in memory what has been read (TensorFlow: `cache`). What is before it is read once:
    /// random augmentations and shuffles belong behind it.
    fn cache(self) -> Cache<Self>
    where
        Self: Sized,
        Self::Item: Clone + Sync,
    {
        Cache::new(self)
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<S: Source + ?Sized> Source for $pointer {
            type Item = S::Item;

            fn len(&self) -> u64 {
                (**self).len()
            }

            fn get(&self, index: u64) -> Result<Self::Item> {
                (**self).get(index)
            }

            fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<Self::Item> {
                (**self).get_in_epoch(epoch, index)
            }

            fn check(&self) -> Result<()> {
                (**self).check()
            }

            fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
                (**self).file(epoch, index)
            }
        }
    )*};
}
forward!(&S, Arc<S>, Box<S>);

/// An index that a source has.
pub(crate) fn in_range(stage: &'static str, index: u64, len: u64) -> Result<()> {
    if index < len {
        return Ok(());
    }
    Err(PipelineError::OutOfRange { stage, index, len })
}
