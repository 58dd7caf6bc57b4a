//! Data pipelines that resume exactly: `tf.data` for Rust.
//!
//! There are two nouns. A [`Source`] has a length and gives any element by its index; a
//! [`Stream`] gives one element after the other, and its [`State`] can be saved between any two of
//! them. A source becomes a stream by [`Source::stream`], never the other way. Both have the
//! transformations of `tf.data` by its names, and may be written by users: [`contract`] checks
//! what an implementation of the traits must keep.
//!
//! ```
//! use distribute_pipeline::{Source, Stream, range};
//!
//! let squares = range(0..10).map(|x| x * x).stream();
//! let mut batches = squares.filter(|x| x % 2 == 0).batch(2);
//! assert_eq!(batches.next()?, Some(vec![0, 4]));
//! let saved = batches.state()?;
//! assert_eq!(batches.next()?, Some(vec![16, 36]));
//!
//! batches.restore(&saved)?;
//! assert_eq!(batches.next()?, Some(vec![16, 36]));
//! assert_eq!(batches.next()?, Some(vec![64]));
//! assert_eq!(batches.next()?, None);
//! # Ok::<(), distribute_pipeline::PipelineError>(())
//! ```
//!
//! Rules that hold for every transformation:
//!
//! - The elements, their order and the errors follow from the data, the seeds and the epoch alone,
//!   whatever the number of threads.
//! - A restored stream gives the rest of what the saved one would have given, and reads nothing
//!   again that was read before: buffers travel in the state.
//! - A wrong argument (a batch of 0 elements) is an error of the first element, and of `check`.

#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod array;
mod checks;
pub mod contract;
mod count;
mod error;
mod permutation;
mod random;
pub mod source;
mod state;
pub mod stream;

pub use array::Array;
pub use count::{Cardinality, Count};
pub use error::{BoxError, PipelineError, Result};
pub use permutation::Permutation;
pub use random::{ElementRng, element_rng};
pub use source::{Source, from_fn, items, mix, range};
pub use state::{State, StateReader};
pub use stream::{AUTOTUNE, Stream};
