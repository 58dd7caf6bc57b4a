//! Whether what GPUs need is there.
//!
//! burn loads the driver and the run-time compiler (NVRTC) when a device is used first, and panics
//! where they are missing. So [`check`] looks for them before anything of burn is called.

use std::path::Path;

use distribute_core::collectives::CollectiveError;
use distribute_core::collectives::nccl::{NcclOptions, NcclUnavailable, Searched, driver};
use distribute_core::{Error, Result};

use super::libraries;

fn unavailable(reason: String, searched: Vec<Searched>) -> Error {
    Error::Collective(CollectiveError::BackendUnavailable {
        backend: "CUDA".to_string(),
        reason,
        searched,
    })
}

/// As an error of the driver, not of NCCL.
fn of_driver(error: NcclUnavailable) -> Error {
    let reason = error.to_string();
    let searched = match error {
        NcclUnavailable::Absent { searched, .. } => searched,
        _ => Vec::new(),
    };
    unavailable(reason, searched)
}

/// The number of GPUs that burn can use.
///
/// # Errors
/// A library is missing, or the driver does not work.
pub(super) fn available() -> Result<usize> {
    let found = driver(&NcclOptions::new(0)).map_err(of_driver)?;
    check_library("cuda")?;
    check_library("nvrtc")?;
    check_headers()?;
    Ok(found.devices.len())
}

/// Refuses a GPU that burn could not use.
///
/// # Errors
/// As [`available`], and a number that no GPU has.
pub(super) fn check(index: usize) -> Result<()> {
    let count = available()?;
    if index < count {
        return Ok(());
    }
    let error = NcclUnavailable::NoDevice {
        device: index,
        count,
    };
    Err(of_driver(error))
}

/// Refuses a library that burn's bindings do not find: `cuda`, the driver, `nvrtc`, the run-time
/// compiler, or `nccl`, for which they look by other names than `distribute-collectives` does:
/// never for `libnccl.so.2`.
///
/// # Errors
/// They do not find it.
pub(super) fn check_library(library: &str) -> Result<()> {
    if libraries::is_there(library) {
        return Ok(());
    }
    let names = cudarc::get_lib_name_candidates(library).into_iter();
    let searched = names.map(|path| Searched {
        path,
        reason: "the system's loader does not find it".to_string(),
    });
    Err(unavailable(
        format!(
            "burn does not find lib{library} by the names that it looks for; install CUDA, or put a \
             folder where the library has one of them into LD_LIBRARY_PATH (docs/gpu.md)"
        ),
        searched.collect(),
    ))
}

/// The compiler reads CUDA's headers at run time. Without them kernels fail on a thread of burn's,
/// and reading a result gives zeros.
fn check_headers() -> Result<()> {
    // As burn chooses: one folder, whatever is in it. It panics when it finds none.
    let root = std::env::var("CUDA_PATH").unwrap_or_else(|_| {
        let mut kits = [
            ("/usr/local/cuda", "/usr/local/cuda"),
            ("/opt/cuda", "/opt/cuda"),
            ("/usr/bin/nvcc", "/usr"),
        ]
        .into_iter();
        let found = kits.find(|(mark, _)| Path::new(mark).exists());
        found.map_or("/usr/local/cuda", |(_, kit)| kit).to_string()
    });
    // The second is what the first includes; the Python packages have them in two.
    let headers = ["mma.h", "crt/mma.h"].map(|header| format!("{root}/include/{header}"));
    let missing: Vec<Searched> = headers
        .into_iter()
        .filter(|header| !Path::new(header).is_file())
        .map(|path| Searched {
            path,
            reason: "No such file".to_string(),
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(unavailable(
        "CUDA's headers are not there, and kernels are compiled at run time; install the CUDA \
         toolkit, or set CUDA_PATH to a folder with include/mma.h and include/crt/mma.h \
         (docs/gpu.md)"
            .to_string(),
        missing,
    ))
}
