//! How a TFRecord file is compressed.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::{MultiGzDecoder, ZlibDecoder};

use crate::frame;

/// How a file of records is compressed, as TensorFlow's `compression_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all (`""`).
    Plain,
    /// By gzip (`"GZIP"`): one stream or several, one behind another.
    Gzip,
    /// By zlib (`"ZLIB"`): one stream.
    Zlib,
}

impl Compression {
    /// What the first bytes of a file are: 12 decide. A length with its right checksum makes a
    /// plain file, whatever else its bytes look like; a file that begins like nothing known is
    /// taken for a plain one.
    pub fn of(start: &[u8]) -> Self {
        let plain = start.first_chunk().and_then(frame::length).is_some();
        match start {
            _ if plain => Self::Plain,
            [0x1f, 0x8b, ..] => Self::Gzip,
            [method, flags, ..] if is_zlib(*method, *flags) => Self::Zlib,
            _ => Self::Plain,
        }
    }

    /// TensorFlow's word for it.
    pub fn tensorflow_name(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Gzip => "GZIP",
            Self::Zlib => "ZLIB",
        }
    }
}

/// RFC 1950: the method is deflate, with a window of at most 32 KiB, and the two bytes are a
/// multiple of 31. No writer of records uses a preset dictionary.
fn is_zlib(method: u8, flags: u8) -> bool {
    let has_dictionary = flags & 0x20 != 0;
    method & 15 == 8
        && method >> 4 < 8
        && !has_dictionary
        && u16::from_be_bytes([method, flags]).is_multiple_of(31)
}

/// The bytes of a file behind its compression.
pub(crate) enum Decompressed<R> {
    Plain(BufReader<R>),
    Gzip(MultiGzDecoder<BufReader<R>>),
    Zlib(ZlibDecoder<BufReader<R>>),
}

impl<R: Read> Decompressed<R> {
    /// Finds out how the file is compressed, where `compression` does not say.
    pub(crate) fn new(
        from: R,
        compression: Option<Compression>,
    ) -> io::Result<(Self, Compression)> {
        let mut from = BufReader::with_capacity(1 << 16, from);
        let start = from.fill_buf()?;
        let compression = compression.unwrap_or_else(|| Compression::of(start));
        let found = match compression {
            // No stream at all: TensorFlow takes it for a file without records.
            _ if start.is_empty() => Self::Plain(from),
            Compression::Plain => Self::Plain(from),
            Compression::Gzip => Self::Gzip(MultiGzDecoder::new(from)),
            Compression::Zlib => Self::Zlib(ZlibDecoder::new(from)),
        };
        Ok((found, compression))
    }

    /// Whether bytes are left behind the end of a zlib stream.
    pub(crate) fn has_rest(&mut self) -> io::Result<bool> {
        match self {
            Self::Zlib(stream) => Ok(!stream.get_mut().fill_buf()?.is_empty()),
            Self::Plain(_) | Self::Gzip(_) => Ok(false),
        }
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(from) => from.read(to),
            Self::Gzip(from) => from.read(to),
            Self::Zlib(from) => from.read(to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_decide() {
        assert_eq!(Compression::of(&[0x1f, 0x8b, 8]), Compression::Gzip);
        for flags in [0x01, 0x5e, 0x9c, 0xda] {
            assert_eq!(Compression::of(&[0x78, flags]), Compression::Zlib);
        }
        assert_eq!(Compression::of(b"x "), Compression::Plain);
        assert_eq!(Compression::of(b""), Compression::Plain);
    }

    /// The length of a record of 35 615 bytes begins as gzip does, and that of 30 876 or 40 056
    /// bytes as zlib: the checksum says what it is.
    #[test]
    fn a_length_with_its_checksum_is_a_plain_file() {
        for length in [0x8b1f, 0x789c, 0x9c78] {
            assert_eq!(Compression::of(&frame::header(length)), Compression::Plain);
        }
        let mut damaged = frame::header(0x8b1f);
        damaged[8] ^= 1;
        assert_eq!(Compression::of(&damaged), Compression::Gzip);
    }
}
