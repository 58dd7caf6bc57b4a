//! The libraries that burn's bindings find.

/// Whether burn's bindings find a library by the names that they look for.
pub(super) fn is_there(library: &str) -> bool {
    // SAFETY: loads the library as its first use by burn would, and calls nothing in it.
    unsafe {
        match library {
            "cuda" => cudarc::driver::sys::is_culib_present(),
            "nvrtc" => cudarc::nvrtc::sys::is_culib_present(),
            "nccl" => cudarc::nccl::sys::is_culib_present(),
            _ => false,
        }
    }
}
