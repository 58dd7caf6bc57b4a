//! What can go wrong between this process and a plugin, with the plugin's own words.

use std::fmt;
use std::path::PathBuf;

/// Result of a PJRT operation.
pub type Result<T, E = PjrtError> = std::result::Result<T, E>;

/// A version of the PJRT C API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiVersion {
    /// A plugin of another major version cannot be used.
    pub major: i32,
    /// Grows with every addition to the API.
    pub minor: i32,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why a PJRT operation did not happen.
#[non_exhaustive]
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum PjrtError {
    /// No plugin was named and none is installed.
    #[error(
        "no PJRT plugin was found; name one with --pjrt-plugin or PJRT_PLUGIN_LIBRARY_PATH, \
         install libtpu (`pip install libtpu`), or build one for CPUs with \
         distribute-tpu-xla/pjrt-cpu/build. Searched: {}",
        summary(searched)
    )]
    NotFound {
        /// Every place that was looked at, in order, and what was there.
        searched: Vec<String>,
    },

    /// The file cannot be loaded as a shared library.
    #[error("cannot load the PJRT plugin {}: {reason}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What the dynamic loader says.
        reason: String,
    },

    /// The file is a shared library, but not a PJRT plugin.
    #[error("{} is no PJRT plugin: {reason}", path.display())]
    NotAPlugin {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },

    /// The plugin speaks a version of the PJRT C API that this library does not.
    #[error(
        "the PJRT plugin {} has API version {plugin}, this library needs {oldest} or a newer \
         {}.x: {reason}; install a plugin of another version",
        path.display(), oldest.major
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The plugin's version.
        plugin: ApiVersion,
        /// The oldest version that works.
        oldest: ApiVersion,
        /// What does not fit.
        reason: String,
    },

    /// `PJRT_Plugin_Initialize` failed; the plugin must not be used.
    #[error("the PJRT plugin {} failed to initialize: {message} ({code})", path.display())]
    Initialize {
        /// The file.
        path: PathBuf,
        /// The plugin's code.
        code: ErrorCode,
        /// The plugin's text.
        message: String,
    },

    /// The plugin's table of functions has no such entry.
    #[error(
        "the PJRT plugin {} (API version {version}) lacks {function}; a newer plugin may have it",
        path.display()
    )]
    MissingFunction {
        /// The function of the C API.
        function: &'static str,
        /// The file.
        path: PathBuf,
        /// The plugin's version.
        version: ApiVersion,
    },

    /// The plugin returned an error.
    #[error("{function}: {message} ({code})")]
    Plugin {
        /// The function of the C API.
        function: &'static str,
        /// The plugin's code.
        code: ErrorCode,
        /// The plugin's text, unchanged.
        message: String,
    },

    /// The plugin broke the contract of the C API: a bug of the plugin.
    #[error(
        "{function} broke the PJRT C API's contract: {what}; report it to the plugin's authors"
    )]
    Malformed {
        /// The function of the C API.
        function: &'static str,
        /// What it did.
        what: String,
    },

    /// The call cannot be right, so the plugin was not asked.
    #[error("{0}")]
    InvalidArgument(String),

    /// A variable of the process environment that libtpu reads is missing.
    #[error(
        "libtpu compiles without a TPU only if it is told so before the process starts: set {}",
        missing.join(" ")
    )]
    Environment {
        /// `NAME=value` of each variable to set.
        missing: Vec<String>,
    },
}

distribute_error::debug_as_message!(PjrtError);

/// The first places by name, how many more there are.
fn summary(searched: &[String]) -> String {
    const NAMED: usize = 4;
    let named = searched.iter().take(NAMED).cloned().collect::<Vec<_>>();
    match searched.len().saturating_sub(NAMED) {
        0 => named.join("; "),
        more => format!("{}; and {more} more places", named.join("; ")),
    }
}

