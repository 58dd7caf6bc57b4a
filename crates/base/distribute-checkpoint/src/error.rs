//! Errors about checkpoints, and what to do about them.

use std::io;
use std::path::{Path, PathBuf};

use super::FORMAT_VERSION;
use super::owner::Holder;

/// A result with a [`CheckpointError`].
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// Why a checkpoint could not be saved, found or restored.
///
/// [`is_damage`](Self::is_damage) separates a damaged checkpoint (an older one can be used) from
/// everything else (the user has to act).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// There is no checkpoint at this path. Give another path, or start without one.
    #[error(
        "no checkpoint at {}: check the path, or train without resuming to write one",
        path.display()
    )]
    Missing {
        /// The path that was looked at.
        path: PathBuf,
    },
    /// The completeness marker is absent: the save never finished, or it was copied in part.
    #[error(
        "checkpoint {} is incomplete ({what}): use an older one or copy it again",
        path.display()
    )]
    Incomplete {
        /// The checkpoint's directory.
        path: PathBuf,
        /// What is absent.
        what: String,
    },
    /// The bytes are not the ones that were saved, or not a checkpoint at all.
    #[error("checkpoint file {} is corrupt ({what}): use an older checkpoint", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The checkpoint was written by a newer version of this library.
    #[error(
        "checkpoint {} has format version {found}, this program reads up to {supported}: \
         use a newer program",
        path.display()
    )]
    Version {
        /// The checkpoint's directory.
        path: PathBuf,
        /// The version that is stored.
        found: u32,
        /// The newest version that this program reads.
        supported: u32,
    },
    /// The stored tensors do not match the model that is to be restored. The first
    /// difference in the order of names is reported, and how many others there are.
    #[error(
        "received incompatible tensor {found} when attempting to restore {parameter} with \
         {expected}; {missing} missing and {extra} unexpected tensors in the checkpoint: \
         build the model (and optimizer) that was saved"
    )]
    WrongModel {
        /// Name of the first tensor that differs.
        parameter: String,
        /// Shape and dtype that the model has, or `nothing`.
        expected: String,
        /// Shape and dtype that the checkpoint has, or `nothing`.
        found: String,
        /// Tensors that the model has and the checkpoint lacks.
        missing: usize,
        /// Tensors that the checkpoint has and the model lacks.
        extra: usize,
    },
    /// The checkpoint is of other models and states than the value that is to be restored.
    #[error("{}", other_parts(missing, other))]
    WrongParts {
        /// The paths of parts that the value has and the checkpoint lacks; an empty one if the
        /// value is one state.
        missing: Vec<String>,
        /// The paths of parts that the checkpoint has and the value lacks; an empty one if the
        /// checkpoint is of one state.
        other: Vec<String>,
    },
    /// The slots in the checkpoint belong to another optimizer: with this one they would mean
    /// something else.
    #[error(
        "the checkpoint is of {saved_by} ({found}) and cannot be restored into {optimizer} \
         ({expected}): build the state with the optimizer that was saved, or take the weights \
         alone with `fit::restore_weights` (the tensors whose names do not begin with `optimizer/`)"
    )]
    WrongOptimizer {
        /// The optimizer that the checkpoint names, or what its slots look like.
        saved_by: String,
        /// The checkpoint's slots.
        found: String,
        /// The optimizer of the state.
        optimizer: String,
        /// Its slots.
        expected: String,
    },
    /// The directory is read-only or belongs to another user. Older checkpoints are untouched.
    #[error(
        "cannot write to {} ({source}): choose a writable checkpoint directory; \
         older checkpoints are untouched",
        path.display()
    )]
    NotWritable {
        /// What was to be written.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The disk or the quota is full. Older checkpoints are untouched.
    #[error(
        "no space left to write {} ({source}): free some space, remove the oldest checkpoints or \
         choose a directory on another disk; older checkpoints are untouched",
        path.display()
    )]
    DiskFull {
        /// What was to be written.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Any other failure of the file system.
    #[error("cannot {operation} {} ({source}): check the path and the disk", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted, a verb.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Another process, or another [`CheckpointManager`](super::CheckpointManager) of
    /// this one, writes checkpoints into this directory. Reading is still possible. The directory
    /// is free as soon as that process has ended, however it ends.
    #[error(
        "{} is in use by {}, which saves its checkpoints there: wait until it has ended, or \
         choose another checkpoint directory (of several workers, only the chief saves)",
        path.display(),
        holder_name(holder.as_ref())
    )]
    Busy {
        /// The directory of the checkpoints.
        path: PathBuf,
        /// The process that holds the directory, if known.
        holder: Option<Holder>,
    },
    /// The directory of the checkpoints is a checkpoint itself, or in one: what was saved there
    /// would be removed together with it.
    #[error(
        "{} is {}: {remedy}",
        path.display(),
        place_of(path, checkpoint)
    )]
    Inside {
        /// The directory that was given.
        path: PathBuf,
        /// The checkpoint.
        checkpoint: PathBuf,
        /// What to give in its place.
        remedy: String,
    },
    /// Another process has taken the directory, because this one did not renew its lease on it for
    /// half a minute: it was stopped, or cut off from the file system. Nothing was written.
    #[error(
        "{} was taken over by {}, since this process could not renew its hold there for 30 s: \
         end this run; the other one goes on",
        path.display(),
        holder_name(holder.as_ref())
    )]
    TakenOver {
        /// The directory of the checkpoints.
        path: PathBuf,
        /// The process that has it now, if known.
        holder: Option<Holder>,
    },
    /// Checkpoints came and went faster than they could be read, several times in a row.
    #[error(
        "the checkpoints in {} are replaced faster than they can be read: try again",
        path.display()
    )]
    Changing {
        /// The directory of the checkpoints.
        path: PathBuf,
    },
    /// A tensor that the format cannot hold.
    #[error("cannot store tensor {parameter:?}: {what}")]
    Unsupported {
        /// The tensor's name.
        parameter: String,
        /// Why it cannot be stored and what to store in its place.
        what: String,
    },
    /// The thread that saves in the background panicked: a bug, please report it.
    #[error("the thread saving into {} panicked: {what}", path.display())]
    SaverPanicked {
        /// The directory of the checkpoints.
        path: PathBuf,
        /// The panic's message.
        what: String,
    },
}

