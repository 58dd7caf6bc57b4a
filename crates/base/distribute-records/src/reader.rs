//! Reading records one after another.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::compression::Decompressed;
use crate::frame::{FOOTER_BYTES, HEADER_BYTES, length, masked_crc32c};
use crate::{Compression, Cut, RecordError};

/// The limit of a record, unless another one is set.
const MAX_RECORD_BYTES: u64 = 1 << 30;

/// Reads the records of a file in their order: an iterator of their data, as TensorFlow's
/// `tf.data.TFRecordDataset`.
///
/// Memory is one record and its buffers; a length that the file does not hold costs
/// nothing. After a record whose data are damaged the next one can be read; after any other error
/// the iterator ends. Calls block for the file.
///
/// A file that ends inside the length of a record is refused ([`Cut::Header`]). TensorFlow takes it
/// for complete, and so loses the record.
pub struct RecordReader<R> {
    from: Decompressed<R>,
    compression: Compression,
    name: String,
    limit: u64,
    record: u64,
    offset: u64,
    is_done: bool,
}

impl RecordReader<File> {
    /// Opens a file; without `compression` its first bytes say how it is compressed.
    ///
    /// # Errors
    ///
    /// [`RecordError::File`]
    pub fn open(
        path: impl AsRef<Path>,
        compression: Option<Compression>,
    ) -> Result<Self, RecordError> {
        let name = path.as_ref().display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(file, name, compression),
            Err(source) => Err(failed(name, source)),
        }
    }
}

impl<R: Read> RecordReader<R> {
    /// Reads records of any source of bytes; `name` stands for it in errors.
    ///
    /// # Errors
    ///
    /// [`RecordError::File`]
    pub fn new(
        from: R,
        name: impl Into<String>,
        compression: Option<Compression>,
    ) -> Result<Self, RecordError> {
        let name = name.into();
        match Decompressed::new(from, compression) {
            Err(source) => Err(failed(name, source)),
            Ok((from, compression)) => Ok(Self {
                from,
                compression,
                name,
                limit: MAX_RECORD_BYTES,
                record: 0,
                offset: 0,
                is_done: false,
            }),
        }
    }

