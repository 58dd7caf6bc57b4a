//! Devices of a client.

use std::fmt;
use std::sync::Arc;

use super::api::call;
use super::bindings::*;
use super::description::{DeviceDescription, DeviceEntry};
use super::handles::ClientHandle;
use crate::pjrt::error::Result;

/// A device of a [`Client`](super::Client). Cheap to clone; keeps the client open.
#[derive(Clone)]
pub struct Device {
    client: Arc<ClientHandle>,
    index: usize,
}

impl Device {
    /// `index` is one of the client's devices.
    pub(super) fn new(client: &Arc<ClientHandle>, index: usize) -> Self {
        Self {
            client: Arc::clone(client),
            index,
        }
    }

    pub(super) fn client(&self) -> &Arc<ClientHandle> {
        &self.client
    }

    /// The index of the device among the client's.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn raw(&self) -> *mut PJRT_Device {
        self.entry().raw
    }

    fn entry(&self) -> &DeviceEntry {
        &self.client.devices[self.index]
    }

    /// Id, kind and attributes.
    pub fn description(&self) -> &DeviceDescription {
        &self.entry().description
    }

    /// Number of the device in the whole system.
    pub fn id(&self) -> i32 {
        self.description().id
    }

    /// The kind, such as `TPU v5 lite`.
    pub fn kind(&self) -> &str {
        &self.description().kind
    }

    /// Number of the device on this host, or -1 if it is elsewhere or the plugin does not say.
    pub fn local_hardware_id(&self) -> i32 {
        self.entry().local_hardware_id
    }

    /// Whether this process can put buffers on it and run programs on it.
    pub fn is_addressable(&self) -> bool {
        self.entry().is_addressable
    }

    /// How the device's memory is used at this moment.
    ///
    /// # Errors
    ///
    /// The plugin's: XLA's CPU client does not say
    /// ([`is_unimplemented`](crate::pjrt::PjrtError::is_unimplemented)).
    pub fn memory_stats(&self) -> Result<DeviceMemoryStats> {
        let mut args = PJRT_Device_MemoryStats_Args {
            device: self.raw(),
            ..Default::default()
        };
        // SAFETY: the client keeps the device alive.
        unsafe { call!(&self.client.api, PJRT_Device_MemoryStats, args)? };
        Ok(DeviceMemoryStats {
            bytes_in_use: args.bytes_in_use,
            peak_bytes_in_use: args
                .peak_bytes_in_use_is_set
                .then_some(args.peak_bytes_in_use),
            bytes_limit: args.bytes_limit_is_set.then_some(args.bytes_limit),
            largest_alloc_bytes: args
                .largest_alloc_size_is_set
                .then_some(args.largest_alloc_size),
            num_allocs: args.num_allocs_is_set.then_some(args.num_allocs),
        })
    }
}

/// Two devices are equal if they are the same of the same client.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.client, &other.client) && self.index == other.index
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {})", self.id(), self.kind())
    }
}

/// How a device's memory is used.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemoryStats {
    /// Bytes that buffers and programs hold now.
    pub bytes_in_use: i64,
    /// The most there ever were.
    pub peak_bytes_in_use: Option<i64>,
    /// Bytes that can be used at all.
    pub bytes_limit: Option<i64>,
    /// The largest single allocation so far.
    pub largest_alloc_bytes: Option<i64>,
    /// How many allocations there are.
    pub num_allocs: Option<i64>,
}
