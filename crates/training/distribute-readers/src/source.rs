//! Opens files, decompresses gzip by its magic, and never reads or allocates more than a file of
//! that size can hold.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::array::Values;
use crate::decode::{Decoded, Endian, Stored, decode};
use crate::error::ReadError;

/// No file is decoded to more than this: 16 GiB.
pub(crate) const MAX_BYTES: u64 = 16 << 30;
/// Deflate cannot expand data more than this (1,032 to 1, RFC 1951's longest match).
const DEFLATE_MAX_RATIO: u64 = 1032;
/// Compressed data seldom shrinks more than this, so this much is reserved before decoding.
const DEFLATE_USUAL_RATIO: u64 = 6;
/// Data that becomes larger than this...
const BOMB_BYTES: u64 = 256 << 20;
/// ...and more than this many times its stored size is not decompressed.
const BOMB_RATIO: u64 = 200;
/// How many bytes are decoded at once; a multiple of the size of every value.
const CHUNK_BYTES: u64 = 1 << 20;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A stream of decoded bytes with an upper bound of how many there can be.
pub(crate) struct Source<'a> {
    reader: Box<dyn Read + 'a>,
    origin: &'a Path,
    /// The stream cannot yield more bytes than this; exact if `exact`.
    ceiling: u64,
    /// Whether `ceiling` is the true length: the data is not compressed.
    exact: bool,
    /// Bytes before decompression.
    stored_bytes: u64,
    /// Bytes that may be reserved before they are read.
    reserve: u64,
    consumed: u64,
    /// Carriage returns are read as the ends of lines that they are.
    carriage_returns: bool,
}

impl<'a> Source<'a> {
    /// Opens a regular file, gzip or not.
    pub(crate) fn open(path: &'a Path) -> Result<Self, ReadError> {
        let (file, length) = open_regular(path)?;
        Self::detect(BufReader::with_capacity(1 << 16, file), length, path)
    }

    /// Reads from memory, gzip or not; `origin` names the data in errors.
    pub(crate) fn from_bytes(bytes: &'a [u8], origin: &'a Path) -> Result<Self, ReadError> {
        Self::detect(bytes, bytes.len() as u64, origin)
    }

    fn detect(
        mut reader: impl BufRead + 'a,
        length: u64,
        origin: &'a Path,
    ) -> Result<Self, ReadError> {
        let start = reader
            .fill_buf()
            .map_err(|error| ReadError::io(origin, error))?;
        if start.starts_with(&GZIP_MAGIC) {
            let reader = Box::new(MultiGzDecoder::new(reader));
            Ok(Self::compressed(reader, length, origin))
        } else {
            let ceiling = length;
            let reader = Box::new(reader);
            Ok(Source {
                reader,
                origin,
                ceiling,
                exact: true,
                stored_bytes: length,
                reserve: length,
                consumed: 0,
                carriage_returns: false,
            })
        }
    }

    /// A stream that `compressed_bytes` of deflated data are decoded to.
    pub(crate) fn compressed(
        reader: Box<dyn Read + 'a>,
        compressed_bytes: u64,
        origin: &'a Path,
    ) -> Self {
        let ceiling = compressed_bytes
            .saturating_mul(DEFLATE_MAX_RATIO)
            .min(MAX_BYTES);
        let reserve = compressed_bytes
            .saturating_mul(DEFLATE_USUAL_RATIO)
            .min(ceiling);
        Source {
            reader,
            origin,
            ceiling,
            exact: false,
            stored_bytes: compressed_bytes,
            reserve,
            consumed: 0,
            carriage_returns: false,
        }
    }

