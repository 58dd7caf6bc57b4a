//! [Pieces](crate::pieces) of a list of buffers in shared slots.

use std::ops::Range;

use crate::buffer::Buffer;
pub(crate) use crate::pieces::{for_each_mut, len};
use crate::pieces::{parts, parts_mut};
use crate::shared_memory::segment::Segment;

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
    for (buffer, part, offset) in parts(buffers, range) {
        let from = &buffer.as_bytes()[bytes(part, size)];
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
    for (buffer, part, offset) in parts_mut(buffers, range) {
        let to = &mut buffer.as_bytes_mut()[bytes(part, size)];
        segment.copy_out(at + offset * size, to);
    }
}
