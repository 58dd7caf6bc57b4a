//! Event files that TensorBoard opens: scalars and histograms over training steps.
//!
//! An event file is a sequence of TFRecords (the crate `distribute-records`), each holding
//! one `Event` protobuf message (TensorFlow's `core/util/event.proto`); the first one names the
//! file version. Point `tensorboard --logdir` at the directory, while the training runs or later.
//!
//! ```
//! use std::time::SystemTime;
//! use distribute_fit::tensorboard::EventWriter;
//!
//! let directory = tempfile::tempdir()?;
//! let mut events = EventWriter::create(directory.path().join("train"))?;
//! for (step, loss) in [(0, 2.3), (100, 0.4)] {
//!     events.scalar("epoch_loss", loss, step, SystemTime::now())?;
//! }
//! events.flush()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod event;
mod histogram;
mod resumed;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub use resumed::remove_points;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use resumed::copy;

use event::{Event, Summary, SummaryValue, Value, What};
use prost::Message;

use crate::FitError;

/// The version in the first event of every file.
const FILE_VERSION: &str = "brain.Event:2";

/// The prefix of the names of all event files.
const FILE_PREFIX: &str = "events.out.tfevents.";

/// How many bytes are kept before they are written.
const BUFFER_BYTES: usize = 128 * 1024;

/// Longest tag in bytes.
const MAX_TAG_BYTES: usize = 4096;

/// Writes one event file. Calls block only for the copy into a buffer, and for the disk when the
/// buffer is full; dropping the writer writes what is left (and logs an error).
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
    /// Whole records, and the rest of one that was written in part.
    buffer: Vec<u8>,
}

impl EventWriter {
    /// Creates `directory` and a new file `events.out.tfevents.<seconds>.<host>.<pid>.<n>` in it.
    ///
    /// # Errors
    ///
    /// [`FitError::File`].
    pub fn create(directory: impl AsRef<Path>) -> Result<Self, FitError> {
        Self::create_at(directory.as_ref(), SystemTime::now())
    }

    fn create_at(directory: &Path, now: SystemTime) -> Result<Self, FitError> {
        fs::create_dir_all(directory).map_err(failed(directory, "create"))?;
        let (path, file) = create_file(directory, now)?;
        let mut writer = Self {
            path,
            file,
            buffer: Vec::new(),
        };
        writer.write(&Event {
            wall_time: unix_seconds(now),
            step: 0,
            what: Some(What::FileVersion(FILE_VERSION.to_string())),
        })?;
        // TensorBoard may look at the file before the first scalar is there.
        writer.flush()?;
        Ok(writer)
    }

    /// The event file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the point (`step`, `value`) to the curve `tag` (`/` in a tag makes groups).
    /// NaN and infinities are kept and shown by TensorBoard.
    ///
    /// # Errors
    ///
    /// [`FitError::File`], [`FitError::EventTag`] or [`FitError::EventStep`].
    pub fn scalar(
        &mut self,
        tag: &str,
        value: f32,
        step: u64,
        wall_time: SystemTime,
    ) -> Result<(), FitError> {
        self.summary(tag, Value::SimpleValue(value), step, wall_time)
    }

    /// Adds the distribution of `values` at `step` to the histograms of `tag`, in TensorFlow's
    /// buckets (limits grow by a tenth, `lib/histogram/histogram.cc`).
    ///
    /// # Errors
    ///
    /// [`FitError::NonFiniteHistogram`] (nothing is written), or as [`scalar`](Self::scalar).
    pub fn histogram(
        &mut self,
        tag: &str,
        values: impl IntoIterator<Item = f64>,
        step: u64,
        wall_time: SystemTime,
    ) -> Result<(), FitError> {
        let histogram = histogram::histogram(values).map_err(|count| {
            let tag = shortened(tag);
            FitError::NonFiniteHistogram { tag, count }
        })?;
        self.summary(tag, Value::Histo(histogram), step, wall_time)
    }

    /// Hands everything to the operating system, so that TensorBoard sees it.
    ///
    /// # Errors
    ///
    /// [`FitError::File`]; what was not written is kept and tried again by the next call.
    pub fn flush(&mut self) -> Result<(), FitError> {
        let mut done = 0;
        let written = loop {
            if done == self.buffer.len() {
                break Ok(());
            }
            match self.file.write(&self.buffer[done..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.buffer.drain(..done);
        written.map_err(failed(&self.path, "write"))
    }

    /// Gives up what is not written yet: of a file that cannot be written.
    pub fn discard(mut self) {
        self.buffer.clear();
    }

    fn summary(
        &mut self,
        tag: &str,
        value: Value,
        step: u64,
        wall_time: SystemTime,
    ) -> Result<(), FitError> {
        if tag.is_empty() || tag.len() > MAX_TAG_BYTES {
            return Err(FitError::EventTag {
                tag: shortened(tag),
                bytes: tag.len(),
            });
        }
        let signed_step = i64::try_from(step).map_err(|_| FitError::EventStep {
            tag: shortened(tag),
            step,
        })?;
        let value = SummaryValue {
            tag: tag.to_string(),
            value: Some(value),
        };
        self.write(&Event {
            wall_time: unix_seconds(wall_time),
            step: signed_step,
            what: Some(What::Summary(Summary { value: vec![value] })),
        })
    }

    fn write(&mut self, event: &Event) -> Result<(), FitError> {
        self.buffer
            .extend(distribute_records::encode(&event.encode_to_vec()));
        if self.buffer.len() < BUFFER_BYTES {
            Ok(())
        } else {
            self.flush()
        }
    }
}

fn failed(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> FitError {
    FitError::choose("log directory", path, operation)
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            tracing::error!(%error, "the last events were not written");
        }
    }
}

/// A file of our own, even if several writers of one process start in the same second.
fn create_file(directory: &Path, now: SystemTime) -> Result<(PathBuf, File), FitError> {
    let host = gethostname::gethostname();
    let host = host.to_string_lossy().replace(['/', '\\'], "_");
    // Whole seconds, ten digits: TensorBoard reads the files of a directory in order of names.
    let seconds = unix_seconds(now).max(0.0) as u64;
    let mut count = 0_u64;
    loop {
        let process = std::process::id();
        let name = format!("{FILE_PREFIX}{seconds:010}.{host}.{process}.{count}");
        let path = directory.join(name);
        match File::create_new(&path) {
            Ok(file) => return Ok((path, file)),
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => count += 1,
            Err(source) => return Err(failed(&path, "create")(source)),
        }
    }
}

/// Seconds since 1970, negative before.
fn unix_seconds(time: SystemTime) -> f64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}

fn shortened(tag: &str) -> String {
    tag.chars().take(80).collect()
}

#[cfg(test)]
mod tests;
