//! One element after the other: [`Stream`] and its transformations.

mod source_stream;

use std::path::PathBuf;

pub use source_stream::SourceStream;

use crate::{Cardinality, Result, State};

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
