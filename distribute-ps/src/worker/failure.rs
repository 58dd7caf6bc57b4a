//! Errors of steps on their way to the coordinator.
//!
//! Those that a program may want to tell apart arrive as what they were; any other one arrives as
//! its text.

use std::error::Error;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::value;
use crate::error::PsError;

/// The longest text of an error, in bytes.
const TEXT_MAX_BYTES: usize = 16 << 10;

/// What of an error is sent.
#[derive(Debug, Serialize, Deserialize)]
enum Failure {
    Cancelled,
    OutOfRange(String, String),
    Unavailable(usize, String, String),
    Timeout(usize, String, Duration),
    OtherRun(usize, String, String),
    UnknownVariable(String),
    NonFinite(String),
    Stale(String, u64, u64),
    InvalidArgument(String),
    UnregisteredStep(String, String),
    WrongArguments(String, String, String, String),
    Panicked(String),
    ReplicaPanicked(String),
    Other(String),
    /// The id in decimal.
    UnknownId(String, String, u64),
}

/// The error of this crate that is wrapped in one of a strategy or of a step, if there is one:
/// steps pass errors through `?` of other types.
fn innermost(error: &PsError) -> &PsError {
    let wrapped: &(dyn Error + 'static) = match error {
        PsError::Core(core) => return within_core(core).unwrap_or(error),
        PsError::Step(wrapped) => &**wrapped,
        PsError::Closure { source, .. } => return innermost(source),
        _ => return error,
    };
    within(wrapped).unwrap_or(error)
}

fn within<'a>(wrapped: &'a (dyn Error + 'static)) -> Option<&'a PsError> {
    if let Some(error) = wrapped.downcast_ref::<PsError>() {
        return Some(innermost(error));
    }
    within_core(wrapped.downcast_ref()?)
}

fn within_core(core: &distribute_core::Error) -> Option<&PsError> {
    match core.root_cause() {
        distribute_core::Error::Step(inner) | distribute_core::Error::Input(inner) => {
            within(&**inner)
        }
        _ => None,
    }
}

/// An error as bytes.
pub(super) fn encode(error: &PsError) -> Vec<u8> {
    let found = innermost(error);
    let failure = match found.clone() {
        PsError::Cancelled => Failure::Cancelled,
        PsError::OutOfRange { dataset, worker } => Failure::OutOfRange(dataset, worker),
        PsError::Unavailable {
            server,
            address,
            reason,
        } => Failure::Unavailable(server, address, reason),
        PsError::Timeout {
            server,
            address,
            waited,
            ..
        } => Failure::Timeout(server, address, waited),
        PsError::OtherRun {
            server,
            address,
            reason,
        } => Failure::OtherRun(server, address, reason),
        PsError::UnknownVariable { name } => Failure::UnknownVariable(name),
        PsError::NonFinite { name } => Failure::NonFinite(name),
        PsError::Stale { name, lag, bound } => Failure::Stale(name, lag, bound),
        PsError::InvalidArgument { what } => Failure::InvalidArgument(what),
        PsError::Unregistered {
            kind: "step",
            name,
            known,
        } => Failure::UnregisteredStep(name, known),
        PsError::WrongArguments {
            step,
            expected,
            found,
            reason,
        } => Failure::WrongArguments(step, expected, found, reason),
        PsError::Panicked { message } => Failure::Panicked(message),
        PsError::UnknownId { table, id, rows } => Failure::UnknownId(table, id.to_string(), rows),
        other => in_words(&other),
    };
    value::encode(&failure).unwrap_or_default()
}

fn in_words(error: &PsError) -> Failure {
    if let PsError::Core(core) = error
        && let distribute_core::Error::ReplicaPanicked { message, .. } = core.root_cause()
    {
        return Failure::ReplicaPanicked(message.clone());
    }
    let mut text = error.to_string();
    if text.len() > TEXT_MAX_BYTES {
        text.truncate(text.floor_char_boundary(TEXT_MAX_BYTES));
        text.push_str(" ...");
    }
    Failure::Other(text)
}

/// The way back.
pub(crate) fn decode(bytes: &[u8]) -> PsError {
    let failure = value::decode(bytes)
        .unwrap_or_else(|reason| Failure::Other(format!("its error cannot be read: {reason}")));
    match failure {
        Failure::Cancelled => PsError::Cancelled,
        Failure::OutOfRange(dataset, worker) => PsError::OutOfRange { dataset, worker },
        Failure::Unavailable(server, address, reason) => PsError::Unavailable {
            server,
            address,
            reason,
        },
        Failure::Timeout(server, address, waited) => PsError::Timeout {
            op: "an operation of the step",
            server,
            address,
            waited,
        },
        Failure::OtherRun(server, address, reason) => PsError::OtherRun {
            server,
            address,
            reason,
        },
        Failure::UnknownVariable(name) => PsError::UnknownVariable { name },
        Failure::NonFinite(name) => PsError::NonFinite { name },
        Failure::Stale(name, lag, bound) => PsError::Stale { name, lag, bound },
        Failure::InvalidArgument(what) => PsError::InvalidArgument { what },
        Failure::UnregisteredStep(name, known) => PsError::Unregistered {
            kind: "step",
            name,
            known,
        },
        Failure::WrongArguments(step, expected, found, reason) => PsError::WrongArguments {
            step,
            expected,
            found,
            reason,
        },
        Failure::Panicked(message) | Failure::ReplicaPanicked(message) => {
            PsError::Panicked { message }
        }
        Failure::Other(text) => PsError::step(text),
        Failure::UnknownId(table, id, rows) => PsError::UnknownId {
            table,
            // It was written here as a number.
            id: id.parse().unwrap_or(-1),
            rows,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(error: PsError) -> PsError {
        decode(&encode(&error))
    }

    #[test]
    fn an_error_that_a_program_may_react_to_arrives_as_what_it_was() {
        let lost = PsError::Unavailable {
            server: 3,
            address: "ps3:1".to_string(),
            reason: "it ended".to_string(),
        };
        // As it comes out of a strategy's `run`.
        let wrapped = distribute_core::Error::Replica {
            replica: 0,
            source: distribute_core::Error::from(lost.clone()).into(),
        };
        for error in [lost, PsError::from(wrapped.clone()), PsError::step(wrapped)] {
            let PsError::Unavailable {
                server, address, ..
            } = sent(error)
            else {
                panic!("another error");
            };
            assert_eq!((server, address.as_str()), (3, "ps3:1"));
        }
        assert!(matches!(sent(PsError::Cancelled), PsError::Cancelled));
    }

    #[test]
    fn any_other_error_arrives_as_its_text_cut_where_it_is_too_long() {
        let error = sent(PsError::step("the file is empty")).to_string();
        assert_eq!(error, "the file is empty");
        let long = sent(PsError::step("ä".repeat(TEXT_MAX_BYTES))).to_string();
        assert!(long.len() < TEXT_MAX_BYTES + 8 && long.ends_with("ä ..."));
        let odd = decode(b"\xff").to_string();
        assert!(odd.contains("cannot be read"), "{odd}");
    }
}
