//! A file that is there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Written beside its place and put there when it is whole, so that a full disk or a killed
/// process leaves what was there before. Pipes and devices are written as they are.
#[derive(Debug)]
pub(super) struct OutputFile {
    file: File,
    /// Where the bytes are, and where they belong; nothing for a pipe or a device.
    moves: Option<(PathBuf, PathBuf)>,
}

impl OutputFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let before = fs::metadata(path).ok();
        if before.as_ref().is_some_and(|before| !before.is_file()) {
            let file = File::create(path)?;
            return Ok(Self { file, moves: None });
        }
        // Of a link its target is replaced.
        let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let Some(name) = place.file_name() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not the path of a file",
            ));
        };
        let mut beside = std::ffi::OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}.part", std::process::id()));
        let beside = place.with_file_name(beside);
        let file = File::create(&beside)?;
        let output = Self {
            file,
            moves: Some((beside, place)),
        };
        if let Some(before) = before {
            // A file that must not be written is not replaced either.
            File::options().append(true).open(path)?;
            output.file.set_permissions(before.permissions())?;
        }
        Ok(output)
    }

    /// Puts it in its place.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if let Some((beside, place)) = &self.moves {
            self.file.sync_all()?;
            fs::rename(beside, place)?;
            self.moves = None;
        }
        Ok(())
    }
}

impl Write for &mut OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some((beside, _)) = &self.moves {
            // What it could not be written for is reported already.
            let _ = fs::remove_file(beside);
        }
    }
}
