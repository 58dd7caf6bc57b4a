//! Settings of a communicator over NCCL.

use std::path::PathBuf;
use std::time::Duration;

use crate::communicator::Description;
use crate::error::{CollectiveError, Result};
use crate::options::Order;

/// The environment variable that names NCCL's file.
pub const NCCL_LIBRARY: &str = "DISTRIBUTE_NCCL_LIBRARY";
/// The environment variable that names the CUDA driver's file.
pub const CUDA_LIBRARY: &str = "DISTRIBUTE_CUDA_LIBRARY";

/// Settings of one rank of a group over NCCL; all ranks must have the same ones but for `device`
/// and the two files.
///
/// ```
/// use std::time::Duration;
/// use distribute_collectives::nccl::NcclOptions;
///
/// let options = NcclOptions::new(0).timeout(Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct NcclOptions {
    pub(super) device: usize,
    pub(super) nccl_library: Option<PathBuf>,
    pub(super) cuda_library: Option<PathBuf>,
    pub(super) timeout: Duration,
    pub(super) init_timeout: Duration,
    pub(super) grace: Duration,
    pub(super) staging_bytes: usize,
    pub(super) own_order: bool,
}

impl NcclOptions {
    /// A rank on GPU `device`, as the driver numbers the visible ones. Takes the libraries' files
    /// from the variables [`NCCL_LIBRARY`] and [`CUDA_LIBRARY`], where they are set.
    pub fn new(device: usize) -> Self {
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
        NcclOptions {
            device,
            nccl_library: path(NCCL_LIBRARY),
            cuda_library: path(CUDA_LIBRARY),
            timeout: Duration::from_secs(30),
            init_timeout: Duration::from_secs(60),
            grace: Duration::from_secs(5),
            staging_bytes: 16 << 20,
            own_order: false,
        }
    }

    /// Another GPU.
    pub fn device(mut self, device: usize) -> Self {
        self.device = device;
        self
    }

    /// NCCL's file (default: that of [`NCCL_LIBRARY`], else `libnccl.so.2` or `libnccl.so` where
    /// the system's loader finds them).
    pub fn nccl_library(mut self, path: impl Into<PathBuf>) -> Self {
        self.nccl_library = Some(path.into());
        self
    }

    /// The CUDA driver's file (default: that of [`CUDA_LIBRARY`], else `libcuda.so.1`).
    pub fn cuda_library(mut self, path: impl Into<PathBuf>) -> Self {
        self.cuda_library = Some(path.into());
        self
    }

    /// The deadline of what NCCL does in one operation (default 30 s), from the moment on when all
    /// ranks have come to it. How long to wait for that is the deadline of the group.
    /// `Duration::MAX` is no deadline.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long NCCL may take to connect the ranks (default 60 s).
    pub fn init_timeout(mut self, timeout: Duration) -> Self {
        self.init_timeout = timeout;
        self
    }

    /// How long an operation may go on after a rank was lost (it may have done its part), and how
    /// long NCCL may take to end one that is aborted (default 5 s, above 0).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Memory on the GPU, and as much page-locked host memory, for operations on buffers in host
    /// memory (default 16 MiB; at least 8 bytes per rank). Longer buffers go through it piece by
    /// piece. Taken at the first such operation.
    pub fn staging_bytes(mut self, bytes: usize) -> Self {
        self.staging_bytes = bytes;
        self
    }

    /// Allows a group in canonical order: what NCCL reduces is in NCCL's order nevertheless, only
    /// the operations of the group itself keep theirs. Refused by default.
    pub fn own_order(mut self, allowed: bool) -> Self {
        self.own_order = allowed;
        self
    }

    /// Refuses values that cannot be, and what was asked of the group and NCCL does not do.
    pub(super) fn check(&self, group: &Description) -> Result<()> {
        let least = group.world_size.saturating_mul(8);
        let what = if self.staging_bytes < least {
            format!(
                "staging_bytes is at least 8 per rank, so {least}, not {}",
                self.staging_bytes
            )
        } else if self.grace.is_zero() {
            "the grace of NCCL must be above 0".to_string()
        } else if group.order == Order::Canonical && !self.own_order {
            let what = "NCCL does not combine in rank order: use Order::Fast, or another transport";
            what.to_string()
        } else {
            return Ok(());
        };
        Err(CollectiveError::InvalidOption { what })
    }
}