    /// Longer records are refused; the default limit is 1 GiB.
    #[must_use]
    pub fn max_record_bytes(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// How the file is compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// How many records have been read, bad ones too.
    pub fn record(&self) -> u64 {
        self.record
    }

    /// Where the next record begins, in bytes behind the decompression.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the data of the next record into `data`, whose memory is used again; `false` at the
    /// end of the file.
    ///
    /// # Errors
    ///
    /// [`RecordError`], with the record's number and place.
    pub fn read(&mut self, data: &mut Vec<u8>) -> Result<bool, RecordError> {
        data.clear();
        if self.is_done {
            return Ok(false);
        }
        let result = self.read_next(data);
        self.is_done = match &result {
            Ok(found) => !found,
            Err(error) => !error.is_of_one_record(),
        };
        result
    }

    fn read_next(&mut self, data: &mut Vec<u8>) -> Result<bool, RecordError> {
        let Some(bytes) = self.header()? else {
            return Ok(false);
        };
        let expected = bytes.saturating_add(FOOTER_BYTES);
        self.take(expected, data)?;
        let found = data.len() as u64;
        if found < expected {
            return Err(self.truncated(Cut::Data, found, expected));
        }
        let crc = data.split_off(data.len() - FOOTER_BYTES as usize);
        let (record, offset) = (self.record, self.offset);
        self.record += 1;
        self.offset += HEADER_BYTES + bytes + FOOTER_BYTES;
        if crc != masked_crc32c(data).to_le_bytes() {
            data.clear();
            return Err(RecordError::CorruptData {
                file: self.name.clone(),
                record,
                offset,
            });
        }
        Ok(true)
    }

    /// The length of the next record; none at the end of the file.
    fn header(&mut self) -> Result<Option<u64>, RecordError> {
        let mut header = Vec::with_capacity(HEADER_BYTES as usize);
        self.take(HEADER_BYTES, &mut header)?;
        if header.is_empty() {
            return match self.from.has_rest() {
                Ok(false) => Ok(None),
                Ok(true) => Err(RecordError::Behind {
                    file: self.name.clone(),
                    record: self.record,
                }),
                Err(source) => Err(failed(self.name.clone(), source)),
            };
        }
        let Some(header) = header.first_chunk() else {
            return Err(self.truncated(Cut::Header, header.len() as u64, HEADER_BYTES));
        };
        let Some(bytes) = length(header) else {
            return Err(RecordError::CorruptLength {
                file: self.name.clone(),
                record: self.record,
                offset: self.offset,
                hint: hint(header, self.record),
            });
        };
        if bytes > self.limit {
            return Err(RecordError::TooLong {
                file: self.name.clone(),
                record: self.record,
                offset: self.offset,
                bytes,
                limit: self.limit,
            });
        }
        Ok(Some(bytes))
    }

    /// Reads at most this number of bytes: memory grows with what is there.
    fn take(&mut self, bytes: u64, to: &mut Vec<u8>) -> Result<(), RecordError> {
        let result = self.from.by_ref().take(bytes).read_to_end(to);
        result.map(drop).map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: io::Error) -> RecordError {
        let bad = matches!(
            source.kind(),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        );
        match format(self.compression) {
            Some(format) if bad => RecordError::Compressed {
                file: self.name.clone(),
                format,
                record: self.record,
                offset: self.offset,
                source,
            },
            _ => failed(self.name.clone(), source),
        }
    }

    fn truncated(&self, cut: Cut, found: u64, expected: u64) -> RecordError {
        RecordError::Truncated {
            file: self.name.clone(),
            record: self.record,
            offset: self.offset,
            cut,
            found,
            expected,
        }
    }
}

impl<R: Read + Seek> RecordReader<R> {
    /// Goes to a place that [`record`](Self::record) and [`offset`](Self::offset) have said of the
    /// same file. A compressed file is decompressed up to there. The reader must be new.
    ///
    /// # Errors
    ///
    /// [`RecordError`]; [`Changed`](RecordError::Changed) if the file ends before it.
    pub fn resume(&mut self, record: u64, offset: u64) -> Result<(), RecordError> {
        let passed = match &mut self.from {
            // A seek behind the end succeeds.
            Decompressed::Plain(from) => from
                .seek(SeekFrom::End(0))
                .and_then(|end| from.seek(SeekFrom::Start(offset.min(end)))),
            from => io::copy(&mut from.take(offset), &mut io::sink()),
        };
        let passed = passed.map_err(|source| self.unreadable(source))?;
        (self.record, self.offset) = (record, offset);
        if passed == offset {
            return Ok(());
        }
        Err(RecordError::Changed {
            file: self.name.clone(),
            record,
            offset,
        })
    }
}

impl<R: Read> Iterator for RecordReader<R> {
    type Item = Result<Vec<u8>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut data = Vec::new();
        match self.read(&mut data) {
            Ok(true) => Some(Ok(data)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl<R> fmt::Debug for RecordReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordReader")
            .field("name", &self.name)
            .field("compression", &self.compression)
            .field("record", &self.record)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

pub(crate) fn failed(file: String, source: io::Error) -> RecordError {
    let operation = "read";
    RecordError::File {
        file,
        operation,
        source,
    }
}

pub(crate) fn format(compression: Compression) -> Option<&'static str> {
    match compression {
        Compression::Plain => None,
        Compression::Gzip => Some("gzip"),
        Compression::Zlib => Some("zlib"),
    }
}

/// What the start of a file looks like, if it has no record there.
fn hint(start: &[u8], record: u64) -> &'static str {
    if record > 0 {
        return ": the file is damaged, and nothing behind that place can be told apart";
    }
    match start {
        [0x1f, 0x8b, ..] => ": the file is compressed by gzip",
        [b'P', b'A', b'R', b'1', ..] => ": this is a Parquet file",
        [b'P', b'K', 3, 4, ..] => ": this is a zip archive",
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => ": this is an Arrow file",
        [b'<', b'!' | b'h' | b'H' | b'?', ..] => {
            ": this is an HTML page, so a download has saved a message in place of the file"
        }
        [b'{' | b'[', ..] => ": this looks like JSON",
        _ if Compression::of(start) == Compression::Zlib => ": the file is compressed by zlib",
        _ => ": is this a TFRecord file?",
    }
}