distribute_error::debug_as_message!(CheckpointError);

impl CheckpointError {
    /// Whether this checkpoint is damaged, so that an older one should be tried.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. } | Self::Incomplete { .. } | Self::Corrupt { .. }
        )
    }

    /// Whether the same call would fail again: a checkpoint or a directory is missing, damaged,
    /// read-only or does not fit. Another run that saves there may end, and a full disk may get
    /// room again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::Incomplete { .. }
            | Self::Corrupt { .. }
            | Self::Version { .. }
            | Self::Inside { .. }
            | Self::WrongModel { .. }
            | Self::WrongParts { .. }
            | Self::WrongOptimizer { .. }
            | Self::NotWritable { .. }
            | Self::Unsupported { .. } => true,
            Self::Io { source, .. } => distribute_error::lasts(source),
            Self::DiskFull { .. }
            | Self::Busy { .. }
            | Self::Changing { .. }
            | Self::TakenOver { .. }
            | Self::SaverPanicked { .. } => false,
        }
    }

    /// Sorts errors of the file system at `path` into the variants that say what to do.
    pub(super) fn io(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                if operation != READ =>
            {
                Self::NotWritable { path, source }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, source }
            }
            _ => Self::Io {
                path,
                operation,
                source,
            },
        }
    }

    pub(super) fn missing(path: &Path) -> Self {
        let path = path.to_path_buf();
        Self::Missing { path }
    }

    pub(super) fn corrupt(path: &Path, what: impl Into<String>) -> Self {
        let (path, what) = (path.to_path_buf(), what.into());
        Self::Corrupt { path, what }
    }

    pub(super) fn unsupported(parameter: impl Into<String>, what: impl Into<String>) -> Self {
        let (parameter, what) = (parameter.into(), what.into());
        Self::Unsupported { parameter, what }
    }

    /// Refuses what a newer version of this library wrote.
    pub(super) fn check_version(checkpoint: &Path, found: u32) -> Result<()> {
        if found > FORMAT_VERSION {
            return Err(Self::Version {
                path: checkpoint.to_path_buf(),
                found,
                supported: FORMAT_VERSION,
            });
        }
        Ok(())
    }
}

/// Describes a path that is in a checkpoint.
fn place_of(path: &Path, checkpoint: &Path) -> String {
    if path == checkpoint {
        "a checkpoint, and no directory of checkpoints".to_string()
    } else {
        format!("in the checkpoint {}", checkpoint.display())
    }
}

/// In what the parts of a value and the parts of a checkpoint differ, in words.
fn other_parts(missing: &[String], other: &[String]) -> String {
    let listed = |parts: &[String]| format!("`{}`", parts.join("`, `"));
    let is_one = |parts: &[String]| parts.iter().any(String::is_empty);
    if is_one(missing) {
        return format!(
            "the checkpoint is of several models and states ({}), and the value is one: restore \
             one of them, `checkpoint.part({:?})`",
            listed(other),
            other.first().map_or("", String::as_str)
        );
    }
    let found = match (is_one(other), missing, other) {
        (true, ..) => format!("is of one state alone and has no {}", listed(missing)),
        (_, _, []) => format!("has no {}", listed(missing)),
        (_, [], _) => format!("has {}, which the value has not", listed(other)),
        _ => format!(
            "has no {}, and has {}, which the value has not",
            listed(missing),
            listed(other)
        ),
    };
    format!("the checkpoint {found}: build the value that was saved, with the same fields")
}

/// The holder in words.
fn holder_name(holder: Option<&Holder>) -> String {
    holder.map_or("another process".to_string(), Holder::to_string)
}

/// The operation of [`CheckpointError::Io`] that changes nothing on disk.
pub(super) const READ: &str = "read";
