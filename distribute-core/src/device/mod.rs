//! Logical devices: the names `cpu:0`, `cpu:1`, ... and what stands behind them.
//!
//! burn's flex backend knows one CPU device, a unit. A replica on `cpu:i` is therefore ours: a
//! thread of its own that runs burn's single-threaded kernels. TensorFlow calls the same thing a
//! logical device. GPUs come from crates of their own, as a [`GpuKind`] each: `distribute-cuda` has
//! `cuda:0`, `cuda:1`, ...

mod gpu_kind;
mod reducers;
mod shared_group;

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;

pub use gpu_kind::GpuKind;
pub use reducers::{DeviceReducer, DeviceReducers, DeviceReduction, JoinWorkers};
pub(crate) use shared_group::{Joined, SharedGroup, with_handle};

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
    /// The GPU with this number, of a kind that another crate brings.
    Gpu(&'static dyn GpuKind, usize),
}

impl LogicalDevice {
    /// The logical CPU device with this index.
    pub fn cpu(index: usize) -> Self {
        Self::Cpu(index)
    }

    /// One logical CPU device per core that this process may use.
    pub fn all_cpus() -> Vec<Self> {
        (0..available_cores()).map(Self::Cpu).collect()
    }

    /// burn's device behind the name, without autodiff.
    ///
    /// For a GPU that is not there, burn panics at the first use of its device:
    /// [`check`](Self::check) first, as strategies do.
    pub fn burn_device(self) -> Device {
        match self {
            Self::Cpu(_) => Device::flex(),
            Self::Gpu(kind, index) => kind.burn_device(index),
        }
    }

    /// The number of the GPU, if it is one.
    pub fn gpu_index(self) -> Option<usize> {
        match self {
            Self::Cpu(_) => None,
            Self::Gpu(_, index) => Some(index),
        }
    }

    /// Refuses a device that is not there.
    ///
    /// # Errors
    /// [`BackendUnavailable`](distribute_collectives::CollectiveError::BackendUnavailable) with the
    /// places that were searched.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Cpu(_) => Ok(()),
            Self::Gpu(kind, index) => kind.check(index),
        }
    }

    /// Reads the name of a CPU device, as [`from_str`](Self::from_str) does, or that of a GPU of
    /// one of these kinds. `gpu:0` is the first kind's.
    ///
    /// # Errors
    /// The text is not such a name; the error says which there are.
    pub fn parse(text: &str, gpus: &[&'static dyn GpuKind]) -> Result<Self> {
        let unknown = || {
            let names = gpus.iter().map(|kind| kind.name());
            let gpus: String = names
                .map(|name| format!(" and {name}:0, {name}:1, ..."))
                .collect();
            Error::invalid(format!(
                "unknown device `{text}`: this build knows cpu:0, cpu:1, ...{gpus} (one replica \
                 each), also as /cpu:0 or /device:CPU:0"
            ))
        };
        let (name, index) = kind_and_index(text)?.ok_or_else(unknown)?;
        let mut gpus = gpus.iter();
        if let Some(kind) = gpus.find(|kind| name == "gpu" || name == kind.name()) {
            return Ok(Self::Gpu(*kind, index));
        }
        match name.as_str() {
            "cpu" => Ok(Self::Cpu(index)),
            name if is_nvidias(name) => Err(Error::invalid(format!(
                "{text}: this build has no CUDA: build with --features cuda"
            ))),
            "tpu" => Err(Error::invalid(format!(
                "{text}: TPU cores are replicas of `TpuStrategy` (train --strategy tpu)"
            ))),
            _ => Err(unknown()),
        }
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
            Self::Gpu(kind, index) => write!(f, "{}:{index}", kind.name()),
        }
    }
}

impl FromStr for LogicalDevice {
    type Err = Error;

    /// Reads `cpu:0`, and TensorFlow's spellings of it: `CPU:0`, `/cpu:0`, `/device:CPU:0`,
    /// `/job:localhost/replica:0/task:0/device:CPU:0`. Names of GPUs are read by
    /// [`parse`](Self::parse), which the crates that bring GPUs call:
    /// `distribute::cuda::parse`.
    fn from_str(text: &str) -> Result<Self> {
        match kind_and_index(text)? {
            // Whether the build has them is not known here.
            Some((name, _)) if is_nvidias(&name) => Err(Error::invalid(format!(
                "{text} is a GPU: its name is read by `distribute::cuda::parse`, in a build \
                 with --features cuda"
            ))),
            _ => Self::parse(text, &[]),
        }
    }
}

fn is_nvidias(name: &str) -> bool {
    ["cuda", "gpu"].contains(&name)
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
            let read = LogicalDevice::parse(text, &[&Named("cuda")]).unwrap();
            assert_eq!(read.gpu_index(), Some(1), "{text}");
            let error = LogicalDevice::parse(text, &[]).unwrap_err().to_string();
            assert!(error.contains("this build has no CUDA"), "{error}");
            // The build may well have it.
            let error = text.parse::<LogicalDevice>().unwrap_err().to_string();
            assert!(error.contains("by `distribute::cuda::parse`"), "{error}");
        }
    }

    #[derive(Debug)]
    struct Named(&'static str);

    impl GpuKind for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn burn_device(&self, _: usize) -> Device {
            Device::flex()
        }

        fn check(&self, _: usize) -> Result<()> {
            Ok(())
        }

        fn reducers(
            &self,
            _: DeviceReduction,
            _: std::time::Duration,
        ) -> std::sync::Arc<dyn DeviceReducers> {
            unreachable!("nothing is reduced")
        }
    }

    #[test]
    fn gpus_are_read_by_the_names_of_their_kinds() {
        let kinds: [&'static dyn GpuKind; 2] = [&Named("cuda"), &Named("rocm")];
        let read = |text: &str| LogicalDevice::parse(text, &kinds);
        for (text, name) in [
            ("cuda:1", "cuda:1"),
            ("/device:GPU:1", "cuda:1"),
            ("ROCm:2", "rocm:2"),
            ("cpu:3", "cpu:3"),
        ] {
            assert_eq!(read(text).unwrap().to_string(), name);
        }
        assert_eq!(
            read("gpu:1").unwrap(),
            LogicalDevice::Gpu(&Named("cuda"), 1)
        );
        assert_ne!(read("rocm:1").unwrap(), read("cuda:1").unwrap());
        let mut order = ["rocm:0", "cuda:1", "cpu:9", "cuda:0"].map(|text| read(text).unwrap());
        order.sort();
        let order = order.map(|device| device.to_string());
        assert_eq!(order, ["cpu:9", "cuda:0", "cuda:1", "rocm:0"]);
        let error = read("xpu:0").unwrap_err().to_string();
        let known = "cpu:0, cpu:1, ... and cuda:0, cuda:1, ... and rocm:0, rocm:1, ... (one";
        assert!(error.contains(known), "{error}");
    }
}
