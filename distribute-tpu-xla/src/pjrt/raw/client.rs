//! A client: a plugin's devices, opened.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::api::{Api, call};
use super::bindings::*;
use super::buffer::Buffer;
use super::description::DeviceEntry;
use super::device::Device;
use super::execute::LoadedExecutable;
use super::handles::ClientHandle;
use crate::pjrt::compile_options::CompileOptions;
use crate::pjrt::element::{Element, ElementType};
use crate::pjrt::error::Result;
use crate::pjrt::program::Program;
use crate::pjrt::value::Value;

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
        Ok(Self {
            handle: Arc::new(ClientHandle::open(api, options)?),
        })
    }

    /// The platform, such as `tpu` or `cpu`.
    pub fn platform_name(&self) -> &str {
        &self.handle.platform_name
    }

    /// The platform's own version text; of a TPU it has several lines.
    pub fn platform_version(&self) -> &str {
        &self.handle.platform_version
    }

    /// Number of this process among the processes that share the devices, from 0.
    pub fn process_index(&self) -> i32 {
        self.handle.process_index
    }

    /// All devices, including other processes' devices, in the plugin's order.
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

impl Buffer {
    /// The client whose device it is on.
    pub fn client(&self) -> Client {
        Client {
            handle: Arc::clone(self.client_handle()),
        }
    }
}

impl LoadedExecutable {
    /// The client it is loaded into.
    pub fn client(&self) -> Client {
        Client {
            handle: Arc::clone(self.client_handle()),
        }
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
