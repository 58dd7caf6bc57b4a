//! Whether all workers see the directory that the chief writes to.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::WorkerGroup;
use crate::{Error, Result};

/// What the chief says of the directory.
#[derive(Debug, Serialize, Deserialize)]
enum Chief {
    /// It put a file of this name into its directory.
    Probe { directory: PathBuf, name: String },
    /// It cannot use it.
    Failed(String),
}

/// A file that is removed again.
struct Probe(PathBuf);

impl Drop for Probe {
    fn drop(&mut self) {
        // Nobody reads it, and its directory may be gone.
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
    pub(crate) fn open_shared<T>(
        &self,
        directory: &Path,
        open: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let mut opened = None;
        let mut probe = None;
        let mut failure = None;
        let mut said = String::new();
        if self.is_chief() {
            let outcome = open().and_then(|value| Ok((value, put_probe(directory)?)));
            let chief = match outcome {
                Ok((value, (file, name))) => {
                    opened = Some(value);
                    probe = Some(file);
                    let directory = std::path::absolute(directory);
                    Chief::Probe {
                        directory: directory.map_err(Error::step)?,
                        name,
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    failure = Some(error);
                    Chief::Failed(text)
                }
            };
            said = serde_json::to_string(&chief).map_err(Error::step)?;
        }
        let said = self.gather_text(&said)?;
        if let Some(error) = failure {
            return Err(error);
        }
        let (path, name) = match serde_json::from_str(&said[0]).map_err(Error::step)? {
            Chief::Probe { directory, name } => (directory, name),
            Chief::Failed(cause) => return Err(Error::Stopped { cause }),
        };
        let sees = directory.join(name).exists();
        let answers = self.gather_text(if sees { "sees it" } else { "" })?;
        drop(probe);
        match answers.iter().position(String::is_empty) {
            Some(worker) => Err(Error::NotShared { worker, path }),
            None => Ok(opened),
        }
    }
}

/// A new file with a name that was never looked for before, so that no cache knows better.
fn put_probe(directory: &Path) -> Result<(Probe, String)> {
    let write = || -> io::Result<(Probe, String)> {
        let name = format!(".distribute-probe-{:016x}", getrandom::u64()?);
        let path = directory.join(&name);
        std::fs::File::create_new(&path)?;
        Ok((Probe(path), name))
    };
    write().map_err(|error| {
        let path = directory.display();
        Error::invalid(format!(
            "cannot write to {path} ({error}): choose a writable directory"
        ))
    })
}
