//! The directory of `--log-dir`: only one run at a time writes there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use distribute_core::Error;
use distribute_core::checkpoint::{CheckpointError, DirectoryHold};
use distribute_fit::FitError;
use distribute_fit::callbacks::TensorBoard;

use crate::failure::Failure;
use crate::notes::note;

/// The lock file of the running writer.
const LOCK_FILE: &str = ".distribute-logs.lock";

/// A log directory that this process holds against other runs.
#[derive(Debug)]
pub(crate) struct LogDirectory {
    path: PathBuf,
    /// Whether the run continues the existing files.
    goes_on: bool,
    _hold: DirectoryHold,
}

impl LogDirectory {
    /// Creates and locks the directory. A new run replaces the logs of an earlier one; a run that
    /// `goes_on` continues without logs if the directory cannot be written.
    ///
    /// # Errors
    /// If another run writes there, or if the directory cannot be created or written.
    pub(crate) fn hold(path: &Path, goes_on: bool) -> Result<Option<Self>, Failure> {
        let curves = path.join("train");
        let held = fs::create_dir_all(&curves)
            .map_err(|error| cannot("create", &curves, error))
            .and_then(|()| DirectoryHold::take(path, LOCK_FILE).map_err(not_held(path)));
        let hold = match held {
            Ok(hold) => hold,
            Err(NotHeld::Failed(failure)) if goes_on => {
                note(&format!(
                    "warning: {failure}; training goes on without --log-dir"
                ));
                return Ok(None);
            }
            Err(NotHeld::Failed(failure) | NotHeld::Busy(failure)) => return Err(failure),
        };
        if !goes_on {
            remove_curves(path)?;
        }
        Ok(Some(Self {
            path: path.to_path_buf(),
            goes_on,
            _hold: hold,
        }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The callback for TensorBoard; `None` for a continued run that cannot write its files.
    pub(crate) fn curves(&self) -> Result<Option<TensorBoard>, Failure> {
        match TensorBoard::new(&self.path) {
            Ok(board) => Ok(Some(board)),
            Err(error) if self.goes_on => {
                note(&format!(
                    "warning: {error}; training goes on without the curves"
                ));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Why a directory could not be locked.
enum NotHeld {
    Busy(Failure),
    Failed(Failure),
}

fn not_held(path: &Path) -> impl FnOnce(CheckpointError) -> NotHeld {
    let path = path.display();
    move |error| match error {
        CheckpointError::Busy { holder, .. } => {
            let holder = holder.map_or("another process".to_string(), |it| it.to_string());
            NotHeld::Busy(Failure::failed(format!(
                "{path} is in use by {holder}, which writes its logs there: wait until it has \
                 ended, or choose another --log-dir"
            )))
        }
        CheckpointError::NotWritable { path, source }
        | CheckpointError::DiskFull { path, source } => cannot("write", &path, source),
        error => NotHeld::Failed(Failure::from(error)),
    }
}

fn cannot(operation: &'static str, path: &Path, source: io::Error) -> NotHeld {
    let error = FitError::File {
        path: path.to_path_buf(),
        operation,
        choice: "log directory",
        source,
    };
    NotHeld::Failed(Failure::from(Error::from(error)))
}

/// Removes the curves of an earlier run from a log directory, because a new run replaces its
/// history files. A directory without such history files is not changed.
fn remove_curves(directory: &Path) -> Result<(), Failure> {
    if !directory.join("history.jsonl").exists() {
        return Ok(());
    }
    for part in ["train", "validation"] {
        let entries = fs::read_dir(directory.join(part));
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            if !name.to_string_lossy().starts_with("events.out.tfevents.") {
                continue;
            }
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::failed(format!(
                        "cannot remove {}, a curve of an earlier run ({error}); choose another \
                         --log-dir",
                        entry.path().display()
                    )));
                }
                _ => {}
            }
        }
    }
    Ok(())
}
