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

/// What is said of a name that is none of those that are known: the nearest one, and all.
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