    pub(crate) fn origin(&self) -> &'a Path {
        self.origin
    }

    /// The next `count` bytes, or fewer at the end of the data, which stay to be read.
    pub(crate) fn peek(&mut self, count: usize) -> Result<Vec<u8>, ReadError> {
        let before = self.consumed;
        let start = self.head(count)?;
        self.consumed = before;
        let rest = std::mem::replace(&mut self.reader, Box::new(io::empty()));
        self.reader = Box::new(io::Cursor::new(start.clone()).chain(rest));
        Ok(start)
    }

    /// Every carriage return ends a line.
    pub(crate) fn with_carriage_returns(mut self, they_end_lines: bool) -> Self {
        self.carriage_returns = they_end_lines;
        self
    }

    /// Reads up to `count` bytes: fewer only at the end of the data.
    pub(crate) fn head(&mut self, count: usize) -> Result<Vec<u8>, ReadError> {
        let mut head = Vec::with_capacity(count);
        self.read_up_to(count as u64, &mut head)?;
        Ok(head)
    }

    /// Reads `count` bytes of a header, or says that the file is too short for it.
    pub(crate) fn header(&mut self, count: usize) -> Result<Vec<u8>, ReadError> {
        let before = self.consumed;
        let head = self.head(count)?;
        if head.len() < count {
            return Err(self.truncated(before + count as u64));
        }
        Ok(head)
    }

    /// Holds the claim that `count` bytes follow against the size of the file, before anything is
    /// allocated: the number of bytes and that of all bytes with those before.
    pub(crate) fn check_claim(&self, count: Option<u64>) -> Result<(u64, u64), ReadError> {
        let total = count.and_then(|count| count.checked_add(self.consumed));
        let (Some(count), Some(total)) = (count, total) else {
            return Err(self.too_large(u64::MAX));
        };
        if total > self.ceiling.min(MAX_BYTES) {
            return Err(if self.exact && total > self.ceiling {
                self.short(total, self.ceiling)
            } else {
                self.too_large(total)
            });
        }
        if self.is_bomb(total) {
            return Err(ReadError::Bomb {
                path: self.origin.into(),
                compressed_bytes: self.stored_bytes,
                claimed_bytes: total,
            });
        }
        Ok((count, total))
    }

    fn is_bomb(&self, total: u64) -> bool {
        !self.exact && total > BOMB_BYTES && total / BOMB_RATIO > self.stored_bytes
    }

    /// Reads the `count` bytes of values that must be all that is left. The inner error is that of
    /// [`decode`].
    pub(crate) fn values(
        &mut self,
        count: Option<u64>,
        stored: Stored,
        endian: Endian,
    ) -> Result<Decoded, ReadError> {
        let (count, total) = self.check_claim(count)?;
        if stored == Stored::U8 {
            let bytes = self.bytes(count, total)?;
            self.expect_end(total)?;
            return Ok(Ok(Values::U8(bytes)));
        }
        // In pieces: the bytes and the values of a large file need not fit side by side.
        let mut left = count;
        let mut all = None;
        while left > 0 || all.is_none() {
            let bytes = self.bytes(left.min(CHUNK_BYTES), total)?;
            left -= bytes.len() as u64;
            let before = all.as_ref().map_or(0, Values::len);
            let values = match decode(bytes, stored, endian) {
                Ok(values) => values,
                Err(at) => return Ok(Err(before + at)),
            };
            let reserve = count.min(self.reserve) / stored.bytes();
            all = match all.take() {
                None => Some(
                    values
                        .reserved(reserve)
                        .map_err(|_| self.no_memory(count))?,
                ),
                Some(all) => Some(all.followed_by(values).map_err(|_| self.no_memory(count))?),
            };
        }
        self.expect_end(total)?;
        Ok(Ok(all.unwrap_or(Values::U8(Vec::new()))))
    }

    /// Reads `count` bytes, of a file that has `total` in all.
    fn bytes(&mut self, count: u64, total: u64) -> Result<Vec<u8>, ReadError> {
        let mut bytes = Vec::new();
        let reserve = usize::try_from(count.min(self.reserve)).unwrap_or(usize::MAX);
        if bytes.try_reserve_exact(reserve).is_err() {
            return Err(self.no_memory(count));
        }
        self.read_up_to(count, &mut bytes)?;
        if (bytes.len() as u64) < count {
            return Err(self.truncated(total));
        }
        Ok(bytes)
    }

    /// Nothing follows the `total` bytes that have been read.
    fn expect_end(&mut self, total: u64) -> Result<(), ReadError> {
        // The end of a gzip stream, with its checksum, is only looked at by a read that finds it.
        let mut extra = [0u8; 1];
        match self
            .reader
            .read(&mut extra)
            .map_err(|error| self.read_error(error))?
        {
            0 => Ok(()),
            _ => Err(ReadError::Trailing {
                path: self.origin.into(),
                expected_bytes: total,
            }),
        }
    }

    fn read_up_to(&mut self, count: u64, bytes: &mut Vec<u8>) -> Result<(), ReadError> {
        let result = (&mut self.reader).take(count).read_to_end(bytes);
        self.consumed += bytes.len() as u64;
        match result {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(self.no_memory(count)),
            // A cut gzip stream is a short file like any other: the caller compares lengths.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(self.read_error(error)),
        }
    }

    /// The error for a file whose end has been reached before `expected_bytes`.
    pub(crate) fn truncated(&self, expected_bytes: u64) -> ReadError {
        self.short(expected_bytes, self.consumed)
    }

    fn short(&self, expected_bytes: u64, found_bytes: u64) -> ReadError {
        if self.exact && self.stored_bytes == 0 {
            return ReadError::malformed(self.origin, "the file is empty (0 bytes)");
        }
        ReadError::Truncated {
            path: self.origin.into(),
            expected_bytes,
            found_bytes,
        }
    }

    fn too_large(&self, claimed_bytes: u64) -> ReadError {
        let limit_bytes = self.ceiling.min(MAX_BYTES);
        ReadError::TooLarge {
            path: self.origin.into(),
            claimed_bytes,
            limit_bytes,
        }
    }

    fn no_memory(&self, bytes: u64) -> ReadError {
        ReadError::OutOfMemory {
            path: self.origin.into(),
            bytes,
        }
    }

    fn read_error(&self, error: io::Error) -> ReadError {
        stream_error(self.origin, error)
    }
}

