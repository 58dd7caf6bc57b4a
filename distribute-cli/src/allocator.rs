//! How this program's allocator treats freed memory.
//!
//! burn's CPU backend allocates and frees every intermediate tensor. glibc gives blocks above
//! 128 KiB back to the system at once, so every step faults the same pages in again; keeping them
//! makes training 1.3 times as fast ("CPU replicas" in distribute-core/README.md). Only the program
//! does this: a library must not choose its user's allocator.

/// Tells glibc to keep freed memory and to take new memory in large pieces. Does nothing where the
/// allocator is another one.
pub(crate) fn keep_freed_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const TRIM_THRESHOLD_BYTES: libc::c_int = 2_000_000_000;
        const MMAP_THRESHOLD_BYTES: libc::c_int = 1_000_000_000;
        /// The most that older versions of glibc accept.
        const OLD_MMAP_THRESHOLD_BYTES: libc::c_int = 32 << 20;
        const TOP_PAD_BYTES: libc::c_int = 64 << 20;
        // SAFETY: mallopt only stores numbers in the allocator's settings; it is called before
        // any other thread exists, and a refused setting (result 0) leaves the default.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES);
            if libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) == 0 {
                libc::mallopt(libc::M_MMAP_THRESHOLD, OLD_MMAP_THRESHOLD_BYTES);
            }
            libc::mallopt(libc::M_TOP_PAD, TOP_PAD_BYTES);
        }
    }
}
