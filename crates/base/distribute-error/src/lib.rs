//! Readable errors: an error that `main` returns is printed as its message and causes.
//!
//! Rust prints the `Debug` form of an error that `main` returns, or that an `unwrap` finds. For the
//! errors of these crates it is the message with its causes, not the fields of the enum:
//!
//! ```
//! #[derive(thiserror::Error)]
//! enum Failed {
//!     #[error("the file of labels cannot be read")]
//!     Labels(#[source] std::io::Error),
//! }
//! distribute_error::debug_as_message!(Failed);
//!
//! let error = Failed::Labels(std::io::Error::other("no such file"));
//! assert_eq!(format!("{error:?}"), "the file of labels cannot be read: no such file");
//! ```
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;

/// Writes the message of an error, and of each cause what is not told yet: in one line, or with
/// `{:#?}` in one for each cause.
///
/// # Errors
/// The errors of the formatter.
pub fn fmt_error(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut told = error.to_string();
    f.write_str(&told)?;
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !told.contains(&text) {
            let between = if f.alternate() {
                "\n  caused by: "
            } else {
                ": "
            };
            write!(f, "{between}{text}")?;
            told.push_str(&text);
        }
        cause = error.source();
    }
    Ok(())
}

/// What a panic said, of its payload; `None` if that is no text.
pub fn panic_text(payload: &(dyn Any + Send)) -> Option<&str> {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// Whether a file would be met the same next time: a path that is not there, is of another kind,
/// leads in a circle or must not be touched, a file that is not what it is taken for, or one that
/// is larger than the limit for files. What may pass by itself (a full disk, a busy device, a
/// network, memory, too many open files, a disk that fails) is none of that.
///
/// ```
/// use std::io::{Error, ErrorKind};
/// assert!(distribute_error::lasts(&Error::from(ErrorKind::NotFound)));
/// assert!(distribute_error::lasts(&Error::other("not a stream of zlib")));
/// assert!(!distribute_error::lasts(&Error::from(ErrorKind::StorageFull)));
/// assert!(!distribute_error::lasts(&Error::from_raw_os_error(5))); // EIO: the disk fails
/// ```
pub fn lasts(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    /// Symbolic links in a circle (ELOOP), for which the standard library has no stable word.
    const LOOP: i32 = if cfg!(target_os = "linux") { 40 } else { 62 };
    match error.kind() {
        Kind::NotFound
        | Kind::PermissionDenied
        | Kind::AlreadyExists
        | Kind::NotADirectory
        | Kind::IsADirectory
        | Kind::DirectoryNotEmpty
        | Kind::ReadOnlyFilesystem
        | Kind::FileTooLarge
        | Kind::NotSeekable
        | Kind::InvalidInput
        | Kind::InvalidData
        | Kind::InvalidFilename
        | Kind::UnexpectedEof
        | Kind::Unsupported => true,
        // Readers of files use this kind for bad content, without an error number of the system.
        Kind::Other => error.raw_os_error().is_none(),
        _ => error.raw_os_error() == Some(LOOP),
    }
}

/// The known name that is most like a mistyped one, if any is alike: for "did you mean".
///
/// ```
/// let known = ["adam", "adamax", "sgd"];
/// assert_eq!(distribute_error::nearest("adammax", known), Some("adamax"));
/// assert_eq!(distribute_error::nearest("quux", known), None);
/// ```
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Jaro and Winkler's similarity from which on two names are alike.
    const ALIKE: f64 = 0.7;
    let name = name.to_lowercase();
    let rated = known.into_iter().map(|known| {
        let alike = strsim::jaro_winkler(&name, &known.to_lowercase());
        (alike, known)
    });
    let best = rated.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(alike, _)| *alike >= ALIKE)
        .map(|(_, known)| known)
}

/// The message about an unknown name: the nearest known name, and all known ones.
///
/// ```
/// assert_eq!(
///     distribute_error::unknown("optimizer", "adammax", ["adam", "adamax"]),
///     "unknown optimizer `adammax`, did you mean `adamax`? There are adam, adamax"
/// );
/// ```
pub fn unknown<'a>(kind: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let nearest = match nearest(name, known.iter().copied()) {
        Some(nearest) => format!(", did you mean `{nearest}`?"),
        None => ".".to_string(),
    };
    format!(
        "unknown {kind} `{name}`{nearest} There are {}",
        known.join(", ")
    )
}

/// Gives errors their message as `Debug` form ([`fmt_error`]).
#[macro_export]
macro_rules! debug_as_message {
    ($($error:ty),*) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::fmt_error(self, f)
            }
        }
    )*};
}
