//! What the driver and NCCL say about this machine.

use std::fmt;

use super::options::NcclOptions;
use super::raw::{Cuda, Nccl};
use super::unavailable::NcclUnavailable;
use super::version::Version;

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its number among the visible ones.
    pub ordinal: usize,
    /// Its model.
    pub name: String,
    /// What tells it from all other ones.
    pub uuid: [u8; 16],
    /// Where it is plugged in.
    pub pci_bus_id: String,
    /// Its memory in bytes.
    pub memory_bytes: usize,
    /// The GPUs whose memory it can access.
    pub peers: Vec<usize>,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = self.memory_bytes as f64 / (1_u64 << 30) as f64;
        write!(
            f,
            "GPU {}: {} ({gib:.1} GiB) at {}, accesses {:?}",
            self.ordinal, self.name, self.pci_bus_id, self.peers
        )
    }
}

/// The two libraries and the GPUs of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Installation {
    /// The newest CUDA that the driver supports.
    pub driver: Version,
    /// Where the driver was found.
    pub driver_path: String,
    /// The version of NCCL.
    pub nccl: Version,
    /// Where NCCL was found.
    pub nccl_path: String,
    /// The GPUs.
    pub devices: Vec<DeviceInfo>,
}

/// Looks for the driver, NCCL and GPUs, for `doctor` commands. `options` says where to look; its
/// device need not exist.
///
/// # Errors
/// The first that is missing or does not work.
pub fn probe(options: &NcclOptions) -> Result<Installation, NcclUnavailable> {
    let cuda = Cuda::load(options.cuda_path())?;
    let nccl = Nccl::load(options.nccl_path())?;
    let devices = (0..cuda.count()?).map(|ordinal| cuda.describe(ordinal));
    Ok(Installation {
        devices: devices.collect::<Result<_, _>>()?,
        driver: cuda.version,
        driver_path: cuda.path.clone(),
        nccl: nccl.version,
        nccl_path: nccl.path.clone(),
    })
}
