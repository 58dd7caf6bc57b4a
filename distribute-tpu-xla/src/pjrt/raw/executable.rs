//! Compiled programs, and what the compiler says about them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use super::api::{Api, call, lent, log_destroy, malformed, non_null, string};
use super::bindings::*;
use super::handles::{ClientHandle, TopologyHandle};
use super::named;
use crate::pjrt::element::{ArrayShape, ElementType};
use crate::pjrt::error::Result;
use crate::pjrt::program::Program;
use crate::pjrt::value::Attributes;
use crate::sync::lock;

/// What an executable was compiled with, kept alive for it.
pub(super) enum Compiler {
    Client { _client: Arc<ClientHandle> },
    Topology { _topology: Arc<TopologyHandle> },
}

struct ExecutableHandle {
    api: Arc<Api>,
    raw: *mut PJRT_Executable,
    /// Plugins compute some answers at the first question and lend them: one question at a time.
    questions: Mutex<()>,
    _compiler: Compiler,
}

// SAFETY: the C API lets any thread use an executable.
unsafe impl Send for ExecutableHandle {}
// SAFETY: questions are asked one at a time, see `questions`.
unsafe impl Sync for ExecutableHandle {}

impl Drop for ExecutableHandle {
    fn drop(&mut self) {
        let mut args = PJRT_Executable_Destroy_Args {
            executable: self.raw,
            ..Default::default()
        };
        // SAFETY: this value owns the executable.
        log_destroy(unsafe { call!(&self.api, PJRT_Executable_Destroy, args) });
    }
}

/// A compiled program that is not loaded onto devices: it can be asked, and stored.
///
/// Cheap to clone.
#[derive(Clone)]
pub struct Executable {
    handle: Arc<ExecutableHandle>,
}

/// Bytes that a program needs on each device, as the compiler laid it out.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompiledMemoryStats {
    /// The code of the program.
    pub generated_code_bytes: i64,
    /// The arguments of the program.
    pub argument_bytes: i64,
    /// The results of the program, including results that reuse the memory of a donated argument.
    pub output_bytes: i64,
    /// Results that reuse the memory of a donated argument.
    pub alias_bytes: i64,
    /// Everything in between.
    pub temp_bytes: i64,
    /// The most at any moment; 0 if the plugin does not say.
    pub peak_bytes: i64,
    /// All of it; 0 if the plugin does not say.
    pub total_bytes: i64,
    /// Arguments that stay in host memory.
    pub host_argument_bytes: i64,
    /// Results that stay in host memory.
    pub host_output_bytes: i64,
    /// Temporary values in host memory.
    pub host_temp_bytes: i64,
}

