//! Errors of steps on their way to the coordinator.
//!
//! Those that a program may want to tell apart arrive as what they were; any other one arrives as
//! its text.

use std::error::Error;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::value;
use crate::error::PsError;
use crate::wire_error;

/// The longest text of an error, in bytes.
const TEXT_MAX_BYTES: usize = 16 << 10;
/// The most bytes of an error that is sent: there is always room for it beside a result.
const FAILURE_MAX_BYTES: usize = 48 << 10;

/// What of an error is sent.
#[derive(Debug, Serialize, Deserialize)]
enum Failure {
    Cancelled,
    OutOfRange(String, String),
    Unavailable(usize, String, String),
    Timeout(usize, String, Duration),
    OtherRun(usize, String, String),
    Refused(String, String),
    /// About a variable, as servers write it.
    Variable(Vec<u8>),
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
    within(core.wrapped()?)
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
        PsError::Refused { address, reason } => Failure::Refused(address, reason),
        PsError::InvalidArgument { what } => Failure::InvalidArgument(cut(what)),
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
        PsError::Panicked { message } => Failure::Panicked(cut(message)),
        PsError::UnknownId { table, id, rows } => Failure::UnknownId(table, id.to_string(), rows),
        other => match wire_error::to_bytes(&other) {
            Some(bytes) => Failure::Variable(bytes),
            None => in_words(&other),
        },
    };
    let encoded = value::encode(&failure).unwrap_or_default();
    match encoded.len() > FAILURE_MAX_BYTES {
        true => value::encode(&Failure::Other(cut(found.to_string()))).unwrap_or_default(),
        false => encoded,
    }
}

/// A text, cut where it is too long.
fn cut(mut text: String) -> String {
    if text.len() > TEXT_MAX_BYTES {
        text.truncate(text.floor_char_boundary(TEXT_MAX_BYTES));
        text.push_str(" ...");
    }
    text
}

fn in_words(error: &PsError) -> Failure {
    if let PsError::Core(core) = error
        && let distribute_core::Error::ReplicaPanicked { message, .. } = core.root_cause()
    {
        return Failure::ReplicaPanicked(cut(message.clone()));
    }
    Failure::Other(cut(error.to_string()))
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
        Failure::Refused(address, reason) => PsError::Refused { address, reason },
        Failure::Variable(bytes) => wire_error::from_bytes(&bytes)
            .unwrap_or_else(|| PsError::step("its error about a variable cannot be read")),
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
    fn errors_about_variables_arrive_with_all_that_they_say() {
        let name = || "model/w".to_string();
        for error in [
            PsError::Shape {
                op: "assign_add",
                name: name(),
                expected: vec![2, 3],
                found: vec![],
            },
            PsError::DType {
                op: "push",
                name: name(),
                expected: "f32".to_string(),
                found: "i64".to_string(),
            },
            PsError::StalenessTimeout {
                op: "pull",
                bound: 3,
                waited: Duration::from_secs(60),
            },
            PsError::TooLarge {
                what: "a request".to_string(),
                bytes: 7,
                limit: 5,
                option: "max_request_bytes",
            },
            PsError::Row {
                name: name(),
                row: 9,
                rows: 4,
            },
            PsError::Uninitialized { name: name() },
            PsError::UnknownVariable { name: name() },
            PsError::NonFinite { name: name() },
            PsError::Refused {
                address: "ps0:1".to_string(),
                reason: "its token is another one".to_string(),
            },
        ] {
            let kind = std::mem::discriminant(&error);
            let text = error.to_string();
            let arrived = sent(error);
            assert_eq!(std::mem::discriminant(&arrived), kind, "{arrived}");
            assert_eq!(arrived.to_string(), text);
        }
    }

    #[test]
    fn any_other_error_arrives_as_its_text_cut_where_it_is_too_long() {
        let error = sent(PsError::step("the file is empty")).to_string();
        assert_eq!(error, "the file is empty");
        let long = sent(PsError::step("ä".repeat(TEXT_MAX_BYTES))).to_string();
        assert!(long.len() < TEXT_MAX_BYTES + 8 && long.ends_with("ä ..."));
        let message = "x".repeat(10 << 20);
        let panicked = sent(PsError::Panicked { message });
        assert!(matches!(panicked, PsError::Panicked { .. }));
        assert!(panicked.to_string().len() < TEXT_MAX_BYTES + 64);
        let name = "x".repeat(10 << 20);
        let bytes = encode(&PsError::UnknownVariable { name });
        assert!(bytes.len() < FAILURE_MAX_BYTES, "{}", bytes.len());
        let odd = decode(b"\xff").to_string();
        assert!(odd.contains("cannot be read"), "{odd}");
    }
}
