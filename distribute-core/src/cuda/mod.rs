//! Replicas on NVIDIA GPUs, by burn's CUDA backend (feature `cuda`).
//!
//! burn loads the driver and the run-time compiler (NVRTC) when a device is used first, and panics
//! where they are missing. So [`check`] looks for them before anything of burn is called.

mod burn_reducer;
#[allow(unsafe_code)]
mod memory;

use std::path::Path;
use std::time::Duration;

pub(crate) use burn_reducer::BurnReducers;
use distribute_collectives::CollectiveError;
use distribute_collectives::nccl::{NcclOptions, NcclUnavailable, Searched, driver};
use memory::CudaMemory;

use crate::{Error, LogicalDevice, NcclReducers, Result};

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
    match error {
        NcclUnavailable::Absent { searched, .. } => unavailable(reason, searched),
        _ => unavailable(reason, Vec::new()),
    }
}

/// The number of GPUs that burn can use.
///
/// # Errors
/// A library is missing, or the driver does not work.
pub(crate) fn available() -> Result<usize> {
    let found = driver(&NcclOptions::new(0)).map_err(of_driver)?;
    for (library, what) in [
        ("cuda", memory::has_driver()),
        ("nvrtc", memory::has_compiler()),
    ] {
        if !what {
            return Err(not_loaded(library));
        }
    }
    check_headers()?;
    Ok(found.devices.len())
}

/// Refuses a GPU that burn could not use.
///
/// # Errors
/// As [`available`], and a number that no GPU has.
pub(crate) fn check(index: usize) -> Result<()> {
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

/// A library that burn's bindings do not find by their names.
fn not_loaded(library: &str) -> Error {
    let names = cudarc::get_lib_name_candidates(library).into_iter();
    let searched = names.map(|path| Searched {
        path,
        reason: "the system's loader does not find it".to_string(),
    });
    unavailable(
        format!(
            "lib{library} cannot be loaded by burn; install CUDA, or put the folder of the library \
             (of the Python package nvidia-cuda-nvrtc: nvidia/cu13/lib) into LD_LIBRARY_PATH"
        ),
        searched.collect(),
    )
}

/// The compiler reads CUDA's headers at run time. Without them kernels fail on a thread of burn's,
/// and reading a result gives zeros.
fn check_headers() -> Result<()> {
    let roots = match std::env::var("CUDA_PATH") {
        Ok(path) => vec![path],
        Err(_) => ["/usr/local/cuda", "/opt/cuda", "/usr"]
            .map(String::from)
            .to_vec(),
    };
    // The second is what the first includes; the Python packages have them in two.
    let needed = ["mma.h", "crt/mma.h"];
    let headers = |root: &String| needed.map(|header| format!("{root}/include/{header}"));
    let is_there = |path: &String| Path::new(path).is_file();
    if roots.iter().any(|root| headers(root).iter().all(is_there)) {
        return Ok(());
    }
    let missing = roots
        .iter()
        .flat_map(headers)
        .filter(|path| !is_there(path));
    let searched = missing.map(|path| Searched {
        path,
        reason: "No such file".to_string(),
    });
    Err(unavailable(
        "CUDA's headers are not there, and kernels are compiled at run time; install the CUDA \
         toolkit, or set CUDA_PATH to a folder with include/mma.h and include/crt/mma.h \
         (docs/gpu.md)"
            .to_string(),
        searched.collect(),
    ))
}

/// NCCL between the GPUs of this process, on burn's tensors.
pub(crate) fn nccl_reducers(timeout: Duration) -> NcclReducers {
    NcclReducers::new(NcclOptions::new(0), LogicalDevice::gpu_index, |_| {
        Box::new(CudaMemory)
    })
    .timeout(timeout)
}
