//! Classifies errors of parameter servers; a build without parameter servers has none.

use std::error::Error as StdError;

use distribute_core::Error;
#[cfg(feature = "full")]
use distribute_ps::PsError;

/// An error of parameter servers.
#[cfg_attr(
    not(feature = "full"),
    expect(dead_code, reason = "there are no parameter servers in this build")
)]
pub(crate) enum ServerError<'a> {
    /// An error of core, from a server or a worker.
    Core(&'a Error),
    /// A wait that a signal ended.
    Interrupted,
    Other,
}

/// The error, if it is one of parameter servers; its causes are ignored.
#[cfg(feature = "full")]
pub(crate) fn server_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<ServerError<'a>> {
    let error = error.downcast_ref::<PsError>()?;
    Some(match (error, error.root_cause()) {
        (PsError::Core(core), _) => ServerError::Core(core),
        (_, PsError::Interrupted { .. }) => ServerError::Interrupted,
        _ => ServerError::Other,
    })
}

#[cfg(not(feature = "full"))]
pub(crate) fn server_error<'a>(_: &'a (dyn StdError + 'static)) -> Option<ServerError<'a>> {
    None
}
