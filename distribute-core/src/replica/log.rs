//! What the calls of a replica have given it, noted for one that computes its step again.

use std::sync::Mutex;

use burn::tensor::TensorData;

use crate::sync::lock;

/// What the calls of a replica have given it, one list each: the kind of the call, and its result.
pub(crate) type Log = Vec<Vec<i64>>;

/// The kinds of calls that are noted.
pub(super) const GATHERED: i64 = 0;
pub(super) const REDUCED: i64 = 1;

/// A log, while one is kept.
#[derive(Default)]
pub(crate) struct Noted(Mutex<Option<Log>>);

impl Noted {
    /// From now on results are noted.
    pub(super) fn begin(&self) {
        *lock(&self.0) = Some(Log::new());
    }

    /// What was noted, which ends.
    pub(super) fn take(&self) -> Log {
        lock(&self.0).take().unwrap_or_default()
    }

    pub(super) fn reduced(&self, buffers: &[TensorData]) {
        self.note(|| {
            let words = buffers.iter().map(|data| words(data.as_bytes()));
            listed(REDUCED, words)
        });
    }

    pub(super) fn gathered(&self, all: &[Vec<i64>]) {
        self.note(|| listed(GATHERED, all.iter().cloned()));
    }

    fn note(&self, entry: impl FnOnce() -> Vec<i64>) {
        if let Some(log) = &mut *lock(&self.0) {
            log.push(entry());
        }
    }
}

/// A kind and lists, each behind its length.
fn listed(kind: i64, lists: impl Iterator<Item = Vec<i64>>) -> Vec<i64> {
    let mut all = vec![kind];
    for list in lists {
        all.push(list.len() as i64);
        all.extend(list);
    }
    all
}

/// Bytes as words, the last one filled up with zeros.
fn words(bytes: &[u8]) -> Vec<i64> {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        i64::from_le_bytes(word)
    });
    words.collect()
}
