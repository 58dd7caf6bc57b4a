//! Bytes as they came from the network: in pieces, not copied together.

use bytes::Bytes;

/// Pieces that are one run of bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rope {
    pieces: Vec<Bytes>,
    /// Where each piece begins.
    starts: Vec<usize>,
    len: usize,
}

impl Rope {
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.starts.push(self.len);
            self.len += piece.len();
            self.pieces.push(piece);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends the bytes from `offset` on to `target`, as many as there are up to `count`.
    pub(crate) fn copy(&self, offset: usize, count: usize, target: &mut Vec<u8>) {
        let first = self.starts.partition_point(|start| *start <= offset);
        let (mut offset, mut left) = (offset, count);
        for index in first.saturating_sub(1)..self.pieces.len() {
            let piece = &self.pieces[index][offset - self.starts[index]..];
            let piece = &piece[..piece.len().min(left)];
            target.extend_from_slice(piece);
            left -= piece.len();
            offset += piece.len();
            if left == 0 {
                return;
            }
        }
    }

    /// The bytes of a range where they lie, if they are in one piece.
    pub(crate) fn slice(&self, offset: usize, count: usize) -> Option<&[u8]> {
        let first = self.starts.partition_point(|start| *start <= offset);
        let index = first.checked_sub(1)?;
        let begin = offset - self.starts[index];
        self.pieces[index].get(begin..begin.checked_add(count)?)
    }

    /// The bytes of a range, copied into one piece.
    pub(crate) fn read(&self, offset: usize, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        self.copy(offset, count, &mut bytes);
        bytes
    }
}

impl From<Vec<u8>> for Rope {
    fn from(bytes: Vec<u8>) -> Self {
        let mut rope = Rope::default();
        rope.push(bytes.into());
        rope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rope_reads_across_its_pieces() {
        let mut rope = Rope::default();
        for piece in [&b"ab"[..], b"", b"cde", b"f"] {
            rope.push(Bytes::copy_from_slice(piece));
        }
        assert_eq!(rope.len(), 6);
        for offset in 0..=6 {
            for count in 0..=6 - offset {
                assert_eq!(rope.read(offset, count), b"abcdef"[offset..offset + count]);
            }
        }
        assert_eq!(rope.read(4, 10), b"ef");
        assert_eq!(rope.slice(2, 3), Some(&b"cde"[..]));
        assert_eq!(rope.slice(3, 1), Some(&b"d"[..]));
        assert_eq!(rope.slice(1, 2), None);
        assert_eq!(rope.slice(5, 2), None);
        assert_eq!(Rope::default().slice(0, 1), None);
    }
}
