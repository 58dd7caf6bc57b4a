//! A file that is written completely or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use distribute_fit::WholeFile;

use crate::failure::Failure;

/// A [`WholeFile`]. Pipes and devices are written directly, and so is a file in a folder without
/// write permission.
#[derive(Debug)]
pub(crate) struct OutputFile(Output);

#[derive(Debug)]
enum Output {
    InPlace(File),
    Beside(WholeFile),
}

impl OutputFile {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let in_place = || Ok(Self(Output::InPlace(File::create(path)?)));
        let before = fs::metadata(path).ok();
        if before.as_ref().is_some_and(|before| !before.is_file()) {
            return in_place();
        }
        // If the path is a link, its target is replaced.
        let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if place.file_name().is_none() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not the path of a file",
            ));
        }
        let beside = match WholeFile::create(&place) {
            Err(error) if is_forbidden(&error) => return in_place(),
            beside => beside?,
        };
        if before.is_some() {
            // A file without write permission is not replaced either.
            File::options().append(true).open(path)?;
        }
        Ok(Self(Output::Beside(beside)))
    }

    /// Renames it to its final path.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self.0 {
            Output::InPlace(_) => Ok(()),
            Output::Beside(file) => file.finish(),
        }
    }

    fn file(&mut self) -> &mut dyn Write {
        match &mut self.0 {
            Output::InPlace(file) => file,
            Output::Beside(file) => file,
        }
    }
}

/// Whether a folder does not permit new files; a full disk or a missing folder does not count.
fn is_forbidden(error: &io::Error) -> bool {
    let kind = error.kind();
    [
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::ReadOnlyFilesystem,
    ]
    .contains(&kind)
}

impl Write for &mut OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// Checks that a file can be written later, without changing anything.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn check_file(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if found.is_file() => File::options().append(true).open(path).map(drop),
        // Pipes and devices report errors only when they are written.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|parent| *parent != Path::new(""));
            tempfile::tempfile_in(folder.unwrap_or(Path::new("."))).map(drop)
        }
        Err(error) => Err(error),
    }
}

/// The same for files in a directory, which is created if it does not exist.
///
/// # Errors
/// If files cannot be written there.
pub(crate) fn check_directory(path: &Path) -> io::Result<()> {
    let is_there = |path: &&Path| path.symlink_metadata().is_ok();
    let existing = path.ancestors().find(is_there);
    let existing = existing
        .filter(|existing| *existing != Path::new(""))
        .unwrap_or(Path::new("."));
    if fs::metadata(existing)?.is_dir() {
        tempfile::tempfile_in(existing).map(drop)
    } else {
        Err(io::ErrorKind::NotADirectory.into())
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

    use super::{OutputFile, check_directory, check_file};

    #[test]
    fn whether_something_can_be_written_is_found_out_without_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "kept").unwrap();
        for good in ["file", "new"] {
            check_file(&path(good)).unwrap();
        }
        for good in ["new", "new/and/more", ""] {
            check_directory(&path(good)).unwrap();
        }
        check_file("/dev/null".as_ref()).unwrap();
        for bad in ["", "none/file", "file/more"] {
            assert!(check_file(&path(bad)).is_err(), "{bad}");
        }
        for bad in ["file", "file/more"] {
            assert!(check_directory(&path(bad)).is_err(), "{bad}");
        }
        assert!(check_directory("/proc/none/more".as_ref()).is_err());
        assert_eq!(fs::read_to_string(path("file")).unwrap(), "kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        // The second name is as long as names may be.
        for name in ["short".to_string(), "n".repeat(255)] {
            let path = folder.path().join(&name);
            fs::write(&path, "old").unwrap();
            let mut given_up = OutputFile::create(&path).unwrap();
            (&mut given_up).write_all(b"half").unwrap();
            drop(given_up);
            assert_eq!(fs::read_to_string(&path).unwrap(), "old");
            let mut file = OutputFile::create(&path).unwrap();
            (&mut file).write_all(b"new").unwrap();
            file.finish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_written_beside_it_has_a_name_that_cannot_be_taken_first() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("out.csv"), folder.path().join("victim"));
        fs::write(&victim, "kept").unwrap();
        // Where it once was, by the process id.
        let guessed = format!(".out.csv.{}.part", std::process::id());
        symlink(&victim, folder.path().join(guessed)).unwrap();
        let names = || {
            let files = fs::read_dir(folder.path()).unwrap();
            let names = files.map(|entry| entry.unwrap().file_name());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        let before = names();
        let beside: Vec<_> = (0..2)
            .map(|_| {
                let mut file = OutputFile::create(&path).unwrap();
                (&mut file).write_all(b"new").unwrap();
                let added: Vec<_> = names().difference(&before).cloned().collect();
                (file, added)
            })
            .collect();
        assert_eq!((beside[0].1.len(), beside[1].1.len()), (1, 2));
        for (file, _) in beside {
            file.finish().unwrap();
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        // As another program would have made it, and kept from then on.
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let usual = fs::metadata(&victim).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), usual);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        OutputFile::create(&path).unwrap().finish().unwrap();
        assert_eq!(mode(), 0o640);
    }
}
