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
        Ok((0..crate::cuda::presence::available()?)
            .map(Self::Cuda)
            .collect())
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
            Self::Cuda(index) => crate::cuda::presence::check(index),
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

    /// Reads `cpu:0`, and TensorFlow's spellings of it: `CPU:0`, `/cpu:0`, `/device:CPU:0`,
    /// `/job:localhost/replica:0/task:0/device:CPU:0`. `gpu:0` is `cuda:0`.
    fn from_str(text: &str) -> Result<Self> {
        let unknown = || {
            let gpus = match cfg!(feature = "cuda") {
                true => " and cuda:0, cuda:1, ...",
                false => "",
            };
            Error::invalid(format!(
                "unknown device `{text}`: this build knows cpu:0, cpu:1, ...{gpus} (one replica \
                 each), also as /cpu:0 or /device:CPU:0"
            ))
        };
        let (kind, index) = kind_and_index(text)?.ok_or_else(unknown)?;
        match kind.as_str() {
            "cpu" => Ok(Self::Cpu(index)),
            #[cfg(feature = "cuda")]
            "cuda" | "gpu" => Ok(Self::Cuda(index)),
            #[cfg(not(feature = "cuda"))]
            "cuda" | "gpu" => Err(Error::invalid(format!("{text}: {WITHOUT_CUDA}"))),
            "tpu" => Err(Error::invalid(format!(
                "{text}: TPU cores are replicas of `TpuStrategy` (train --strategy tpu)"
            ))),
            _ => Err(unknown()),
        }
    }
}

/// The parts of a device's name in this process; nothing if it is not a name of one.
fn kind_and_index(text: &str) -> Result<Option<(String, usize)>> {
    let (path, device) = match text.strip_prefix('/') {
        None => ("", text),
        Some(path) => path.rsplit_once('/').unwrap_or(("", path)),
    };
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let part = part.to_ascii_lowercase();
        if ["job:localhost", "replica:0", "task:0"].contains(&part.as_str()) {
            continue;
        }
        return match part.split_once(':') {
            Some(("job" | "replica" | "task", _)) => Err(Error::invalid(format!(
                "{text}: `{part}` is another process; a strategy is given the devices of its own, \
                 such as cpu:0 or /job:localhost/replica:0/task:0/device:CPU:0"
            ))),
            _ => Ok(None),
        };
    }
    let device = device.to_ascii_lowercase();
    let device = device.strip_prefix("device:").unwrap_or(&device);
    let Some((kind, index)) = device.split_once(':') else {
        return Ok(None);
    };
    let digits = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    let index = index.parse().ok().filter(|_| digits);
    Ok(index.map(|index| (kind.to_string(), index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensorflows_spellings_of_a_device_are_known() {
        for text in [
            "cpu:3",
            "CPU:3",
            "/cpu:3",
            "/CPU:3",
            "/device:CPU:3",
            "device:cpu:3",
            "/job:localhost/device:CPU:3",
            "/job:localhost/replica:0/task:0/device:CPU:3",
            "/job:localhost/replica:0/task:0/cpu:3",
        ] {
            let device: LogicalDevice = text.parse().unwrap();
            assert_eq!(device, LogicalDevice::cpu(3), "{text}");
        }
    }

    #[test]
    fn other_names_are_refused_with_the_ones_that_are_known() {
        for text in [
            "",
            "/",
            "cpu",
            "/cpu",
            "cpu:",
            "cpu:-1",
            "cpu:+1",
            "cpu:1:2",
            "xpu:0",
            "//cpu:0:",
            "/device:CPU:0/",
            "/device:0",
            "/cpu:0/cpu:1",
            "/cpu:0/device:CPU:0",
        ] {
            let error = text.parse::<LogicalDevice>().unwrap_err().to_string();
            assert!(error.contains("cpu:0, cpu:1, ..."), "{text}: {error}");
        }
        let of = |text: &str| text.parse::<LogicalDevice>().unwrap_err().to_string();
        let other = of("/job:worker/replica:0/task:1/device:CPU:0");
        assert!(other.contains("`job:worker` is another process"), "{other}");
        assert!(of("/device:TPU:0").contains("TpuStrategy"));
    }

    #[test]
    fn gpus_have_tensorflows_names_too() {
        for text in ["cuda:1", "gpu:1", "/gpu:1", "/GPU:1", "/device:GPU:1"] {
            match text.parse::<LogicalDevice>() {
                Ok(device) => assert_eq!(device.gpu_index(), Some(1), "{text}"),
                Err(error) => assert!(error.to_string().contains("no CUDA"), "{error}"),
            }
        }
    }
}
