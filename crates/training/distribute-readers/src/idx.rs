//! IDX, the format of MNIST: two zero bytes, a type, a rank, the extents and the values, all big
//! endian (<http://yann.lecun.com/exdb/mnist/>).

use std::path::Path;

use crate::array::{Array, checked_product};
use crate::decode::{Endian, Stored};
use crate::error::ReadError;
use crate::source::Source;

const FORMAT: &str = "IDX (00 00, then a type 08, 09, 0b, 0c, 0d or 0e, then the rank)";

/// Reads an IDX file of any rank and type; gzip is recognised by its magic, not by the name.
///
/// # Errors
/// [`ReadError`]: missing file, wrong magic, truncated, data after the end, or a header that
/// promises more than the file can hold (found before anything is allocated).
pub fn read_idx(path: impl AsRef<Path>) -> Result<Array, ReadError> {
    Opened::new(Source::open(path.as_ref())?, None)?.read()
}

/// A file whose header has been read, and none of its values.
pub(crate) struct Opened<'a> {
    source: Source<'a>,
    extents: Vec<usize>,
    stored: Stored,
}

impl<'a> Opened<'a> {
    /// A file that must hold `wanted`.
    pub(crate) fn open(path: &'a Path, wanted: IdxKind) -> Result<Self, ReadError> {
        Self::new(Source::open(path)?, Some(wanted))
    }

    /// The extent of each axis, as the header says.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.extents
    }

    pub(crate) fn path(&self) -> &'a Path {
        self.source.origin()
    }

    fn bytes(&self) -> Option<u64> {
        let count = checked_product(&self.extents)?;
        (count as u64).checked_mul(self.stored.bytes())
    }

    pub(crate) fn read(mut self) -> Result<Array, ReadError> {
        let bytes = self.bytes();
        let values = self.source.values(bytes, self.stored, Endian::Big)?;
        let too_large = |_| ReadError::malformed(self.source.origin(), "an integer is too large");
        Array::new(self.extents, values.map_err(too_large)?)
    }
}

/// What an IDX file is for. Its rank, the fourth byte, tells: a file of the other kind is a mix-up,
/// and its sizes mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdxKind {
    Images,
    Labels,
}

impl IdxKind {
    fn fits(self, rank: u8) -> bool {
        match self {
            Self::Images => rank >= 2,
            Self::Labels => rank <= 2,
        }
    }

    fn format(self) -> &'static str {
        match self {
            Self::Images => "IDX images (00 00 08 03; 00 00 08 01 are labels)",
            Self::Labels => "IDX labels (00 00 08 01; 00 00 08 03 are images)",
        }
    }
}

/// Reads IDX from memory, gzip or not; `origin` names the data in errors.
///
/// # Errors
/// As [`read_idx`].
pub fn parse_idx(bytes: &[u8], origin: impl AsRef<Path>) -> Result<Array, ReadError> {
    Opened::new(Source::from_bytes(bytes, origin.as_ref())?, None)?.read()
}

impl<'a> Opened<'a> {
    fn new(mut source: Source<'a>, wanted: Option<IdxKind>) -> Result<Self, ReadError> {
        let magic = source.head(4)?;
        let stored = match magic[..] {
            [0, 0, code, _] => stored(code),
            _ => None,
        };
        let (Some(stored), Some(&rank)) = (stored, magic.get(3)) else {
            let is_cut = magic.len() < 4 && magic.iter().take(2).all(|&byte| byte == 0);
            return Err(if is_cut {
                source.truncated(4)
            } else {
                ReadError::wrong_magic(source.origin(), FORMAT, &magic)
            });
        };
        if rank == 0 {
            return Err(ReadError::malformed(
                source.origin(),
                "the IDX header has rank 0",
            ));
        }
        if let Some(wanted) = wanted.filter(|wanted| !wanted.fits(rank)) {
            let format = wanted.format();
            return Err(ReadError::wrong_magic(source.origin(), format, &magic));
        }
        let extents = source.header(4 * usize::from(rank))?;
        let (extents, _) = extents.as_chunks::<4>();
        let extents: Vec<usize> = extents
            .iter()
            .map(|bytes| u32::from_be_bytes(*bytes) as usize)
            .collect();
        let opened = Opened {
            source,
            extents,
            stored,
        };
        opened.source.check_claim(opened.bytes())?;
        Ok(opened)
    }
}

fn stored(code: u8) -> Option<Stored> {
    Some(match code {
        0x08 => Stored::U8,
        0x09 => Stored::I8,
        0x0b => Stored::I16,
        0x0c => Stored::I32,
        0x0d => Stored::F32,
        0x0e => Stored::F64,
        _ => return None,
    })
}
