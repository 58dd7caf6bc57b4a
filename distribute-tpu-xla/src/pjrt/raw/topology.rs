//! Named sets of devices to compile for, whether they are there or not.

use std::fmt;
use std::sync::Arc;

use super::api::{Api, call, non_null, string};
use super::bindings::*;
use super::client::raw_program;
use super::description::DeviceDescription;
use super::executable::{Compiler, Executable};
use super::handles::TopologyHandle;
use super::named;
use crate::pjrt::compile_options::CompileOptions;
use crate::pjrt::error::Result;
use crate::pjrt::program::Program;
use crate::pjrt::value::{Attributes, Value};

/// A named set of devices, to compile for them ahead of time.
///
/// Cheap to clone.
#[derive(Clone)]
pub struct Topology {
    handle: Arc<TopologyHandle>,
    name: Arc<str>,
    devices: Arc<[DeviceDescription]>,
}

impl Topology {
    pub(super) fn create(api: Arc<Api>, name: &str, options: &[(&str, Value)]) -> Result<Self> {
        let named = named::write(options);
        let mut args = PJRT_TopologyDescription_Create_Args {
            topology_name: name.as_ptr().cast(),
            topology_name_size: name.len(),
            create_options: named.as_ptr(),
            num_options: named.len(),
            ..Default::default()
        };
        // SAFETY: name and options outlive the call.
        unsafe { call!(&api, PJRT_TopologyDescription_Create, args)? };
        let raw = non_null("PJRT_TopologyDescription_Create", args.topology)?;
        let handle = TopologyHandle { api, raw };
        let devices = handle.devices()?.into();
        Ok(Self {
            handle: Arc::new(handle),
            name: name.into(),
            devices,
        })
    }

    /// The name it was asked for by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The devices of the topology.
    pub fn devices(&self) -> &[DeviceDescription] {
        &self.devices
    }

    /// The platform, such as `tpu`.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn platform_name(&self) -> Result<String> {
        let topology = self.handle.raw;
        let mut args = PJRT_TopologyDescription_PlatformName_Args {
            topology,
            ..Default::default()
        };
        // SAFETY: the topology is alive; the text is copied.
        unsafe {
            call!(
                &self.handle.api,
                PJRT_TopologyDescription_PlatformName,
                args
            )?;
            Ok(string(args.platform_name, args.platform_name_size))
        }
    }

    /// The platform's own version text.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn platform_version(&self) -> Result<String> {
        let topology = self.handle.raw;
        let mut args = PJRT_TopologyDescription_PlatformVersion_Args {
            topology,
            ..Default::default()
        };
        // SAFETY: the topology is alive; the text is copied.
        unsafe {
            call!(
                &self.handle.api,
                PJRT_TopologyDescription_PlatformVersion,
                args
            )?;
            Ok(string(args.platform_version, args.platform_version_size))
        }
    }

    /// What the plugin says of the whole, such as the bounds of the chips' mesh.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn attributes(&self) -> Result<Attributes> {
        let topology = self.handle.raw;
        let mut args = PJRT_TopologyDescription_Attributes_Args {
            topology,
            ..Default::default()
        };
        // SAFETY: the topology is alive; the attributes are copied.
        unsafe {
            call!(&self.handle.api, PJRT_TopologyDescription_Attributes, args)?;
            named::read(args.attributes, args.num_attributes)
        }
    }

    /// Compiles the text of a StableHLO module for these devices. Blocks as long as the compiler
    /// takes; no device is needed.
    ///
    /// # Errors
    ///
    /// The compiler's, with line and column in `stablehlo`; code 8 (`RESOURCE_EXHAUSTED`) if the
    /// program does not fit into the devices' memory.
    pub fn compile(&self, stablehlo: &str, options: &CompileOptions) -> Result<Executable> {
        let (api, options) = (&self.handle.api, options.encode()?);
        let program = Program::mlir(stablehlo);
        let program = raw_program(&program);
        let mut args = PJRT_Compile_Args {
            topology: self.handle.raw,
            program: &program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            ..Default::default()
        };
        // SAFETY: topology, program and options outlive the call, which only reads them; no client
        // is given.
        unsafe {
            call!(api, PJRT_Compile, args)?;
            let compiler = Compiler::Topology {
                _topology: Arc::clone(&self.handle),
            };
            Executable::take(api, "PJRT_Compile", args.executable, compiler)
        }
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topology({}, {} devices)", self.name, self.devices.len())
    }
}
