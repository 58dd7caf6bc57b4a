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
    /// The number of the GPU among the visible ones.
    pub ordinal: usize,
    /// The model of the GPU.
    pub name: String,
    /// What tells it from all other ones.
    pub uuid: [u8; 16],
    /// Where the GPU is plugged in.
    pub pci_bus_id: String,
    /// The memory of the GPU, in bytes.
    pub memory_bytes: usize,
    /// The GPUs whose memory it can access.
    pub peers: Vec<usize>,
    /// How the GPU reaches each other one.
    pub links: Vec<PeerLink>,
}

/// How a GPU reaches another one, as the driver sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerLink {
    /// The other GPU.
    pub device: usize,
    /// Whether it can read and write the other's memory.
    pub access: bool,
    /// Whether atomic operations on the other's memory work: over NVLink they do, over PCIe they
    /// do not.
    pub native_atomics: bool,
    /// The driver's rank of the link, 0 is the best of the machine; `None` without access.
    pub performance_rank: Option<i32>,
}

impl fmt::Display for PeerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.access, self.native_atomics) {
            (false, _) => return write!(f, "GPU {} through host memory", self.device),
            (true, true) => "with atomics (NVLink)",
            (true, false) => "without atomics (PCIe)",
        };
        write!(f, "GPU {} directly, {kind}", self.device)?;
        match self.performance_rank {
            Some(rank) => write!(f, ", rank {rank}"),
            None => Ok(()),
        }
    }
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

/// The CUDA driver and the GPUs of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Driver {
    /// The newest CUDA that the driver supports.
    pub version: Version,
    /// Where the driver was found.
    pub path: String,
    /// The GPUs.
    pub devices: Vec<DeviceInfo>,
}

impl Driver {
    /// Refuses a GPU that the driver does not show.
    ///
    /// # Errors
    /// [`NcclUnavailable::NoDevice`].
    pub fn check(&self, device: usize) -> Result<(), NcclUnavailable> {
        let count = self.devices.len();
        if device < count {
            Ok(())
        } else {
            Err(NcclUnavailable::NoDevice { device, count })
        }
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

/// Looks for the driver and GPUs alone, which is what a framework for GPUs needs.
///
/// # Errors
/// The driver is absent, too old or does not work.
pub fn driver(options: &NcclOptions) -> Result<Driver, NcclUnavailable> {
    let cuda = Cuda::load(options.cuda_library.as_deref())?;
    let devices = (0..cuda.count()?).map(|ordinal| cuda.describe(ordinal));
    Ok(Driver {
        devices: devices.collect::<Result<_, _>>()?,
        version: cuda.version,
        path: cuda.path.clone(),
    })
}

/// Looks for NCCL alone: its version, and where it was found.
///
/// # Errors
/// It is absent, too old or lacks a function.
pub fn library(options: &NcclOptions) -> Result<(Version, String), NcclUnavailable> {
    let nccl = Nccl::load(options.nccl_library.as_deref())?;
    Ok((nccl.version, nccl.path.clone()))
}

/// Looks for the driver, NCCL and GPUs, for `doctor` commands. `options` says where to look; its
/// device need not exist.
///
/// # Errors
/// The first that is missing or does not work.
pub fn probe(options: &NcclOptions) -> Result<Installation, NcclUnavailable> {
    let cuda = driver(options)?;
    let (nccl, nccl_path) = library(options)?;
    Ok(Installation {
        devices: cuda.devices,
        driver: cuda.version,
        driver_path: cuda.path,
        nccl,
        nccl_path,
    })
}
