//! A plugin's fixed description of a device.

use super::api::{Api, call, non_null, string};
use super::bindings::*;
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
