//! Operations and failures as messages, and back.

use crate::control::generated as message;
use crate::failure::{Failure, fitting};
use crate::header::OperationHeader;

/// Bytes of a failure: a message stays far below the limit.
const FAILURE_BYTES_MAX: usize = 32 << 10;

/// The running operation as bytes; none between operations.
pub(crate) fn running(header: Option<&OperationHeader>) -> Vec<u8> {
    header.map_or_else(Vec::new, |header| header.encode().to_vec())
}

/// The header in the bytes, or `None` when there is none, or one that no rank writes.
pub(crate) fn header(bytes: &[u8]) -> Option<OperationHeader> {
    OperationHeader::decode(bytes.try_into().ok()?).ok()
}

/// A failure as a message; `rank` is this rank.
pub(crate) fn notice(rank: usize, failure: &Failure) -> message::Notice {
    message::Notice {
        failure: fitting(FAILURE_BYTES_MAX, |most| failure.told_by(rank, most)),
    }
}

/// The failure in a message, or `None` when it is of a kind that this version does not know, or
/// names a rank that does not exist.
pub(crate) fn failure(world_size: usize, notice: &message::Notice) -> Option<Failure> {
    let failure: Failure = serde_json::from_str(&notice.failure).ok()?;
    failure.is_of(world_size).then_some(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::OperationKind;

    #[test]
    fn a_header_survives_the_way_and_what_is_none_is_none() {
        let sent = OperationHeader::new(OperationKind::Reduce, 4, 9).with_root(3);
        let bytes = running(Some(&sent));
        assert_eq!(header(&bytes), Some(sent));
        assert!(running(None).is_empty());
        for nonsense in [&[][..], &bytes[1..], &[255; OperationHeader::BYTES]] {
            assert_eq!(header(nonsense), None);
        }
    }

    #[test]
    fn a_failure_survives_the_way_and_what_is_none_is_none() {
        let sent = Failure::aborted(3, "because");
        assert_eq!(failure(4, &notice(0, &sent)), Some(sent.clone()));
        assert_eq!(failure(3, &notice(0, &sent)), None);
        assert_eq!(failure(4, &message::Notice::default()), None);
    }
}
