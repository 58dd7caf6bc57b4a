//! Errors on their way from a server to a client.

use prost::Message;
use std::time::Duration;
use tonic::{Code, Status};

use crate::error::PsError;
use crate::generated::Failure;

/// Options that errors name, so that the name can travel.
const OPTIONS: [&str; 3] = ["max_shard_bytes", "max_request_bytes", "max_memory_bytes"];

fn narrow(numbers: Vec<u64>) -> Vec<usize> {
    let narrow = |number| usize::try_from(number).unwrap_or(usize::MAX);
    numbers.into_iter().map(narrow).collect()
}

fn wide(numbers: &[usize]) -> Vec<u64> {
    numbers.iter().map(|number| *number as u64).collect()
}

/// The operations that errors name.
fn operation(name: &str) -> &'static str {
    const ALL: [&str; 10] = [
        "create",
        "initialize",
        "pull",
        "pull rows",
        "push",
        "assign",
        "assign_add",
        "assign_sub",
        "restore",
        "read",
    ];
    ALL.iter()
        .find(|known| **known == name)
        .unwrap_or(&"operation")
}

/// The kind of an error on the wire, and the status' code.
fn describe(error: &PsError) -> (Code, Failure) {
    let failure = |kind, name: &str, what: &str, numbers: &[u64]| Failure {
        kind,
        name: name.to_string(),
        what: what.to_string(),
        numbers: numbers.to_vec(),
        ..Failure::default()
    };
    match error {
        PsError::OtherRun { reason, .. } => (Code::FailedPrecondition, failure(1, "", reason, &[])),
        PsError::UnknownVariable { name } => (Code::NotFound, failure(2, name, "", &[])),
        PsError::VariableExists { name } => (Code::AlreadyExists, failure(3, name, "", &[])),
        PsError::Uninitialized { name } => (Code::FailedPrecondition, failure(4, name, "", &[])),
        PsError::Shape {
            op,
            name,
            expected,
            found,
        } => {
            let expected = wide(expected);
            let found = wide(found);
            let failure = failure(5, name, op, &[]);
            let failure = Failure {
                expected,
                found,
                ..failure
            };
            (Code::InvalidArgument, failure)
        }
        PsError::DType {
            op,
            name,
            expected,
            found,
        } => {
            let what = format!("{op}\n{expected}\n{found}");
            (Code::InvalidArgument, failure(6, name, &what, &[]))
        }
        PsError::Row { name, row, rows } => {
            (Code::OutOfRange, failure(7, name, "", &[*row, *rows]))
        }
        PsError::TooLarge {
            what,
            bytes,
            limit,
            option,
        } => {
            let failure = failure(8, option, what, &[*bytes, *limit]);
            (Code::ResourceExhausted, failure)
        }
        PsError::Full { what } => (Code::ResourceExhausted, failure(9, "", what, &[])),
        PsError::NonFinite { name } => (Code::InvalidArgument, failure(10, name, "", &[])),
        PsError::Stale { name, lag, bound } => {
            (Code::Aborted, failure(11, name, "", &[*lag, *bound]))
        }
        PsError::StalenessTimeout { op, bound, waited } => {
            let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            (
                Code::DeadlineExceeded,
                failure(12, op, "", &[*bound, waited]),
            )
        }
        PsError::Protocol { what, .. } => (Code::InvalidArgument, failure(14, "", what, &[])),
        PsError::Cancelled => (Code::Cancelled, failure(15, "", "", &[])),
        other => (
            Code::InvalidArgument,
            failure(13, "", &other.to_string(), &[]),
        ),
    }
}

/// An error about variables as bytes; `None` for any other one.
pub(crate) fn to_bytes(error: &PsError) -> Option<Vec<u8>> {
    let (_, failure) = describe(error);
    (2..=12)
        .contains(&failure.kind)
        .then(|| failure.encode_to_vec())
}

/// The way back.
pub(crate) fn from_bytes(bytes: &[u8]) -> Option<PsError> {
    from_failure(Failure::decode(bytes).ok()?, 0, String::new())
}

/// The status of an error.
pub(crate) fn to_status(error: &PsError) -> Status {
    let (code, failure) = describe(error);
    // What a header may hold; the whole text travels in the details.
    let message: String = error.to_string().chars().take(500).collect();
    Status::with_details(code, message, failure.encode_to_vec().into())
}

/// The error of a status that server `server` answered with.
pub(crate) fn from_status(status: &Status, server: usize, address: &str) -> PsError {
    let failure = Failure::decode(status.details()).unwrap_or_default();
    from_failure(failure, server, address.to_string())
        .unwrap_or_else(|| without_details(status, server, address.to_string()))
}

fn from_failure(failure: Failure, server: usize, address: String) -> Option<PsError> {
    let (name, what) = (failure.name, failure.what);
    let number = |index: usize| failure.numbers.get(index).copied().unwrap_or(0);
    Some(match failure.kind {
        1 => PsError::OtherRun {
            server,
            address,
            reason: what,
        },
        2 => PsError::UnknownVariable { name },
        3 => PsError::VariableExists { name },
        4 => PsError::Uninitialized { name },
        5 => PsError::Shape {
            op: operation(&what),
            name,
            expected: narrow(failure.expected),
            found: narrow(failure.found),
        },
        6 => {
            let mut parts = what.split('\n');
            let mut next = || parts.next().unwrap_or_default().to_string();
            PsError::DType {
                op: operation(&next()),
                name,
                expected: next(),
                found: next(),
            }
        }
        7 => PsError::Row {
            name,
            row: number(0),
            rows: number(1),
        },
        8 => PsError::TooLarge {
            what,
            bytes: number(0),
            limit: number(1),
            option: OPTIONS
                .iter()
                .find(|option| **option == name)
                .unwrap_or(&OPTIONS[0]),
        },
        9 => PsError::Full { what },
        10 => PsError::NonFinite { name },
        11 => PsError::Stale {
            name,
            lag: number(0),
            bound: number(1),
        },
        12 => PsError::StalenessTimeout {
            op: operation(&name),
            bound: number(0),
            waited: Duration::from_millis(number(1)),
        },
        13 => PsError::InvalidArgument { what },
        14 => PsError::Protocol { address, what },
        15 => PsError::Cancelled,
        _ => return None,
    })
}

/// The error of a status that no code of this crate has made.
fn without_details(status: &Status, server: usize, address: String) -> PsError {
    let reason = status.message().to_string();
    match status.code() {
        Code::Unauthenticated | Code::FailedPrecondition => PsError::Refused { address, reason },
        Code::Unavailable | Code::Cancelled => PsError::Unavailable {
            server,
            address,
            reason,
        },
        code => PsError::Protocol {
            address,
            what: format!("{code:?}: {reason}"),
        },
    }
}
