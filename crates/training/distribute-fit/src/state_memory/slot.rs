//! A file in memory with one state: whole, or recognised as torn.
//!
//! The file begins with a header that is cleared before a state is written and filled in after it,
//! with a checksum of all that follows. A process that is killed at any byte of a write leaves a
//! file that holds nothing.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use distribute_core::checkpoint::Checkpoint;
use distribute_core::{Error, Result};

use super::record::{Encoded, decode};
use crate::FitError;

const MAGIC: [u8; 8] = *b"DSTATE\0\x02";
/// Magic, number of the write, length of the state, checksum of these two and the state.
const HEADER_BYTES: usize = 28;

#[derive(Debug)]
pub(super) struct Slot {
    path: PathBuf,
    file: File,
}

impl Slot {
    /// A file that exists.
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|source| failed(&path, "open", None, source))?;
        Ok(Self { path, file })
    }

    /// Replaces the state. Blocks for a copy of its bytes.
    pub(super) fn write(&self, sequence: u64, checkpoint: &Checkpoint) -> Result<()> {
        let encoded = Encoded::new(checkpoint)?;
        let step = Some(checkpoint.metadata.step);
        self.write_encoded(sequence, &encoded)
            .map_err(|source| failed(&self.path, "write", step, source))
    }

    fn write_encoded(&self, sequence: u64, encoded: &Encoded<'_>) -> io::Result<()> {
        self.file.write_all_at(&[0; HEADER_BYTES], 0)?;
        let mut writer = Summed {
            file: &self.file,
            length: 0,
            sum: crc32c::crc32c(&sequence.to_le_bytes()),
        };
        encoded.write_to(&mut writer)?;
        let Summed { length, sum, .. } = writer;
        self.file.set_len(HEADER_BYTES as u64 + length)?;
        let sum = crc32c::crc32c_append(sum, &length.to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&sequence.to_le_bytes());
        header[16..24].copy_from_slice(&length.to_le_bytes());
        header[24..].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&header, 0)
    }

    /// The number of the write and the state, if there is a whole one.
    pub(super) fn read(&self) -> Result<Option<(u64, Checkpoint)>> {
        let read = || {
            let length = self.file.metadata()?.len();
            let length = usize::try_from(length).map_err(io::Error::other)?;
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(length)?;
            bytes.resize(length, 0);
            self.file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|source| failed(&self.path, "read", None, source))?;
        Ok(found(&bytes))
    }
}

fn found(bytes: &[u8]) -> Option<(u64, Checkpoint)> {
    let (header, state) = bytes.split_at_checked(HEADER_BYTES)?;
    let number = |at: usize| Some(u64::from_le_bytes(header[at..at + 8].try_into().ok()?));
    let (sequence, length) = (number(8)?, number(16)?);
    let sum = crc32c::crc32c(&header[8..16]);
    let sum = crc32c::crc32c_append(sum, state);
    let sum = crc32c::crc32c_append(sum, &header[16..24]);
    if header[..8] != MAGIC || length != state.len() as u64 || header[24..] != sum.to_le_bytes() {
        return None;
    }
    Some((sequence, decode(state)?))
}

/// Writes behind the header, and adds up a checksum.
struct Summed<'a> {
    file: &'a File,
    length: u64,
    sum: u32,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let place = HEADER_BYTES as u64 + self.length;
        let written = self.file.write_at(bytes, place)?;
        self.sum = crc32c::crc32c_append(self.sum, &bytes[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failed(path: &Path, operation: &'static str, step: Option<u64>, source: io::Error) -> Error {
    let path = path.to_path_buf();
    FitError::StateMemory {
        path,
        operation,
        step,
        source,
    }
    .into()
}
