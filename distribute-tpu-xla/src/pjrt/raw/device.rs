//! Devices of a client, and descriptions of devices that need not exist.

use std::fmt;
use std::sync::Arc;

use super::api::{Api, call, non_null, string};
use super::bindings::*;
use super::client::ClientHandle;
use super::named;
use crate::pjrt::error::Result;
use crate::pjrt::value::Attributes;

/// What is known of a device, whether it is there or belongs to a topology only.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceDescription {
    /// Number of the device in the whole system; device assignments use it.
    pub id: i32,
    /// The process that the device belongs to, from 0.
    pub process_index: i32,
    /// The kind, such as `TPU v5 lite`.
    pub kind: String,
    /// One line for people.
    pub text: String,
    /// What the plugin says of it, such as `coords` and `core_on_chip`.
    pub attributes: Attributes,
}

impl DeviceDescription {
    /// Reads a description; its id and kind must be there, the rest may be unknown to the plugin.
    ///
    /// # Safety
    ///
    /// `raw` is a description of this plugin, alive during the call.
    pub(super) unsafe fn read(api: &Api, raw: *mut PJRT_DeviceDescription) -> Result<Self> {
        let mut id = PJRT_DeviceDescription_Id_Args {
            device_description: raw,
            ..Default::default()
        };
        let mut kind = PJRT_DeviceDescription_Kind_Args {
            device_description: raw,
            ..Default::default()
        };
        let mut process = PJRT_DeviceDescription_ProcessIndex_Args {
            device_description: raw,
            ..Default::default()
        };
        let mut text = PJRT_DeviceDescription_ToString_Args {
            device_description: raw,
            ..Default::default()
        };
        let mut attributes = PJRT_DeviceDescription_Attributes_Args {
            device_description: raw,
            ..Default::default()
        };
        // SAFETY: the description is alive, and each text is copied before the next call.
        unsafe {
            call!(api, PJRT_DeviceDescription_Id, id)?;
            call!(api, PJRT_DeviceDescription_Kind, kind)?;
            let kind = string(kind.device_kind, kind.device_kind_size);
            optional(call!(api, PJRT_DeviceDescription_ProcessIndex, process))?;
            optional(call!(api, PJRT_DeviceDescription_ToString, text))?;
            let text = string(text.to_string, text.to_string_size);
            optional(call!(api, PJRT_DeviceDescription_Attributes, attributes))?;
            let attributes = named::read(attributes.attributes, attributes.num_attributes)?;
            Ok(Self {
                id: id.id,
                process_index: process.process_index,
                kind,
                text,
                attributes,
            })
        }
    }
}

/// Lets a plugin be without a function whose answer has a sensible default.
fn optional(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_unimplemented() => Ok(()),
        other => other,
    }
}

/// A device as its client keeps it.
pub(super) struct DeviceEntry {
    pub raw: *mut PJRT_Device,
    pub description: DeviceDescription,
    pub local_hardware_id: i32,
    pub is_addressable: bool,
}

impl DeviceEntry {
    /// # Safety
    ///
    /// `raw` is null or a device of this plugin, alive during the call.
    pub unsafe fn read(api: &Api, raw: *mut PJRT_Device) -> Result<Self> {
        let raw = non_null("PJRT_Client_Devices", raw)?;
        let mut get = PJRT_Device_GetDescription_Args {
            device: raw,
            ..Default::default()
        };
        let mut here = PJRT_Device_IsAddressable_Args {
            device: raw,
            ..Default::default()
        };
        let mut local = PJRT_Device_LocalHardwareId_Args {
            device: raw,
            ..Default::default()
        };
        // SAFETY: the device is alive, and with it its description.
        unsafe {
            call!(api, PJRT_Device_GetDescription, get)?;
            let description = non_null("PJRT_Device_GetDescription", get.device_description)?;
            let description = DeviceDescription::read(api, description)?;
            call!(api, PJRT_Device_IsAddressable, here)?;
            local.local_hardware_id = -1;
            optional(call!(api, PJRT_Device_LocalHardwareId, local))?;
            let (local_hardware_id, is_addressable) =
                (local.local_hardware_id, here.is_addressable);
            Ok(Self {
                raw,
                description,
                local_hardware_id,
                is_addressable,
            })
        }
    }
}

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
