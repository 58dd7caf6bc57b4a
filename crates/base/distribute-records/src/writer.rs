//! Writing records.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::write::{GzEncoder, ZlibEncoder};

use crate::frame::{header, masked_crc32c};
use crate::{Compression, RecordError};

/// Writes records, as TensorFlow's `tf.io.TFRecordWriter`: plain files have the same bytes.
///
/// [`finish`](Self::finish) writes what is left and says whether all of it was written; a writer
/// that is dropped without it may leave a file that ends early, which readers report.
pub struct RecordWriter<W: Write> {
    to: Compressed<W>,
    name: String,
    records: u64,
}

enum Compressed<W: Write> {
    Plain(BufWriter<W>),
    Gzip(GzEncoder<BufWriter<W>>),
    Zlib(ZlibEncoder<BufWriter<W>>),
}

impl RecordWriter<File> {
    /// Creates a file, or replaces its content.
    ///
    /// # Errors
    ///
    /// [`RecordError::File`]
    pub fn create(path: impl AsRef<Path>, compression: Compression) -> Result<Self, RecordError> {
        let name = path.as_ref().display().to_string();
        match File::create(path) {
            Ok(file) => Ok(Self::new(file, name, compression)),
            Err(source) => Err(RecordError::File {
                file: name,
                operation: "create",
                source,
            }),
        }
    }
}

impl<W: Write> RecordWriter<W> {
    /// Writes to anything; `name` stands for it in errors.
    pub fn new(to: W, name: impl Into<String>, compression: Compression) -> Self {
        let to = BufWriter::with_capacity(1 << 16, to);
        let level = flate2::Compression::default();
        Self {
            to: match compression {
                Compression::Plain => Compressed::Plain(to),
                Compression::Gzip => Compressed::Gzip(GzEncoder::new(to, level)),
                Compression::Zlib => Compressed::Zlib(ZlibEncoder::new(to, level)),
            },
            name: name.into(),
            records: 0,
        }
    }

    /// How many records have been written.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Writes one record.
    ///
    /// # Errors
    ///
    /// [`RecordError::File`]; nothing more can be written then.
    pub fn write(&mut self, data: &[u8]) -> Result<(), RecordError> {
        let to: &mut dyn Write = match &mut self.to {
            Compressed::Plain(to) => to,
            Compressed::Gzip(to) => to,
            Compressed::Zlib(to) => to,
        };
        let written = to
            .write_all(&header(data.len() as u64))
            .and_then(|()| to.write_all(data))
            .and_then(|()| to.write_all(&masked_crc32c(data).to_le_bytes()));
        written.map_err(|source| failed(&self.name, source))?;
        self.records += 1;
        Ok(())
    }

    /// Writes what is left, and gives back what was written to.
    ///
    /// # Errors
    ///
    /// [`RecordError::File`]
    pub fn finish(self) -> Result<W, RecordError> {
        let to = match self.to {
            Compressed::Plain(to) => Ok(to),
            Compressed::Gzip(to) => to.finish(),
            Compressed::Zlib(to) => to.finish(),
        };
        to.and_then(|to| to.into_inner().map_err(io::IntoInnerError::into_error))
            .map_err(|source| failed(&self.name, source))
    }
}

impl<W: Write> fmt::Debug for RecordWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordWriter")
            .field("name", &self.name)
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

fn failed(file: &str, source: io::Error) -> RecordError {
    RecordError::File {
        file: file.to_string(),
        operation: "write",
        source,
    }
}
