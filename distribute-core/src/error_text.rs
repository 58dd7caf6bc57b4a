//! Errors as people read them: what an error that `main` returns prints.
//!
//! Rust prints the `Debug` form of an error that `main` returns, or that an `unwrap` finds. For the
//! errors of these crates it is the message with its causes, not the fields of the enum.

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

/// Gives an error its message as `Debug` form ([`fmt_error`]).
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_message {
    ($($type:ty),*) => {$(
        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::fmt_error(self, f)
            }
        }
    )*};
}
