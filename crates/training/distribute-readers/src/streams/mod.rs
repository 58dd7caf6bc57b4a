//! Data that are read while a training runs, one element after the other: files of records and of
//! lines, and archives of samples. Memory is one element and its buffers, whatever the
//! files' sizes are.
//!
//! ```
//! use distribute_pipeline::Stream;
//! use distribute_readers::streams::{TfRecordStream, matching_files};
//! use distribute_records::{Compression, Example, Feature, RecordWriter};
//!
//! let folder = tempfile::tempdir()?;
//! for shard in 0..2_i64 {
//!     let path = folder.path().join(format!("train-{shard}.tfrecord"));
//!     let mut writer = RecordWriter::create(path, Compression::Gzip)?;
//!     let example = Example::from([("label", Feature::from(vec![shard]))]);
//!     writer.write(&example.to_bytes())?;
//!     writer.finish()?;
//! }
//!
//! let pattern = folder.path().join("train-*.tfrecord").display().to_string();
//! let mut records = TfRecordStream::new(matching_files(&pattern)?).skip_bad(10);
//! while let Some(record) = records.next()? {
//!     assert_eq!(Example::parse(&record)?.features.len(), 1);
//! }
//! assert_eq!(records.skipped().count, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bad;
mod files;
mod input;
mod json_lines;
mod tar_header;
mod tar_samples;
mod text_lines;
mod tfrecord;

pub use bad::Skipped;
pub use files::matching_files;
pub use json_lines::JsonLines;
pub use tar_samples::{TarSample, TarSamples};
pub use text_lines::TextLines;
pub use tfrecord::{TfRecordSource, TfRecordStream};
