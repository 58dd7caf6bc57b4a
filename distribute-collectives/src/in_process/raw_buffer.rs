//! Where the buffers of another rank lie (`unsafe`); the rules for using that, and why they make it
//! sound, are in `peer_buffers.rs`.

use std::ops::Range;

use crate::buffer::{Buffer, Element};

/// Where a rank's buffer lies and how many elements it has.
#[derive(Clone, Copy)]
pub(crate) struct RawBuffer {
    start: *mut u8,
    len: usize,
}

// SAFETY: a pointer is only a number until it is used; `peer_buffers.rs` has the rules for its use.
unsafe impl Send for RawBuffer {}

impl RawBuffer {
    /// The location of a buffer that will be read and written.
    pub(crate) fn of(buffer: &mut Buffer<'_>) -> Self {
        RawBuffer {
            len: buffer.len(),
            start: buffer.as_bytes_mut().as_mut_ptr(),
        }
    }

    /// The location of bytes that will only be read.
    pub(crate) fn of_input(bytes: &[u8]) -> Self {
        RawBuffer {
            len: bytes.len(),
            start: bytes.as_ptr().cast_mut(),
        }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// `range` must be part of a block that the caller has claimed and that writes these elements.
    pub(super) unsafe fn slice_mut<'a, T: Element>(self, range: Range<usize>) -> &'a mut [T] {
        debug_assert!(range.end <= self.len);
        // SAFETY: the memory holds `len` elements of `T`, see `peer_buffers.rs`; the claim is
        // exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.cast::<T>().add(range.start), range.len())
        }
    }

    /// # Safety
    /// The operation runs and no block of it writes these elements.
    pub(super) unsafe fn slice<'a, T: Element>(self, range: Range<usize>) -> &'a [T] {
        debug_assert!(range.end <= self.len);
        // SAFETY: the memory holds `len` elements of `T`, see `peer_buffers.rs`; no rank writes
        // them.
        unsafe { std::slice::from_raw_parts(self.start.cast::<T>().add(range.start), range.len()) }
    }
}
