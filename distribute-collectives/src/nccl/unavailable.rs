//! Why NCCL cannot be used on this machine.

use std::fmt;

use super::version::Version;
use crate::error::{CollectiveError, Searched};

/// Why NCCL cannot be used on this machine. Becomes
/// [`BackendUnavailable`](CollectiveError::BackendUnavailable).
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum NcclUnavailable {
    /// A library is not there.
    #[error(
        "{library} was not found; searched: {}; install it, or name its file with {variable} (see \
         the module `nccl`)",
        list(searched)
    )]
    Absent {
        /// The CUDA driver or NCCL.
        library: String,
        /// The environment variable that names its file.
        variable: &'static str,
        /// Where it was looked for.
        searched: Vec<Searched>,
    },

    /// A library is too old.
    #[error(
        "{library} at {path} is too old: it has version {found}, at least {needed} is needed; \
         update it"
    )]
    TooOld {
        /// The CUDA driver or NCCL.
        library: String,
        /// Where it was found.
        path: String,
        /// The version of the library; for the driver the version of the newest CUDA it supports.
        found: Version,
        /// The oldest version that can be used.
        needed: Version,
    },

    /// A library lacks a function.
    #[error(
        "{path} has no function {symbol}: it is another library, or one that was built without it"
    )]
    MissingSymbol {
        /// Where the library was found.
        path: String,
        /// The function.
        symbol: String,
    },

    /// There is no such device.
    #[error("there is no GPU {device}: the CUDA driver shows {count} (see CUDA_VISIBLE_DEVICES)")]
    NoDevice {
        /// The wanted device.
        device: usize,
        /// Number of devices.
        count: usize,
    },

    /// A library refuses to work.
    #[error("{what}")]
    Failed {
        /// The call, its result and what that means.
        what: String,
    },
}

/// The message: what `unwrap` and an error that `main` returns print.
impl fmt::Debug for NcclUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The places, and the reason once where it is the same for all of them.
fn list(searched: &[Searched]) -> String {
    let shown = |show: fn(&Searched) -> String| {
        let all: Vec<String> = searched.iter().map(show).collect();
        all.join(", ")
    };
    match searched {
        [first, rest @ ..] if rest.iter().all(|other| other.reason == first.reason) => {
            format!("{} ({})", shown(|one| one.path.clone()), first.reason)
        }
        _ => shown(ToString::to_string),
    }
}

impl NcclUnavailable {
    /// The driver does not start.
    pub(super) fn driver(path: &str, call: &str, code: i32) -> Self {
        let meaning = match code {
            100 => "no GPU was found",
            803 => "the driver and the library of the driver have different versions",
            _ => "see CUresult in cuda.h",
        };
        NcclUnavailable::Failed {
            what: format!("{call} of {path} failed with {code}: {meaning}"),
        }
    }
}

/// The error of a communicator that cannot be made.
pub(super) fn unavailable(reason: String) -> CollectiveError {
    CollectiveError::unavailable("NCCL", reason)
}

impl From<NcclUnavailable> for CollectiveError {
    fn from(error: NcclUnavailable) -> Self {
        let reason = error.to_string();
        let searched = match error {
            NcclUnavailable::Absent { searched, .. } => searched,
            _ => Vec::new(),
        };
        CollectiveError::BackendUnavailable {
            backend: "NCCL".to_string(),
            reason,
            searched,
        }
    }
}