/// Reading a `Source` as a stream (for tables, whose length no header says).
impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.consumed += count as u64;
        if self.carriage_returns {
            let ends = buffer[..count].iter_mut().filter(|byte| **byte == b'\r');
            ends.for_each(|byte| *byte = b'\n');
        }
        if self.consumed > MAX_BYTES || self.is_bomb(self.consumed) {
            let message = format!(
                "its {} bytes become more than {} after decompression, which data hardly does",
                self.stored_bytes,
                self.consumed - count as u64
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        Ok(count)
    }
}

/// Tells damaged compressed data from an operating system that cannot read.
pub(crate) fn stream_error(origin: &Path, error: io::Error) -> ReadError {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            ReadError::malformed(origin, format!("damaged compressed data: {error}"))
        }
        io::ErrorKind::FileTooLarge => ReadError::malformed(origin, error.to_string()),
        io::ErrorKind::OutOfMemory => ReadError::OutOfMemory {
            path: origin.into(),
            bytes: 0,
        },
        io::ErrorKind::UnexpectedEof => {
            ReadError::malformed(origin, "the compressed data ends too early")
        }
        _ => ReadError::io(origin, error),
    }
}

/// Opens a regular file with its length; anything else (a directory, a pipe) is an error.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64), ReadError> {
    let metadata = fs::metadata(path).map_err(|error| not_there(path, error))?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() {
            "is a directory"
        } else {
            "is not a regular file"
        };
        let remedy = "pass the path of a file";
        return Err(ReadError::Unsupported {
            path: path.into(),
            what: what.into(),
            remedy,
        });
    }
    let file = File::open(path).map_err(|error| ReadError::io(path, error))?;
    Ok((file, metadata.len()))
}

/// Checks that `path` is a directory.
pub(crate) fn require_directory(path: &Path) -> Result<(), ReadError> {
    let metadata = fs::metadata(path).map_err(|error| not_there(path, error))?;
    if metadata.is_dir() {
        return Ok(());
    }
    let (what, remedy) = (
        "is not a directory".to_owned(),
        "pass the directory of the data",
    );
    Err(ReadError::Unsupported {
        path: path.into(),
        what,
        remedy,
    })
}

/// The error for a link to what is not there, if that is what `path` is.
pub(crate) fn dangling_link(path: &Path) -> Option<ReadError> {
    let target = fs::read_link(path).ok().filter(|_| !path.exists())?;
    Some(ReadError::Unsupported {
        path: path.into(),
        what: format!("is a link to {}, which does not exist", target.display()),
        remedy: "remove the link, or put the file there",
    })
}

fn not_there(path: &Path, error: io::Error) -> ReadError {
    if error.kind() == io::ErrorKind::NotFound {
        if let Some(dangling) = dangling_link(path) {
            return dangling;
        }
        return ReadError::Missing {
            path: path.into(),
            looked_for: Vec::new(),
        };
    }
    ReadError::io(path, error)
}
