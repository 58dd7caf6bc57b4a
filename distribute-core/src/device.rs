//! Logical devices: the names `cpu:0`, `cpu:1`, ... and what stands behind them.
//!
//! burn's flex backend knows one CPU device, a unit. A replica on `cpu:i` is therefore ours: a
//! thread of its own that runs burn's single-threaded kernels. TensorFlow calls the same thing a
//! logical device. `cuda:0`, `cuda:1`, ... are the GPUs, as the CUDA driver numbers the visible
//! ones; a build without the feature `cuda` has no name for them.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;

use crate::{Error, Result};

/// A device that one replica runs on, for example `cpu:0`.
///
/// ```
/// use distribute_core::LogicalDevice;
///
/// let device: LogicalDevice = "cpu:1".parse()?;
/// assert_eq!(device, LogicalDevice::cpu(1));
/// assert_eq!(device.to_string(), "cpu:1");
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LogicalDevice {
    /// A replica thread on the host's processors.
    Cpu(usize),
    /// An NVIDIA GPU (feature `cuda`).
    #[cfg(feature = "cuda")]
    Cuda(usize),
}

/// What is said about devices that a build does not have.
#[cfg(not(feature = "cuda"))]
pub(crate) const WITHOUT_CUDA: &str = "this build has no CUDA: build with --features cuda";

impl LogicalDevice {
    /// The logical CPU device with this index.
    pub fn cpu(index: usize) -> Self {
        Self::Cpu(index)
    }

    /// One logical CPU device per core that this process may use.
    pub fn all_cpus() -> Vec<Self> {
        (0..available_cores()).map(Self::Cpu).collect()
    }

    /// The GPU with this number (feature `cuda`).
    #[cfg(feature = "cuda")]
    pub fn cuda(index: usize) -> Self {
        Self::Cuda(index)
    }

    /// Every GPU of this machine (feature `cuda`).
    ///
    /// # Errors
    /// [`BackendUnavailable`](distribute_collectives::CollectiveError::BackendUnavailable) with the
    /// places that were searched, if there is no driver that works, or something else that burn's
    /// CUDA backend loads is missing.
    #[cfg(feature = "cuda")]
    pub fn all_gpus() -> Result<Vec<Self>> {
        Ok((0..crate::cuda::available()?).map(Self::Cuda).collect())
    }

    /// burn's device behind the name, without autodiff.
    ///
    /// For a GPU that is not there, burn panics at the first use of its device:
    /// [`check`](Self::check) first, as strategies do.
    pub fn burn_device(self) -> Device {
        match self {
            Self::Cpu(_) => Device::flex(),
            #[cfg(feature = "cuda")]
            Self::Cuda(index) => Device::cuda(index),
        }
    }

    /// The number of the GPU, if it is one.
    pub fn gpu_index(self) -> Option<usize> {
        match self {
            Self::Cpu(_) => None,
            #[cfg(feature = "cuda")]
            Self::Cuda(index) => Some(index),
        }
    }

    pub(crate) fn is_gpu(self) -> bool {
        self.gpu_index().is_some()
    }

    /// Refuses a device that is not there.
    ///
    /// # Errors
    /// [`BackendUnavailable`](distribute_collectives::CollectiveError::BackendUnavailable) with the
    /// places that were searched.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Cpu(_) => Ok(()),
            #[cfg(feature = "cuda")]
            Self::Cuda(index) => crate::cuda::check(index),
        }
    }

    pub(crate) fn check_all(devices: &[Self]) -> Result<()> {
        devices.iter().try_for_each(|device| device.check())
    }
}

/// How many cores this process may use (affinity and control groups are respected).
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl fmt::Display for LogicalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(index) => write!(f, "cpu:{index}"),
            #[cfg(feature = "cuda")]
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for LogicalDevice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || {
            let gpus = match cfg!(feature = "cuda") {
                true => " and cuda:0, cuda:1, ...",
                false => "",
            };
            Error::invalid(format!(
                "unknown device `{text}`: this build knows cpu:0, cpu:1, ...{gpus} (one replica \
                 each)"
            ))
        };
        let (kind, index) = text.split_once(':').ok_or_else(unknown)?;
        match (kind.to_ascii_lowercase().as_str(), index.parse()) {
            ("cpu", Ok(index)) => Ok(Self::Cpu(index)),
            #[cfg(feature = "cuda")]
            ("cuda" | "gpu", Ok(index)) => Ok(Self::Cuda(index)),
            #[cfg(not(feature = "cuda"))]
            ("cuda" | "gpu", Ok(_)) => Err(Error::invalid(format!("{text}: {WITHOUT_CUDA}"))),
            _ => Err(unknown()),
        }
    }
}
