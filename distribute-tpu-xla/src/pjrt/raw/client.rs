//! A client: a plugin's devices, opened.

use std::ffi::c_int;
use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::api::{Api, call, lent, log_destroy, malformed, non_null, string};
use super::bindings::*;
use super::buffer::Buffer;
use super::device::{Device, DeviceEntry};
use super::execute::LoadedExecutable;
use super::named;
use crate::pjrt::compile_options::CompileOptions;
use crate::pjrt::element::{Element, ElementType};
use crate::pjrt::error::Result;
use crate::pjrt::program::Program;
use crate::pjrt::value::Value;

/// The C API's client; buffers, devices and programs keep it alive.
pub(super) struct ClientHandle {
    pub api: Arc<Api>,
    pub raw: *mut PJRT_Client,
    pub devices: Vec<DeviceEntry>,
    platform_name: String,
    platform_version: String,
    process_index: i32,
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

/// A plugin's devices, opened by this process.
///
/// Cheap to clone. The devices are released when the client and all its buffers and programs are
/// gone.
#[derive(Clone)]
pub struct Client {
    handle: Arc<ClientHandle>,
}

impl Client {
    pub(super) fn create(api: Arc<Api>, options: &[(&str, Value)]) -> Result<Self> {
        let named = named::write(options);
        let mut args = PJRT_Client_Create_Args {
            create_options: named.as_ptr(),
            num_options: named.len(),
            ..Default::default()
        };
        // SAFETY: the options, and the names and texts in them, outlive the call. No callback of a
        // key-value store is given.
        unsafe { call!(&api, PJRT_Client_Create, args)? };
        let mut handle = ClientHandle {
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
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    pub(super) fn from_handle(handle: &Arc<ClientHandle>) -> Self {
        Self {
            handle: Arc::clone(handle),
        }
    }

    /// The platform, such as `tpu` or `cpu`.
    pub fn platform_name(&self) -> &str {
        &self.handle.platform_name
    }

    /// The platform's own version text; of a TPU it has several lines.
    pub fn platform_version(&self) -> &str {
        &self.handle.platform_version
    }

    /// Number of this process among those that share the devices, from 0.
    pub fn process_index(&self) -> i32 {
        self.handle.process_index
    }

    /// All devices, those of other processes too, in the plugin's order.
    pub fn devices(&self) -> Vec<Device> {
        self.devices_where(|_| true)
    }

    /// The devices that this process can use.
    pub fn addressable_devices(&self) -> Vec<Device> {
        self.devices_where(|device| device.is_addressable)
    }

    fn devices_where(&self, keep: impl Fn(&DeviceEntry) -> bool) -> Vec<Device> {
        let all = self.handle.devices.iter().enumerate();
        let kept = all.filter(|(_, device)| keep(device));
        kept.map(|(index, _)| Device::new(&self.handle, index))
            .collect()
    }

    /// Compiles the text of a StableHLO module and loads it onto the devices. Blocks as long as
    /// the compiler takes.
    ///
    /// # Errors
    ///
    /// The compiler's, with line and column in `stablehlo`, and for more replicas than devices.
    pub fn compile(&self, stablehlo: &str, options: &CompileOptions) -> Result<LoadedExecutable> {
        self.compile_program(&Program::mlir(stablehlo), options)
    }

    /// Compiles a program in any format that the plugin takes.
    ///
    /// # Errors
    ///
    /// As [`compile`](Self::compile).
    pub fn compile_program(
        &self,
        program: &Program,
        options: &CompileOptions,
    ) -> Result<LoadedExecutable> {
        let options = options.encode()?;
        let program = raw_program(program);
        let mut args = PJRT_Client_Compile_Args {
            client: self.handle.raw,
            program: &program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            ..Default::default()
        };
        // SAFETY: program and options outlive the call, which only reads them.
        unsafe {
            call!(&self.handle.api, PJRT_Client_Compile, args)?;
            LoadedExecutable::take(&self.handle, "PJRT_Client_Compile", args.executable)
        }
    }

    /// Loads a program that [`Executable::serialize`](super::Executable::serialize) wrote, with
    /// the options that it was compiled with or, if given, others.
    ///
    /// The bytes must come from the same version of the same plugin. They are code: load what you
    /// trust.
    ///
    /// # Errors
    ///
    /// The plugin's, if they are not what it wrote.
    pub fn load(
        &self,
        serialized: &[u8],
        options: Option<&CompileOptions>,
    ) -> Result<LoadedExecutable> {
        let options = options.map_or(Ok(Vec::new()), CompileOptions::encode)?;
        let mut args = PJRT_Executable_DeserializeAndLoad_Args {
            client: self.handle.raw,
            serialized_executable: serialized.as_ptr().cast(),
            serialized_executable_size: serialized.len(),
            ..Default::default()
        };
        if !options.is_empty() {
            args.overridden_serialized_compile_options = options.as_ptr().cast();
            args.overridden_serialized_compile_options_size = options.len();
        }
        // SAFETY: both byte strings outlive the call.
        unsafe {
            call!(&self.handle.api, PJRT_Executable_DeserializeAndLoad, args)?;
            let function = "PJRT_Executable_DeserializeAndLoad";
            LoadedExecutable::take(&self.handle, function, args.loaded_executable)
        }
    }

    /// Copies a row-major array to a device. The elements may be changed or dropped when it
    /// returns; the device may still be receiving them.
    ///
    /// # Errors
    ///
    /// If the number of elements is not the product of `dims`, if the device is not one of this
    /// client's, and the plugin's.
    pub fn buffer<T: Element>(
        &self,
        elements: &[T],
        dims: &[usize],
        device: &Device,
    ) -> Result<Buffer> {
        self.buffer_from_bytes(T::TYPE, T::bytes_of(elements), dims, device)
    }

    /// Copies bytes in the CPU's byte order to a device.
    ///
    /// # Errors
    ///
    /// As [`buffer`](Self::buffer), and for element types that have no form in host memory.
    pub fn buffer_from_bytes(
        &self,
        element_type: ElementType,
        bytes: &[u8],
        dims: &[usize],
        device: &Device,
    ) -> Result<Buffer> {
        Buffer::from_host(&self.handle, element_type, bytes, dims, device)
    }

    /// The devices that the plugin chooses for these replicas and partitions: global ids, in the
    /// form of [`CompileOptions::device_assignment`].
    ///
    /// # Errors
    ///
    /// The plugin's, if there are too few devices.
    pub fn default_device_assignment(
        &self,
        replicas: usize,
        partitions: usize,
    ) -> Result<Vec<i64>> {
        let options = CompileOptions::replicas(replicas).partitions(partitions);
        options.encode()?; // For its check that both are in the range of an `int`.
        let mut ids: Vec<c_int> = vec![0; options.num_devices()];
        let mut args = PJRT_Client_DefaultDeviceAssignment_Args {
            client: self.handle.raw,
            num_replicas: replicas as c_int,
            num_partitions: partitions as c_int,
            default_assignment_size: ids.len(),
            default_assignment: ids.as_mut_ptr(),
            ..Default::default()
        };
        // SAFETY: the array has the length that is given.
        unsafe { call!(&self.handle.api, PJRT_Client_DefaultDeviceAssignment, args)? };
        Ok(ids.into_iter().map(i64::from).collect())
    }

    /// How many [`Buffer`]s of this client exist in this process; to find leaks.
    pub fn live_buffers(&self) -> usize {
        self.handle.live_buffers.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Client({}, {} devices)",
            self.platform_name(),
            self.handle.devices.len()
        )
    }
}

impl ClientHandle {
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

/// A program in the C API's form. It borrows the code, which no plugin changes.
pub(super) fn raw_program(program: &Program) -> PJRT_Program {
    PJRT_Program {
        code: program.code.as_ptr().cast_mut().cast(),
        code_size: program.code.len(),
        format: program.format.as_ptr().cast(),
        format_size: program.format.len(),
        ..Default::default()
    }
}
