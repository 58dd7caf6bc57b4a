//! The libraries that burn's bindings find.

/// Whether burn's bindings find the driver.
pub(super) fn has_driver() -> bool {
    // SAFETY: loads the library as its first use by burn would, and calls nothing in it.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

/// Whether burn's bindings find the run-time compiler.
pub(super) fn has_compiler() -> bool {
    // SAFETY: as above.
    unsafe { cudarc::nvrtc::sys::is_culib_present() }
}

/// Whether burn's bindings find NCCL.
pub(super) fn has_nccl() -> bool {
    // SAFETY: as above.
    unsafe { cudarc::nccl::sys::is_culib_present() }
}
