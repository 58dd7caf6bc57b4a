//! A tensor's bytes in shared pieces: a reader keeps the pieces of its version while a writer
//! goes on, and only the pieces that change in the meantime are copied.

use std::sync::Arc;

use bytes::Bytes;

use crate::rpc::message::PIECE_BYTES;
use crate::rpc::rope::Rope;

/// Bytes per piece; the largest message, and a multiple of every element's size.
pub(super) const SEGMENT: usize = PIECE_BYTES;

/// Bytes in pieces of [`SEGMENT`], the last one shorter.
#[derive(Debug, Clone, Default)]
pub(super) struct Segments {
    parts: Vec<Arc<Vec<u8>>>,
}

/// Lets a piece be sent from where it lies.
struct SharedPiece(Arc<Vec<u8>>);

impl AsRef<[u8]> for SharedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Segments {
    pub(super) fn zeros(len: usize) -> Self {
        Self::build(len, |_, count| vec![0; count])
    }

    /// The same element everywhere.
    pub(super) fn filled(len: usize, element: &[u8]) -> Self {
        Self::build(len, |_, count| element.repeat(count / element.len().max(1)))
    }

    pub(super) fn from_rope(rope: &Rope) -> Self {
        Self::build(rope.len(), |offset, count| rope.read(offset, count))
    }

    fn build(len: usize, mut part: impl FnMut(usize, usize) -> Vec<u8>) -> Self {
        let offsets = (0..len).step_by(SEGMENT);
        let part = |offset| Arc::new(part(offset, SEGMENT.min(len - offset)));
        Self {
            parts: offsets.map(part).collect(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.parts.len()
    }

    /// One piece.
    #[cfg(test)]
    pub(super) fn part(&self, index: usize) -> &[u8] {
        &self.parts[index]
    }

    /// One piece, to be changed; readers keep the old one.
    pub(super) fn part_mut(&mut self, index: usize) -> &mut [u8] {
        Arc::make_mut(&mut self.parts[index]).as_mut_slice()
    }

    /// All bytes, as they lie.
    pub(super) fn bytes(&self) -> Vec<Bytes> {
        let share = |part: &Arc<Vec<u8>>| Bytes::from_owner(SharedPiece(part.clone()));
        self.parts.iter().map(share).collect()
    }

    /// Appends the bytes of a range to `target`.
    pub(super) fn copy(&self, offset: usize, count: usize, target: &mut Vec<u8>) {
        for (index, begin, count) in pieces(offset, count) {
            target.extend_from_slice(&self.parts[index][begin..begin + count]);
        }
    }

    /// Writes bytes to a place.
    pub(super) fn write(&mut self, offset: usize, mut bytes: &[u8]) {
        for (index, begin, count) in pieces(offset, bytes.len()) {
            let (now, later) = bytes.split_at(count);
            Arc::make_mut(&mut self.parts[index])[begin..begin + count].copy_from_slice(now);
            bytes = later;
        }
    }
}

/// The parts that a range touches: index, first byte in it, bytes of it.
fn pieces(offset: usize, count: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let end = offset + count;
    let mut next = offset;
    std::iter::from_fn(move || {
        (next < end).then(|| {
            let (index, begin) = (next / SEGMENT, next % SEGMENT);
            let count = (SEGMENT - begin).min(end - next);
            next += count;
            (index, begin, count)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_leaves_what_a_reader_has() {
        let len = 2 * SEGMENT + 10;
        let mut segments = Segments::zeros(len);
        let before = segments.bytes();
        segments.write(SEGMENT - 2, &[7; 4]);
        assert!(
            before
                .iter()
                .all(|bytes| bytes.iter().all(|byte| *byte == 0))
        );
        let mut read = Vec::new();
        segments.copy(SEGMENT - 3, 6, &mut read);
        assert_eq!(read, [0, 7, 7, 7, 7, 0]);
        assert_eq!(segments.bytes().iter().map(Bytes::len).sum::<usize>(), len);
        // The last piece was not written: it is the same memory still.
        assert_eq!(before[2].as_ptr(), segments.bytes()[2].as_ptr());
        assert_ne!(before[0].as_ptr(), segments.bytes()[0].as_ptr());
    }
}
