//! `COMPLETE`: the file that is written last and lists the other files.
//!
//! One line of JSON with the size and SHA-256 of every other file, then one line with the CRC32C
//! of the first, so that damage to the marker itself is seen too.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::FORMAT_VERSION;
use super::error::{CheckpointError, Result};
use super::filesystem::WritableFile;

/// No valid marker comes near this size, so a larger file is not read.
pub(super) const MAX_MARKER_BYTES: u64 = 64 * 1024;

/// Size and content hash of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// The content of `COMPLETE`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    pub(super) format_version: u32,
    pub(super) files: BTreeMap<String, FileRecord>,
}

/// The one field that every format version must keep.
#[derive(Deserialize)]
struct MarkerVersion {
    format_version: u32,
}

impl Marker {
    pub(super) fn new(files: BTreeMap<String, FileRecord>) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            files,
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend(format!("crc32c {checksum:08x}\n").into_bytes());
        Ok(bytes)
    }

    /// Reads the marker of the checkpoint at `checkpoint`, stored in the file `path`.
    pub(super) fn decode(checkpoint: &Path, path: &Path, bytes: &[u8]) -> Result<Self> {
        let corrupt = |what: &str| CheckpointError::corrupt(path, what);
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (line, checksum) = bytes.split_at(end.ok_or_else(|| corrupt("it is truncated"))? + 1);
        if checksum != format!("crc32c {:08x}\n", crc32c::crc32c(line)).as_bytes() {
            return Err(corrupt("its checksum does not match"));
        }
        let odd = |error: serde_json::Error| corrupt(&error.to_string());
        let MarkerVersion { format_version } = serde_json::from_slice(line).map_err(odd)?;
        CheckpointError::check_version(checkpoint, format_version)?;
        serde_json::from_slice(line).map_err(odd)
    }
}

/// Writes or reads a file and computes the size and hash of its bytes.
pub(super) struct Hashing<F> {
    file: F,
    hasher: Sha256,
    bytes: u64,
}

impl<F> Hashing<F> {
    pub(super) fn new(file: F) -> Self {
        Self {
            file,
            hasher: Sha256::new(),
            bytes: 0,
        }
    }

    fn passed(&mut self, content: &[u8]) -> usize {
        self.hasher.update(content);
        self.bytes += content.len() as u64;
        content.len()
    }

    /// The size and hash so far.
    pub(super) fn record(self) -> FileRecord {
        FileRecord {
            bytes: self.bytes,
            sha256: hex::encode(self.hasher.finalize()),
        }
    }
}

impl Hashing<Box<dyn WritableFile>> {
    /// Blocks until the content is on the disk.
    pub(super) fn finish(mut self) -> io::Result<FileRecord> {
        self.file.flush()?;
        self.file.sync()?;
        Ok(self.record())
    }
}

impl Write for Hashing<Box<dyn WritableFile>> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buffer)?;
        Ok(self.passed(&buffer[..written]))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Read for Hashing<Box<dyn Read>> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        Ok(self.passed(&buffer[..read]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker() -> Marker {
        let record = FileRecord {
            bytes: 7,
            sha256: hex::encode(Sha256::digest(b"content")),
        };
        Marker::new(BTreeMap::from([("file".to_string(), record)]))
    }

    fn decode(bytes: &[u8]) -> Result<Marker, CheckpointError> {
        Marker::decode(Path::new("c"), Path::new("c/COMPLETE"), bytes)
    }

    #[test]
    fn marker_round_trips() {
        assert_eq!(decode(&marker().encode().unwrap()).unwrap(), marker());
    }

    #[test]
    fn every_bit_flip_and_truncation_of_the_marker_is_seen() {
        let bytes = marker().encode().unwrap();
        for position in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[position] ^= 1 << bit;
                assert!(
                    matches!(decode(&damaged), Err(CheckpointError::Corrupt { .. })),
                    "bit {bit} of byte {position}"
                );
            }
            assert!(decode(&bytes[..position]).is_err(), "cut at {position}");
        }
    }

    #[test]
    fn a_newer_version_is_named_even_when_its_other_fields_are_unknown() {
        let mut bytes = b"{\"format_version\":99,\"pieces\":[]}\n".to_vec();
        bytes.extend(format!("crc32c {:08x}\n", crc32c::crc32c(&bytes)).into_bytes());
        let error = decode(&bytes).unwrap_err();
        assert!(matches!(error, CheckpointError::Version { found: 99, .. }));
    }
}
