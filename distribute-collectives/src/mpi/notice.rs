//! What ranks tell each other beside the operations: that one failed, left or is waiting.

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, fitting};

/// Bytes of a notice; texts are cut off.
pub(super) const NOTICE_BYTES: usize = 1024;

/// One message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Notice {
    /// The group has failed for all ranks.
    Failed(Failure),
    /// A rank has dropped its endpoint after it had finished `completed` operations.
    Left {
        rank: usize,
        completed: u64,
        reason: String,
    },
    /// A rank has been waiting in an operation for a while.
    Waiting { rank: usize, sequence: u64 },
}

/// What rank `own` tells the others of group `instance`, as JSON with spaces behind it.
pub(super) fn encode(instance: u64, own: usize, notice: &Notice) -> [u8; NOTICE_BYTES] {
    let text = fitting(NOTICE_BYTES, |most| match notice {
        Notice::Failed(failure) => (instance, Notice::Failed(failure.told_by(own, most))),
        other => (instance, other.clone()),
    });
    let mut bytes = [b' '; NOTICE_BYTES];
    // It fits: the texts of the others come from this crate.
    for (to, from) in bytes.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// The instance and the notice; `None` for what this version does not know.
pub(super) fn decode(bytes: &[u8; NOTICE_BYTES]) -> Option<(u64, Notice)> {
    serde_json::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_come_back() {
        let failed = Notice::Failed(Failure::aborted(3, &"é".repeat(10)));
        let left = Notice::Left {
            rank: 4,
            completed: 9,
            reason: "its thread panicked".to_string(),
        };
        let waiting = Notice::Waiting {
            rank: 1,
            sequence: u64::MAX,
        };
        for notice in [failed, left, waiting] {
            assert_eq!(decode(&encode(5, 0, &notice)), Some((5, notice)));
        }
    }

    #[test]
    fn long_texts_are_cut_off_and_nonsense_is_no_panic() {
        let notice = Notice::Failed(Failure::aborted(0, &"é".repeat(1000)));
        let Some((0, Notice::Failed(told))) = decode(&encode(0, 0, &notice)) else {
            panic!("another notice");
        };
        let text = format!("{told:?}");
        assert!(text.matches('é').count() > 200, "{text}");
        assert_eq!(decode(&[0xff; NOTICE_BYTES]), None);
        let mut cut = encode(0, 0, &notice);
        cut[100..].fill(b' ');
        assert_eq!(decode(&cut), None);
    }
}
