//! Records by their number.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::frame::{FOOTER_BYTES, HEADER_BYTES, length, masked_crc32c};
use crate::reader::{failed, format};
use crate::{Compression, Cut, RecordError, RecordReader};

/// Where the records of a plain file are, so that any of them can be read at once.
///
/// Opening it reads the lengths and jumps over the data; memory is 8 bytes for each record. The
/// data are checked when they are read. Several threads can share one index: each call of
/// [`read`](Self::read) opens the file on its own.
pub struct RecordIndex {
    path: std::path::PathBuf,
    /// Where each record begins, and where the last one ends.
    offsets: Vec<u64>,
}

impl RecordIndex {
    /// Finds the records of a file.
    ///
    /// # Errors
    ///
    /// [`RecordError`]: of the operating system, of a length that is damaged or a record that is
    /// cut off, and [`RecordError::NotSeekable`] for a compressed file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RecordError> {
        let path = path.as_ref();
        let name = || path.display().to_string();
        let read = |source| failed(name(), source);
        let file = File::open(path).map_err(read)?;
        let size = file.metadata().map_err(read)?.len();
        let mut file = BufReader::with_capacity(1 << 14, file);
        let mut offsets = vec![0];
        let mut offset = 0;
        while offset < size {
            let record = offsets.len() as u64 - 1;
            let mut header = [0; HEADER_BYTES as usize];
            let truncated = |cut, found, expected| RecordError::Truncated {
                file: name(),
                record,
                offset,
                cut,
                found,
                expected,
            };
            if size - offset < HEADER_BYTES {
                return Err(truncated(Cut::Header, size - offset, HEADER_BYTES));
            }
            file.read_exact(&mut header).map_err(read)?;
            let Some(bytes) = length(&header) else {
                return Err(bad_length(path, &header, record, offset));
            };
            let rest = size - offset - HEADER_BYTES;
            if bytes.saturating_add(FOOTER_BYTES) > rest {
                return Err(truncated(
                    Cut::Data,
                    rest,
                    bytes.saturating_add(FOOTER_BYTES),
                ));
            }
            let jump = i64::try_from(bytes + FOOTER_BYTES).unwrap_or(i64::MAX);
            file.seek_relative(jump).map_err(read)?;
            offset += HEADER_BYTES + bytes + FOOTER_BYTES;
            offsets.push(offset);
        }
        let path = path.to_path_buf();
        Ok(Self { path, offsets })
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes the data of a record have.
    pub fn record_bytes(&self, record: usize) -> Option<u64> {
        let ends = self.offsets.get(record..=record + 1)?;
        Some(ends[1] - ends[0] - HEADER_BYTES - FOOTER_BYTES)
    }

    /// The data of one record. Blocks for the file.
    ///
    /// # Errors
    ///
    /// [`RecordError`]: [`NoRecord`](RecordError::NoRecord),
    /// [`CorruptData`](RecordError::CorruptData), or
    /// [`Changed`](RecordError::Changed) if the file is no longer the one that was opened.
    pub fn read(&self, record: usize) -> Result<Vec<u8>, RecordError> {
        let name = || self.path.display().to_string();
        let Some(bytes) = self.record_bytes(record) else {
            return Err(RecordError::NoRecord {
                file: name(),
                record,
                count: self.len(),
            });
        };
        let offset = self.offsets[record];
        let read = |source| failed(name(), source);
        let mut file = File::open(&self.path).map_err(read)?;
        file.seek(SeekFrom::Start(offset)).map_err(read)?;
        let mut data = Vec::new();
        let whole = HEADER_BYTES + bytes + FOOTER_BYTES;
        file.take(whole).read_to_end(&mut data).map_err(read)?;
        let record = record as u64;
        let header = data.first_chunk();
        if data.len() as u64 != whole || header.and_then(length) != Some(bytes) {
            return Err(RecordError::Changed {
                file: name(),
                record,
                offset,
            });
        }
        let crc = data.split_off(data.len() - FOOTER_BYTES as usize);
        data.drain(..HEADER_BYTES as usize);
        if crc != masked_crc32c(&data).to_le_bytes() {
            return Err(RecordError::CorruptData {
                file: name(),
                record,
                offset,
            });
        }
        Ok(data)
    }
}

/// The error of the reader for the same place, or that the file is compressed.
fn bad_length(path: &Path, header: &[u8], record: u64, offset: u64) -> RecordError {
    let file = path.display().to_string();
    if let (0, Some(format)) = (record, format(Compression::of(header))) {
        return RecordError::NotSeekable { file, format };
    }
    let plain = Some(Compression::Plain);
    let again = RecordReader::new(header, file.clone(), plain).map(|mut all| all.next());
    match again {
        Ok(Some(Err(RecordError::CorruptLength { hint, .. }))) if record == 0 => {
            RecordError::CorruptLength {
                file,
                record,
                offset,
                hint,
            }
        }
        _ => RecordError::CorruptLength {
            file,
            record,
            offset,
            hint: ": the file is damaged, and nothing behind that place can be told apart",
        },
    }
}

impl fmt::Debug for RecordIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordIndex")
            .field("path", &self.path)
            .field("records", &self.len())
            .finish_non_exhaustive()
    }
}