impl PjrtError {
    /// Whether the same call would fail again: the plugin, the program or the environment is not
    /// right for it, or the program needs more memory than the device has.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::NotFound { .. }
            | Self::Load { .. }
            | Self::NotAPlugin { .. }
            | Self::Version { .. }
            | Self::MissingFunction { .. }
            | Self::InvalidArgument(_)
            | Self::Environment { .. } => true,
            Self::Initialize { code, .. } | Self::Plugin { code, .. } => matches!(
                code,
                ErrorCode::InvalidArgument
                    | ErrorCode::NotFound
                    | ErrorCode::PermissionDenied
                    | ErrorCode::ResourceExhausted
                    | ErrorCode::OutOfRange
                    | ErrorCode::Unimplemented
            ),
            Self::Malformed { .. } => false,
        }
    }

    /// The plugin's error code, if the plugin gave one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Plugin { code, .. } | Self::Initialize { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Where a plugin was looked for, if none was found.
    pub fn searched(&self) -> &[String] {
        match self {
            Self::NotFound { searched } => searched,
            _ => &[],
        }
    }

    /// Whether the plugin cannot do this at all: its table lacks the function, or the function
    /// says `UNIMPLEMENTED`.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::MissingFunction { .. })
            || self.code() == Some(ErrorCode::Unimplemented)
    }
}

/// `PJRT_Error_Code`: the canonical codes of Abseil and gRPC.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// 1: the operation was cancelled.
    Cancelled,
    /// 2: an error without a better code.
    Unknown,
    /// 3: the caller's mistake.
    InvalidArgument,
    /// 4: it took too long.
    DeadlineExceeded,
    /// 5: there is no such thing, for instance no TPU.
    NotFound,
    /// 6: it exists already.
    AlreadyExists,
    /// 7: not allowed.
    PermissionDenied,
    /// 8: out of memory, on the device or while compiling for it.
    ResourceExhausted,
    /// 9: the state does not allow it.
    FailedPrecondition,
    /// 10: given up, for instance because another process holds the device.
    Aborted,
    /// 11: beyond the end.
    OutOfRange,
    /// 12: the plugin does not do this.
    Unimplemented,
    /// 13: a broken invariant inside the plugin.
    Internal,
    /// 14: not reachable at the moment.
    Unavailable,
    /// 15: data were lost.
    DataLoss,
    /// 16: no valid credentials.
    Unauthenticated,
    /// A code that this library does not know.
    Other(u32),
}

/// The names as Abseil prints them, by code from 1.
const NAMES: [(&str, ErrorCode); 16] = [
    ("CANCELLED", ErrorCode::Cancelled),
    ("UNKNOWN", ErrorCode::Unknown),
    ("INVALID_ARGUMENT", ErrorCode::InvalidArgument),
    ("DEADLINE_EXCEEDED", ErrorCode::DeadlineExceeded),
    ("NOT_FOUND", ErrorCode::NotFound),
    ("ALREADY_EXISTS", ErrorCode::AlreadyExists),
    ("PERMISSION_DENIED", ErrorCode::PermissionDenied),
    ("RESOURCE_EXHAUSTED", ErrorCode::ResourceExhausted),
    ("FAILED_PRECONDITION", ErrorCode::FailedPrecondition),
    ("ABORTED", ErrorCode::Aborted),
    ("OUT_OF_RANGE", ErrorCode::OutOfRange),
    ("UNIMPLEMENTED", ErrorCode::Unimplemented),
    ("INTERNAL", ErrorCode::Internal),
    ("UNAVAILABLE", ErrorCode::Unavailable),
    ("DATA_LOSS", ErrorCode::DataLoss),
    ("UNAUTHENTICATED", ErrorCode::Unauthenticated),
];

impl ErrorCode {
    /// The code with this number.
    pub fn from_number(number: u32) -> Self {
        let known = (number as usize)
            .checked_sub(1)
            .and_then(|index| NAMES.get(index));
        known.map_or(Self::Other(number), |(_, code)| *code)
    }

    /// The number in the C API.
    pub fn number(self) -> u32 {
        match self {
            Self::Other(number) => number,
            code => NAMES
                .iter()
                .zip(1..)
                .find(|((_, c), _)| *c == code)
                .map_or(2, |(_, n)| n),
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, code)| code == self) {
            Some((name, _)) => write!(f, "{name}, code {}", self.number()),
            None => write!(f, "code {}", self.number()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_their_numbers() {
        for number in 0..40 {
            assert_eq!(ErrorCode::from_number(number).number(), number);
        }
        assert_eq!(ErrorCode::from_number(8), ErrorCode::ResourceExhausted);
        assert_eq!(
            ErrorCode::ResourceExhausted.to_string(),
            "RESOURCE_EXHAUSTED, code 8"
        );
        assert_eq!(ErrorCode::Other(99).to_string(), "code 99");
    }
}
