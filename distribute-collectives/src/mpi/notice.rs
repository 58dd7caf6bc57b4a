//! What ranks tell each other beside the operations: that one failed, left or is waiting.

use std::time::Duration;

use crate::error::CollectiveError;
use crate::operation::OperationKind;

/// Bytes of a notice; texts are cut off.
pub(super) const NOTICE_BYTES: usize = 512;

fn kind_of(byte: u64) -> OperationKind {
    let found = OperationKind::ALL
        .into_iter()
        .find(|kind| *kind as u64 == byte);
    found.unwrap_or(OperationKind::Barrier)
}

/// Writes words one after the other.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn word(&mut self, value: u64) {
        let (word, rest) = std::mem::take(&mut self.0).split_at_mut(8);
        word.copy_from_slice(&value.to_le_bytes());
        self.0 = rest;
    }

    /// The length, then as many whole characters as fit.
    fn text(mut self, text: &str) {
        let len = text.floor_char_boundary(self.0.len() - 8);
        self.word(len as u64);
        self.0[..len].copy_from_slice(&text.as_bytes()[..len]);
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn word(&mut self) -> u64 {
        let (word, rest) = self.0.split_at(8);
        self.0 = rest;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        u64::from_le_bytes(bytes)
    }

    fn text(mut self) -> String {
        let len = (self.word() as usize).min(self.0.len());
        String::from_utf8_lossy(&self.0[..len]).into_owned()
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Notice {
    /// The group has failed for all ranks.
    Failed(CollectiveError),
    /// A rank has dropped its endpoint after it had finished `completed` operations.
    Left {
        rank: usize,
        completed: u64,
        panicked: bool,
    },
    /// A rank has been waiting in an operation for a while.
    Waiting { rank: usize, sequence: u64 },
}

/// Words: instance, code, two numbers, operation, sequence, microseconds; then a text.
pub(super) fn encode(instance: u64, notice: &Notice) -> [u8; NOTICE_BYTES] {
    let (words, text) = match notice {
        Notice::Left {
            rank,
            completed,
            panicked,
        } => {
            let words = [0, *rank as u64, u64::from(*panicked), 0, *completed, 0];
            (words, String::new())
        }
        Notice::Waiting { rank, sequence } => {
            ([1, *rank as u64, 0, 0, *sequence, 0], String::new())
        }
        Notice::Failed(error) => encode_error(error),
    };
    let mut bytes = [0; NOTICE_BYTES];
    let mut writer = Writer(&mut bytes);
    writer.word(instance);
    words.into_iter().for_each(|word| writer.word(word));
    writer.text(&text);
    bytes
}

fn encode_error(error: &CollectiveError) -> ([u64; 6], String) {
    match error {
        CollectiveError::Aborted { rank, reason } => {
            ([2, *rank as u64, 0, 0, 0, 0], reason.clone())
        }
        CollectiveError::Timeout {
            missing,
            op,
            sequence,
            elapsed,
        } => {
            let missing: Vec<String> = missing.iter().map(usize::to_string).collect();
            let micros = elapsed.as_micros() as u64;
            ([3, 0, 0, *op as u64, *sequence, micros], missing.join(","))
        }
        CollectiveError::Mismatch {
            rank_a,
            rank_b,
            op,
            sequence,
            what,
        } => {
            let (a, b) = (*rank_a as u64, *rank_b as u64);
            ([4, a, b, *op as u64, *sequence, 0], what.clone())
        }
        CollectiveError::PeerLost {
            rank,
            op,
            sequence,
            reason,
        } => {
            let words = [5, *rank as u64, 0, *op as u64, *sequence, 0];
            (words, reason.clone())
        }
        other => ([2, 0, 0, 0, 0, 0], other.to_string()),
    }
}

/// The instance and the notice; `None` for what this version does not know.
pub(super) fn decode(bytes: &[u8; NOTICE_BYTES]) -> Option<(u64, Notice)> {
    let mut reader = Reader(bytes);
    let (instance, code) = (reader.word(), reader.word());
    let (a, b) = (reader.word() as usize, reader.word() as usize);
    let (op, sequence, micros) = (kind_of(reader.word()), reader.word(), reader.word());
    let text = reader.text();
    let notice = match code {
        0 => Notice::Left {
            rank: a,
            completed: sequence,
            panicked: b != 0,
        },
        1 => Notice::Waiting { rank: a, sequence },
        2 => Notice::Failed(CollectiveError::Aborted {
            rank: a,
            reason: text,
        }),
        3 => Notice::Failed(CollectiveError::Timeout {
            missing: text
                .split(',')
                .filter_map(|rank| rank.parse().ok())
                .collect(),
            op,
            sequence,
            elapsed: Duration::from_micros(micros),
        }),
        4 => Notice::Failed(CollectiveError::Mismatch {
            rank_a: a,
            rank_b: b,
            op,
            sequence,
            what: text,
        }),
        5 => Notice::Failed(CollectiveError::PeerLost {
            rank: a,
            op,
            sequence,
            reason: text,
        }),
        _ => return None,
    };
    Some((instance, notice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_come_back() {
        let timeout = CollectiveError::Timeout {
            missing: vec![2, 5],
            op: OperationKind::AllGather,
            sequence: 8,
            elapsed: Duration::from_millis(1500),
        };
        let lost = CollectiveError::PeerLost {
            rank: 1,
            op: OperationKind::Send,
            sequence: 2,
            reason: "gone".to_string(),
        };
        let mismatch = CollectiveError::Mismatch {
            rank_a: 0,
            rank_b: 3,
            op: OperationKind::Barrier,
            sequence: 4,
            what: "count".to_string(),
        };
        let aborted = CollectiveError::Aborted {
            rank: 3,
            reason: "é".repeat(10),
        };
        let left = Notice::Left {
            rank: 4,
            completed: 9,
            panicked: true,
        };
        let mut notices = vec![
            left,
            Notice::Waiting {
                rank: 1,
                sequence: 2,
            },
        ];
        notices.extend([timeout, lost, mismatch, aborted].map(Notice::Failed));
        for notice in notices {
            assert_eq!(decode(&encode(5, &notice)), Some((5, notice)));
        }
    }

    #[test]
    fn long_texts_are_cut_off_and_nonsense_is_no_panic() {
        let notice = Notice::Failed(CollectiveError::Aborted {
            rank: 0,
            reason: "é".repeat(1000),
        });
        let Some((_, Notice::Failed(CollectiveError::Aborted { reason, .. }))) =
            decode(&encode(0, &notice))
        else {
            panic!("another notice");
        };
        assert!(reason.len() > 400 && reason.chars().all(|c| c == 'é'));
        assert_eq!(decode(&[0xff; NOTICE_BYTES]), None);
        for code in 0..6 {
            let mut bytes = [0xff; NOTICE_BYTES];
            bytes[8..16].copy_from_slice(&u64::to_le_bytes(code));
            assert!(decode(&bytes).is_some());
        }
    }
}
