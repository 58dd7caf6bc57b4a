//! TFRecord files, and the `tf.train.Example` messages in them.
//!
//! A TFRecord file is a sequence of byte strings, each with its length and checksums
//! ([`RecordReader`], [`RecordWriter`], [`RecordIndex`]), plain or compressed ([`Compression`]).
//! Usually each record is an [`Example`]: features by name, each a list of integers, floats or byte
//! strings. [`parse_example`] makes arrays of known shapes of them, by a [`Schema`].
//!
//! ```
//! use distribute_records::{
//!     Compression, DType, Example, Feature, FeatureSpec, RecordReader, RecordWriter, Schema,
//!     Values, parse_example,
//! };
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("train.tfrecord");
//! let mut writer = RecordWriter::create(&path, Compression::Gzip)?;
//! let example = Example::from([
//!     ("size", Feature::from(vec![0.5_f32, 2.0])),
//!     ("label", Feature::from(vec![3_i64])),
//! ]);
//! writer.write(&example.to_bytes())?;
//! writer.finish()?;
//!
//! let schema = Schema::from([
//!     ("size", FeatureSpec::fixed(DType::Float32, [2])),
//!     ("label", FeatureSpec::fixed(DType::Int64, [])),
//! ]);
//! for record in RecordReader::open(&path, None)? {
//!     let parsed = parse_example(&record?, &schema)?;
//!     assert_eq!(parsed["size"].values, Values::Float32(vec![0.5, 2.0]));
//!     assert_eq!(parsed["label"].values, Values::Int64(vec![3]));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod compression;
mod error;
mod example;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod index;
mod parse;
mod parse_error;
mod ragged;
mod reader;
mod schema;
mod sequence;
mod sequence_parse;
mod strict;
mod wire;
mod writer;

pub use compression::Compression;
pub use error::{Cut, MessageError, RecordError};
pub use example::{Example, Feature};
pub use frame::{encode, masked_crc32c};
pub use index::RecordIndex;
pub use parse::parse_example;
pub use parse_error::ParseError;
pub use reader::RecordReader;
pub use schema::{DType, FeatureSpec, Parsed, RowPartition, Schema, Values};
pub use sequence::SequenceExample;
pub use sequence_parse::{ParsedSequence, parse_sequence_example};
pub use writer::RecordWriter;
