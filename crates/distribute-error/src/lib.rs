//! Errors as people read them: what an error that `main` returns prints.
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

/// Writes the message of an error, and of each cause what is not told yet: in one line, or with
/// `{:#?}` in one for each cause.
///
/// # Errors
/// Those of the formatter.
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
