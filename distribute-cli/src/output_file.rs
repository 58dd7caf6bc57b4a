//! A file that is there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Written beside its place and put there when it is whole, so that a full disk or a killed
/// process leaves what was there before. Pipes and devices are written as they are, and so is a
/// file beside which there cannot be another one.
#[derive(Debug)]
pub(crate) struct OutputFile {
    file: File,
    /// Where the bytes are, and where they belong; nothing for a pipe or a device.
    moves: Option<(PathBuf, PathBuf)>,
}

impl OutputFile {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
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
        let Ok(file) = File::create(&beside) else {
            // A folder that must not be written, or a name that is as long as names may be.
            let file = File::create(path)?;
            return Ok(Self { file, moves: None });
        };
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
    pub(crate) fn finish(mut self) -> io::Result<()> {
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

/// The failure of a file that cannot be written.
pub(crate) fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let message = format!(
        "cannot write {} ({error}); choose a writable path with free space",
        path.display()
    );
    Failure::of_file(error, message)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::OutputFile;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        // The second name leaves no room for another one beside it.
        for (name, kept) in [("short".to_string(), true), ("n".repeat(255), false)] {
            let path = folder.path().join(&name);
            fs::write(&path, "old").unwrap();
            let mut given_up = OutputFile::create(&path).unwrap();
            (&mut given_up).write_all(b"half").unwrap();
            drop(given_up);
            let left = fs::read_to_string(&path).unwrap();
            assert_eq!(left == "old", kept, "{left}");
            let mut file = OutputFile::create(&path).unwrap();
            (&mut file).write_all(b"new").unwrap();
            file.finish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
