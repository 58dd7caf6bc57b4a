//! Errors on their way between processes: from servers to clients, from steps to the coordinator.
//!
//! An error travels as what it is; one that wraps foreign code travels as its text.

use std::error::Error;

use crate::error::PsError;
use crate::value;

/// The longest text of an error, in bytes.
const TEXT_MAX_BYTES: usize = 16 << 10;
/// The most bytes of an error that is sent: there is always room for it beside a result.
const FAILURE_MAX_BYTES: usize = 48 << 10;

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

/// An error as it is sent, not too long.
pub(crate) fn sendable(error: &PsError) -> PsError {
    let found = innermost(error);
    let sent = match found.clone() {
        PsError::Core(core) => match core.root_cause() {
            distribute_core::Error::ReplicaPanicked { message, .. } => PsError::Panicked {
                message: cut(message.clone()),
            },
            _ => PsError::step(cut(core.to_string())),
        },
        PsError::Step(step) => PsError::step(cut(step.to_string())),
        PsError::Panicked { message } => PsError::Panicked {
            message: cut(message),
        },
        PsError::InvalidArgument { what } => PsError::invalid(cut(what)),
        other => other,
    };
    match value::encode(&sent) {
        Ok(bytes) if bytes.len() <= FAILURE_MAX_BYTES => sent,
        _ => PsError::step(cut(found.to_string())),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sent(error: PsError) -> PsError {
        value::decode(&value::encode(&sendable(&error)).unwrap()).unwrap()
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
        let bytes = value::encode(&sendable(&PsError::UnknownVariable { name })).unwrap();
        assert!(bytes.len() < FAILURE_MAX_BYTES, "{}", bytes.len());
    }
}
