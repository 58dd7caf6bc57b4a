//! Numbers of some bytes, one after the other.

use super::Result;

/// An address that is not set.
pub(super) const UNSET: u64 = u64::MAX;

/// Bytes that are read from the front.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    read: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, read: 0 }
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(count)
            .ok_or("a structure of the file ends too early")?;
        self.bytes = rest;
        self.read += count;
        Ok(taken)
    }

    pub(super) fn skip(&mut self, count: usize) -> Result<()> {
        self.take(count).map(|_| ())
    }

    /// Skips to the next position that is a multiple of `align`, or to the end.
    pub(super) fn align(&mut self, align: usize) -> Result<()> {
        let missing = self.read.next_multiple_of(align) - self.read;
        self.skip(missing.min(self.bytes.len()))
    }

    /// A number of up to 8 bytes, the least first.
    pub(super) fn number(&mut self, bytes: usize) -> Result<u64> {
        let taken = self.take(bytes)?;
        if bytes > 8 {
            return Err(format!("a number of {bytes} bytes"));
        }
        let digits = taken.iter().rev();
        Ok(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.number(1)? as u8)
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(self.number(2)? as u16)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(self.number(4)? as u32)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.number(8)
    }

    /// A length or a count.
    pub(super) fn size(&mut self, bytes: usize) -> Result<usize> {
        let number = self.number(bytes)?;
        usize::try_from(number).map_err(|_| format!("a length of {number} bytes"))
    }

    /// The four bytes by which a structure begins.
    pub(super) fn signature(&mut self, wanted: &[u8; 4]) -> Result<()> {
        if self.take(4)? == wanted {
            return Ok(());
        }
        let name = String::from_utf8_lossy(wanted);
        Err(format!("there is no {name} where the file names one"))
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The number of bytes that a number up to `limit` needs.
pub(super) fn bytes_up_to(limit: u64) -> usize {
    limit.max(1).ilog2() as usize / 8 + 1
}

/// A text that ends at the first zero, or with the bytes.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}