impl Executable {
    /// Takes the executable that `function` returned.
    ///
    /// # Safety
    ///
    /// `raw` is null or an executable of this plugin that nothing else destroys, made with
    /// `compiler`.
    pub(super) unsafe fn take(
        api: &Arc<Api>,
        function: &'static str,
        raw: *mut PJRT_Executable,
        compiler: Compiler,
    ) -> Result<Self> {
        let raw = non_null(function, raw)?;
        let (api, questions) = (Arc::clone(api), Mutex::new(()));
        let handle = ExecutableHandle {
            api,
            raw,
            questions,
            _compiler: compiler,
        };
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    /// The plugin, the handle, and the right to ask.
    fn ask(&self) -> (&Api, *mut PJRT_Executable, MutexGuard<'_, ()>) {
        let handle = &*self.handle;
        (&handle.api, handle.raw, lock(&handle.questions))
    }

    /// The module's name.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn name(&self) -> Result<String> {
        let (api, executable, _turn) = self.ask();
        let mut args = PJRT_Executable_Name_Args {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive; the text is copied.
        unsafe {
            call!(api, PJRT_Executable_Name, args)?;
            Ok(string(args.executable_name, args.executable_name_size))
        }
    }

    /// How many replicas the program was compiled for.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn num_replicas(&self) -> Result<usize> {
        let (api, executable, _turn) = self.ask();
        let mut args = PJRT_Executable_NumReplicas_Args {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive.
        unsafe { call!(api, PJRT_Executable_NumReplicas, args)? };
        Ok(args.num_replicas)
    }

    /// Over how many devices each replica is divided.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn num_partitions(&self) -> Result<usize> {
        let (api, executable, _turn) = self.ask();
        let mut args = PJRT_Executable_NumPartitions_Args {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive.
        unsafe { call!(api, PJRT_Executable_NumPartitions, args)? };
        Ok(args.num_partitions)
    }

    /// How many results the program has on each device.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn num_outputs(&self) -> Result<usize> {
        let (api, executable, _turn) = self.ask();
        let mut args = PJRT_Executable_NumOutputs_Args {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive.
        unsafe { call!(api, PJRT_Executable_NumOutputs, args)? };
        Ok(args.num_outputs)
    }

    /// Element types and shapes of its results.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn outputs(&self) -> Result<Vec<ArrayShape>> {
        let (api, executable, _turn) = self.ask();
        let mut types = PJRT_Executable_OutputElementTypes_Args {
            executable,
            ..Default::default()
        };
        let mut shapes = PJRT_Executable_OutputDimensions_Args {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive, and its lists are used while no other question is
        // asked. `dims` holds as many values as the ranks in `dim_sizes` sum up to.
        let (types, ranks, mut dims, needed) = unsafe {
            call!(api, PJRT_Executable_OutputElementTypes, types)?;
            call!(api, PJRT_Executable_OutputDimensions, shapes)?;
            let ranks = lent(shapes.dim_sizes, shapes.num_outputs);
            let needed = ranks
                .iter()
                .fold(0_usize, |sum, rank| sum.saturating_add(*rank));
            (
                lent(types.output_types, types.num_output_types),
                ranks,
                lent(shapes.dims, needed),
                needed,
            )
        };
        let wrong = |what: String| Err(malformed("PJRT_Executable_OutputDimensions", what));
        if types.len() != ranks.len() {
            return wrong(format!("{} types and {} shapes", types.len(), ranks.len()));
        }
        if dims.len() != needed {
            return wrong(format!("no dimensions, though the results have {needed}"));
        }
        let shapes = types.iter().zip(ranks).map(|(number, rank)| {
            let (own, rest) = dims.split_at(*rank);
            dims = rest;
            let dims = own
                .iter()
                .map(|dim| usize::try_from(*dim).unwrap_or(0))
                .collect();
            ArrayShape {
                element_type: ElementType::from_number(*number),
                dims,
            }
        });
        Ok(shapes.collect())
    }

    /// What it needs on each device.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn memory_stats(&self) -> Result<CompiledMemoryStats> {
        let (api, executable, _turn) = self.ask();
        let mut args = PJRT_Executable_GetCompiledMemoryStats_Args {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive.
        unsafe { call!(api, PJRT_Executable_GetCompiledMemoryStats, args)? };
        Ok(CompiledMemoryStats {
            generated_code_bytes: args.generated_code_size_in_bytes,
            argument_bytes: args.argument_size_in_bytes,
            output_bytes: args.output_size_in_bytes,
            alias_bytes: args.alias_size_in_bytes,
            temp_bytes: args.temp_size_in_bytes,
            peak_bytes: args.peak_memory_in_bytes,
            total_bytes: args.total_size_in_bytes,
            host_argument_bytes: args.host_argument_size_in_bytes,
            host_output_bytes: args.host_output_size_in_bytes,
            host_temp_bytes: args.host_temp_size_in_bytes,
        })
    }

    /// The compiler's estimates, such as `flops` and `bytes accessed`.
    ///
    /// # Errors
    ///
    /// The plugin's: XLA's CPU client has none
    /// ([`is_unimplemented`](crate::pjrt::PjrtError::is_unimplemented)).
    pub fn cost_analysis(&self) -> Result<Attributes> {
        let (api, executable, _turn) = self.ask();
        let mut args = PJRT_Executable_GetCostAnalysis_Args {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive; the properties are copied under the lock.
        unsafe {
            call!(api, PJRT_Executable_GetCostAnalysis, args)?;
            named::read(args.properties, args.num_properties)
        }
    }

    /// Bytes of machine code.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn generated_code_bytes(&self) -> Result<i64> {
        let (api, executable, _turn) = self.ask();
        let mut args = PJRT_Executable_SizeOfGeneratedCodeInBytes_Args {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive.
        unsafe { call!(api, PJRT_Executable_SizeOfGeneratedCodeInBytes, args)? };
        Ok(args.size_in_bytes)
    }

    /// Bytes that differ between programs that differ.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn fingerprint(&self) -> Result<Vec<u8>> {
        let (api, executable, _turn) = self.ask();
        let mut args = PJRT_Executable_Fingerprint_Args {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive; the bytes are copied under the lock.
        unsafe {
            call!(api, PJRT_Executable_Fingerprint, args)?;
            let first = args.executable_fingerprint.cast::<u8>();
            Ok(lent(first, args.executable_fingerprint_size).to_vec())
        }
    }

    /// The program after all of the compiler's passes, usually as `hlo_with_config`.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn optimized_program(&self) -> Result<Program> {
        let (api, executable, _turn) = self.ask();
        let mut program = PJRT_Program::default();
        let mut args = PJRT_Executable_OptimizedProgram_Args {
            executable,
            program: &raw mut program,
            ..Default::default()
        };
        let mut code;
        // SAFETY: the executable is alive, and so is `program`, which is accessed through the
        // pointer in `args` only. Without a place for the code the first call gives its size; the
        // second fills a buffer of that size. The format is text that lives as long as the plugin.
        let format = unsafe {
            call!(api, PJRT_Executable_OptimizedProgram, args)?;
            code = vec![0_u8; (*args.program).code_size];
            (*args.program).code = code.as_mut_ptr().cast();
            call!(api, PJRT_Executable_OptimizedProgram, args)?;
            string((*args.program).format, (*args.program).format_size)
        };
        Ok(Program { format, code })
    }

    /// The program in the plugin's own form, for [`Client::load`](super::Client::load).
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let (api, executable, _turn) = self.ask();
        let mut args = PJRT_Executable_Serialize_Args {
            executable,
            ..Default::default()
        };
        // SAFETY: the executable is alive; the bytes are copied before they are freed, once, by
        // the function that came with them.
        unsafe {
            call!(api, PJRT_Executable_Serialize, args)?;
            let first = args.serialized_bytes.cast::<u8>();
            let bytes = lent(first, args.serialized_bytes_size).to_vec();
            if let Some(free) = args.serialized_executable_deleter {
                free(args.serialized_executable);
            }
            Ok(bytes)
        }
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Executable({})",
            self.name().as_deref().unwrap_or("unnamed")
        )
    }
}
