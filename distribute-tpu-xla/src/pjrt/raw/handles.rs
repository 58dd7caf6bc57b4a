//! The C API's clients and topologies, which live as long as anything that was made from them.

use std::sync::atomic::{AtomicI32, AtomicUsize};
use std::sync::{Arc, Mutex};

use super::api::{Api, call, lent, log_destroy, malformed, non_null, string};
use super::bindings::*;
use super::description::{DeviceDescription, DeviceEntry};
use super::named;
use crate::pjrt::error::Result;
use crate::pjrt::value::Value;

/// The C API's client; buffers, devices and programs keep it alive.
pub(super) struct ClientHandle {
    pub api: Arc<Api>,
    pub raw: *mut PJRT_Client,
    pub devices: Vec<DeviceEntry>,
    pub platform_name: String,
    pub platform_version: String,
    pub process_index: i32,
    pub live_buffers: AtomicUsize,
    /// Held while an execution is handed to the devices: all of them must see two executions in
    /// the same order, or their all-reduces wait for each other forever.
    pub launch: Mutex<()>,
    pub launches: AtomicI32,
}

// SAFETY: the C API lets any thread use a client and its devices.
unsafe impl Send for ClientHandle {}
// SAFETY: as above; what changes here is atomic or locked.
unsafe impl Sync for ClientHandle {}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        let mut args = PJRT_Client_Destroy_Args {
            client: self.raw,
            ..Default::default()
        };
        // SAFETY: this value owns the client, and whatever was made from it is gone: each of them
        // held an `Arc` of this value.
        log_destroy(unsafe { call!(&self.api, PJRT_Client_Destroy, args) });
    }
}

impl ClientHandle {
    /// Opens the devices.
    pub fn open(api: Arc<Api>, options: &[(&str, Value)]) -> Result<Self> {
        let named = named::write(options);
        let mut args = PJRT_Client_Create_Args {
            create_options: named.as_ptr(),
            num_options: named.len(),
            ..Default::default()
        };
        // SAFETY: the options, and the names and texts in them, outlive the call. No callback of a
        // key-value store is given.
        unsafe { call!(&api, PJRT_Client_Create, args)? };
        let mut handle = Self {
            raw: non_null("PJRT_Client_Create", args.client)?,
            api,
            devices: Vec::new(),
            platform_name: String::new(),
            platform_version: String::new(),
            process_index: 0,
            live_buffers: AtomicUsize::new(0),
            launch: Mutex::new(()),
            launches: AtomicI32::new(0),
        };
        // From here on an error drops `handle`, and that closes the client.
        handle.describe()?;
        Ok(handle)
    }

    /// Reads what does not change: devices, platform, process.
    fn describe(&mut self) -> Result<()> {
        let client = self.raw;
        let mut devices = PJRT_Client_Devices_Args {
            client,
            ..Default::default()
        };
        let mut name = PJRT_Client_PlatformName_Args {
            client,
            ..Default::default()
        };
        let mut version = PJRT_Client_PlatformVersion_Args {
            client,
            ..Default::default()
        };
        let mut process = PJRT_Client_ProcessIndex_Args {
            client,
            ..Default::default()
        };
        // SAFETY: the client is alive; its devices live as long as it does, and texts are copied.
        unsafe {
            call!(&self.api, PJRT_Client_Devices, devices)?;
            for raw in lent(devices.devices, devices.num_devices) {
                self.devices.push(DeviceEntry::read(&self.api, *raw)?);
            }
            call!(&self.api, PJRT_Client_PlatformName, name)?;
            self.platform_name = string(name.platform_name, name.platform_name_size);
            call!(&self.api, PJRT_Client_PlatformVersion, version)?;
            self.platform_version = string(version.platform_version, version.platform_version_size);
            call!(&self.api, PJRT_Client_ProcessIndex, process)?;
        }
        self.process_index = process.process_index;
        Ok(())
    }

    /// The place of a device among [`devices`](Self::devices).
    pub fn index_of(&self, function: &'static str, raw: *mut PJRT_Device) -> Result<usize> {
        let found = self.devices.iter().position(|device| device.raw == raw);
        found.ok_or_else(|| malformed(function, "it returned a device that the client has not"))
    }
}

/// The C API's topology; programs compiled for it keep it alive.
pub(super) struct TopologyHandle {
    pub api: Arc<Api>,
    pub raw: *mut PJRT_TopologyDescription,
}

// SAFETY: the C API lets any thread use a topology.
unsafe impl Send for TopologyHandle {}
// SAFETY: a topology does not change.
unsafe impl Sync for TopologyHandle {}

impl Drop for TopologyHandle {
    fn drop(&mut self) {
        let mut args = PJRT_TopologyDescription_Destroy_Args {
            topology: self.raw,
            ..Default::default()
        };
        // SAFETY: this value owns the topology.
        log_destroy(unsafe { call!(&self.api, PJRT_TopologyDescription_Destroy, args) });
    }
}

impl TopologyHandle {
    /// The devices of the topology.
    pub fn devices(&self) -> Result<Vec<DeviceDescription>> {
        let mut args = PJRT_TopologyDescription_GetDeviceDescriptions_Args {
            topology: self.raw,
            ..Default::default()
        };
        // SAFETY: the topology is alive, and with it the descriptions.
        unsafe {
            call!(
                &self.api,
                PJRT_TopologyDescription_GetDeviceDescriptions,
                args
            )?;
            let function = "PJRT_TopologyDescription_GetDeviceDescriptions";
            let all = lent(args.descriptions, args.num_descriptions)
                .iter()
                .map(|raw| DeviceDescription::read(&self.api, non_null(function, *raw)?));
            all.collect()
        }
    }
}
