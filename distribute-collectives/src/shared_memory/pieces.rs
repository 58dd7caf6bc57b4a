//! A list of buffers as one long vector, and its ranges in shared slots.

use std::ops::Range;

use crate::buffer::{Buffer, Element};
use crate::shared_memory::segment::Segment;

/// The parts of `range` in each buffer: (buffer, its part, offset in `range`).
fn parts(
    lens: impl Iterator<Item = usize>,
    range: Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>, usize)> {
    let mut offset = 0;
    lens.enumerate().filter_map(move |(index, len)| {
        let begin = offset;
        offset += len;
        let (start, end) = (range.start.max(begin), range.end.min(offset));
        (start < end).then(|| (index, start - begin..end - begin, start - range.start))
    })
}

/// Number of elements of all buffers.
pub(crate) fn len(buffers: &[Buffer<'_>]) -> usize {
    buffers.iter().map(Buffer::len).sum()
}

fn bytes(part: Range<usize>, size: usize) -> Range<usize> {
    part.start * size..part.end * size
}

/// Copies elements, of `size` bytes, into the segment from `at`.
pub(crate) fn copy_in(
    segment: &Segment,
    at: usize,
    buffers: &[Buffer<'_>],
    range: Range<usize>,
    size: usize,
) {
    for (index, part, offset) in parts(buffers.iter().map(Buffer::len), range) {
        let from = &buffers[index].as_bytes()[bytes(part, size)];
        segment.copy_in(at + offset * size, from);
    }
}

/// Copies elements out of the segment.
pub(crate) fn copy_out(
    segment: &Segment,
    at: usize,
    buffers: &mut [Buffer<'_>],
    range: Range<usize>,
    size: usize,
) {
    let mut offset = 0;
    for buffer in buffers {
        let begin = offset;
        offset += buffer.len();
        let (start, end) = (range.start.max(begin), range.end.min(offset));
        if start < end {
            let to = &mut buffer.as_bytes_mut()[bytes(start - begin..end - begin, size)];
            segment.copy_out(at + (start - range.start) * size, to);
        }
    }
}

/// Calls `f` with the elements of `range`, part by part, and their offset in `range`.
pub(crate) fn for_each_mut<T: Element>(
    buffers: &mut [Buffer<'_>],
    range: Range<usize>,
    mut f: impl FnMut(usize, &mut [T]),
) {
    let mut offset = 0;
    for buffer in buffers {
        let begin = offset;
        offset += buffer.len();
        let (start, end) = (range.start.max(begin), range.end.min(offset));
        if let Some(elements) = T::slice_of_mut(buffer)
            && start < end
        {
            f(
                start - range.start,
                &mut elements[start - begin..end - begin],
            );
        }
    }
}
