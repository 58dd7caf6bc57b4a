//! Whether all workers see the directory that the chief writes to.

use std::io;
use std::path::{Path, PathBuf};

use super::WorkerGroup;
use super::encoding::unreadable;
use crate::{Error, Result};

/// Followed by 16 hexadecimal digits.
const PREFIX: &str = ".distribute-probe-";

/// The chief's report about the directory: where it is, and the name of a file that it put there;
/// or why it cannot use it.
type ChiefReport = Result<(String, String), String>;

/// A file that is removed again.
struct Probe(PathBuf);

impl Drop for Probe {
    fn drop(&mut self) {
        // The file is not used any more, and its directory may be gone.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl WorkerGroup {
    /// Opens a directory on the chief, which writes to it, and checks that the others, which read
    /// there, see the same one: `open` runs on the chief only, the others get `None`.
    ///
    /// Blocks until all workers have called it.
    ///
    /// # Errors
    /// What `open` returns, on the chief, and the news of it on the others;
    /// [`Error::NotShared`] on all if a worker sees another directory.
    pub fn open_shared<T>(
        &self,
        directory: &Path,
        open: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let open = || {
            let value = open()?;
            let (probe, name) = put_probe(directory)?;
            Ok((value, probe, name))
        };
        let opened: Option<Result<_>> = self.is_chief().then(open);
        let said: Option<ChiefReport> = opened.as_ref().map(|opened| match opened {
            Ok((_, _, name)) => {
                // For people: the workers may have other working directories.
                let absolute =
                    std::path::absolute(directory).unwrap_or_else(|_| directory.to_path_buf());
                Ok((absolute.to_string_lossy().into_owned(), name.clone()))
            }
            Err(error) => Err(error.to_string()),
        });
        let said = self.all_gather_json("open a shared directory", &said)?;
        let opened = opened.transpose()?;
        let (path, name) = match said.into_iter().next().flatten() {
            Some(Ok((path, name))) => (PathBuf::from(path), name),
            Some(Err(cause)) => return Err(Error::Stopped { cause }),
            None => return Err(unreadable()),
        };
        let sees = directory.join(name).exists();
        let answers = self.all_gather_json("look into a shared directory", &sees)?;
        let opened = opened.map(|(value, ..)| value);
        match answers.iter().position(|sees| !sees) {
            Some(worker) => Err(Error::NotShared { worker, path }),
            None => Ok(opened),
        }
    }
}

/// Removes the probes of chiefs that were killed while the others looked.
fn remove_old_probes(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if digits.is_some_and(|digits| digits.len() == 16) {
            // It does not matter which worker removes it first.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// A new file with a name that was never looked for before, so that no cache knows better.
fn put_probe(directory: &Path) -> Result<(Probe, String)> {
    let write = || -> io::Result<(Probe, String)> {
        remove_old_probes(directory)?;
        let name = format!("{PREFIX}{:016x}", getrandom::u64()?);
        let path = directory.join(&name);
        std::fs::File::create_new(&path)?;
        Ok((Probe(path), name))
    };
    write().map_err(|error| {
        let path = directory.display();
        let what = format!("cannot write to {path} ({error}): choose a writable directory");
        Error::of_system(&error, what)
    })
}
