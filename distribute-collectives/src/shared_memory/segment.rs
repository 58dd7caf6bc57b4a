//! Memory that several processes map: an anonymous file, its mapping, and access to it.
//!
//! The file has no name, so nothing is left when all processes that map it are gone, however they
//! ended. It is sealed against shrinking: a mapped page cannot vanish under a reader.
//!
//! What the other processes write can be anything: every access checks its bounds against this
//! process's own numbers, and only types for which every bit pattern is a value are read. Which
//! rank may touch which bytes at a time is the business of the protocols that use the segment;
//! the functions that hand out references are `unsafe` and name what they rely on.

use std::ptr::NonNull;

use bytemuck::Pod;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::io;
use rustix::mm::{self, MapFlags, ProtFlags};

use crate::sync::atomic::{AtomicU32, AtomicU64};

/// A mapping of a shared file; unmapped when dropped.
pub(crate) struct Segment {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; access is by atomics and by
// references whose exclusiveness the callers of the unsafe functions promise.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a file of `len` zero bytes, which take memory once they are touched, and maps it.
    pub(crate) fn create(len: usize) -> io::Result<(OwnedFd, Segment)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = fs::memfd_create("distribute-collectives", flags)?;
        fs::ftruncate(&file, len as u64)?;
        fs::fcntl_add_seals(&file, SEALS)?;
        let segment = Segment::map_checked(&file, len)?;
        Ok((file, segment))
    }

    /// Maps a file that another process has made.
    ///
    /// # Errors
    /// When it is not sealed, or shorter than `len`: a peer could end this process with a signal.
    pub(crate) fn map(file: impl AsFd, len: usize) -> io::Result<Segment> {
        let seals = fs::fcntl_get_seals(&file)?;
        let size = fs::fstat(&file)?.st_size;
        if !seals.contains(SEALS) || u64::try_from(size) != Ok(len as u64) {
            return Err(io::Errno::INVAL);
        }
        Segment::map_checked(file, len)
    }

    fn map_checked(file: impl AsFd, len: usize) -> io::Result<Segment> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel picks free addresses, so no memory of this process is replaced.
        let start =
            unsafe { mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::Errno::NOMEM)?;
        Ok(Segment { start, len })
    }

    /// The address of `len` bytes from `at`, which must lie in the segment and suit `T`.
    fn address<T>(&self, at: usize, len: usize) -> *mut T {
        let end = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(at));
        assert!(
            end.is_some_and(|end| end <= self.len) && at.is_multiple_of(align_of::<T>()),
            "offset {at} is not that of {len} values in a segment of {} bytes",
            self.len
        );
        // SAFETY: `at` is at most the length of the mapping, see the check.
        unsafe { self.start.as_ptr().add(at).cast() }
    }

    /// A 32-bit word for atomic access.
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the address is in the mapping and aligned; all processes access it atomically.
        unsafe { AtomicU32::from_ptr(self.address(at, 1)) }
    }

    /// A 64-bit word for atomic access.
    pub(crate) fn long(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the address is in the mapping and aligned; all processes access it atomically.
        unsafe { AtomicU64::from_ptr(self.address(at, 1)) }
    }

    /// Elements that no member writes for now.
    ///
    /// # Safety
    /// By the protocol that the caller follows, no rank writes these bytes while the slice lives.
    pub(crate) unsafe fn elements<T: Pod>(&self, at: usize, len: usize) -> &[T] {
        // SAFETY: mapped, aligned, of a type for which every bit pattern is a value; the caller
        // promises that no member writes.
        unsafe { std::slice::from_raw_parts(self.address(at, len), len) }
    }

    /// Elements that only this rank accesses for now.
    ///
    /// # Safety
    /// By the protocol that the caller follows, no other rank accesses these bytes while the slice
    /// lives, and this rank not through another slice.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is shared, and the caller promises who writes"
    )]
    pub(crate) unsafe fn elements_mut<T: Pod>(&self, at: usize, len: usize) -> &mut [T] {
        // SAFETY: mapped, aligned, of a type for which every bit pattern is a value; the caller
        // promises that the access is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.address(at, len), len) }
    }

    /// Copies bytes into the segment.
    pub(crate) fn copy_in(&self, at: usize, from: &[u8]) {
        let to = self.address::<u8>(at, from.len());
        // SAFETY: both are valid for the length, and no reference into the segment is handed out
        // for bytes that a rank may write. A rank that breaks the protocol makes the bytes wrong.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Copies bytes out of the segment.
    pub(crate) fn copy_out(&self, at: usize, to: &mut [u8]) {
        let from = self.address::<u8>(at, to.len());
        // SAFETY: as for `copy_in`.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }
}

/// The size of the file is final.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map_checked` and not unmapped since; references into the mapping
        // borrow this value. An error leaves the mapping, which is harmless.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
