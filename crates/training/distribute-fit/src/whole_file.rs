//! Files that are there whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// A file that is written completely or not at all: it is written beside its path and renamed by
/// [`finish`](Self::finish), so that a crash or a full disk leaves the old file.
///
/// The temporary name cannot be guessed, so a prepared link cannot redirect it. A file that is
/// replaced keeps its permissions. A file that is dropped unfinished leaves nothing behind.
#[derive(Debug)]
pub struct WholeFile {
    beside: NamedTempFile,
    path: PathBuf,
}

impl WholeFile {
    /// An empty file, in the folder of `path`. If `path` is a link, it is the link that is
    /// replaced.
    ///
    /// # Errors
    /// If the folder does not permit new files.
    pub fn create(path: &Path) -> io::Result<Self> {
        let folder = path.parent().filter(|parent| *parent != Path::new(""));
        let mut builder = Builder::new();
        builder.prefix(".new-");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // The mode of any new file, minus the user's umask.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let beside = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
        if let Ok(before) = fs::metadata(path) {
            beside.as_file().set_permissions(before.permissions())?;
        }
        let path = path.to_path_buf();
        Ok(Self { beside, path })
    }

    /// Puts the file in its place, once it is on the disk; blocks until it is.
    ///
    /// # Errors
    /// If it cannot be written to the disk or renamed.
    pub fn finish(self) -> io::Result<()> {
        self.beside.as_file().sync_all()?;
        self.beside.persist(self.path)?;
        Ok(())
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.beside.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.beside.flush()
    }
}
