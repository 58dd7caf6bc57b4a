//! Programs on devices, and their executions.

use std::borrow::Borrow;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::api::{call, lent, log_destroy, non_null};
use super::arguments;
use super::bindings::*;
use super::buffer::Buffer;
use super::device::Device;
use super::event::Event;
use super::executable::{Compiler, Executable};
use super::handles::ClientHandle;
use crate::pjrt::element::ArrayShape;
use crate::pjrt::error::Result;
use crate::sync::lock;

/// The function of the C API that runs programs.
const EXECUTE: &str = "PJRT_LoadedExecutable_Execute";

struct LoadedHandle {
    client: Arc<ClientHandle>,
    raw: *mut PJRT_LoadedExecutable,
}

// SAFETY: the C API lets any thread run a program.
unsafe impl Send for LoadedHandle {}
// SAFETY: the C API lets any number of threads run a program at the same time.
unsafe impl Sync for LoadedHandle {}

impl Drop for LoadedHandle {
    fn drop(&mut self) {
        let mut args = PJRT_LoadedExecutable_Destroy_Args {
            executable: self.raw,
            ..Default::default()
        };
        // SAFETY: this value owns the program. An execution that still runs keeps its own hold.
        log_destroy(unsafe { call!(&self.client.api, PJRT_LoadedExecutable_Destroy, args) });
    }
}

/// A program that is loaded onto the devices it was compiled for.
///
/// Cheap to clone.
#[derive(Clone)]
pub struct LoadedExecutable {
    handle: Arc<LoadedHandle>,
    executable: Executable,
    /// Places among the client's devices.
    devices: Arc<[usize]>,
    outputs: Arc<[Arc<ArrayShape>]>,
}

/// How a program is run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecuteOptions {
    /// Numbers of arguments that stay as they are although the program would take their memory.
    pub non_donatable: Vec<usize>,
}

impl LoadedExecutable {
    /// Takes the program that `function` returned.
    ///
    /// # Safety
    ///
    /// `raw` is null or a program of this client that nothing else destroys.
    pub(super) unsafe fn take(
        client: &Arc<ClientHandle>,
        function: &'static str,
        raw: *mut PJRT_LoadedExecutable,
    ) -> Result<Self> {
        let raw = non_null(function, raw)?;
        let handle = LoadedHandle {
            client: Arc::clone(client),
            raw,
        };
        let mut get = PJRT_LoadedExecutable_GetExecutable_Args {
            loaded_executable: raw,
            ..Default::default()
        };
        let mut devices = PJRT_LoadedExecutable_AddressableDevices_Args {
            executable: raw,
            ..Default::default()
        };
        // SAFETY: the program is alive; the executable is ours to destroy, and the list of devices
        // lives as long as the program.
        let (executable, devices) = unsafe {
            call!(&client.api, PJRT_LoadedExecutable_GetExecutable, get)?;
            let function = "PJRT_LoadedExecutable_GetExecutable";
            let compiler = Compiler::Client {
                _client: Arc::clone(client),
            };
            let executable = Executable::take(&client.api, function, get.executable, compiler)?;
            call!(
                &client.api,
                PJRT_LoadedExecutable_AddressableDevices,
                devices
            )?;
            (
                executable,
                lent(devices.addressable_devices, devices.num_addressable_devices),
            )
        };
        let function = "PJRT_LoadedExecutable_AddressableDevices";
        let devices = devices
            .iter()
            .map(|raw| client.index_of(function, *raw))
            .collect::<Result<Arc<[usize]>>>()?;
        let outputs = executable.outputs()?.into_iter().map(Arc::new).collect();
        Ok(Self {
            handle: Arc::new(handle),
            executable,
            devices,
            outputs,
        })
    }

    /// What the compiler says about it.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    pub(super) fn client_handle(&self) -> &Arc<ClientHandle> {
        &self.handle.client
    }

    /// The devices of this process that it runs on, in the order of the lists of arguments.
    pub fn devices(&self) -> Vec<Device> {
        let devices = self.devices.iter();
        devices
            .map(|index| Device::new(&self.handle.client, *index))
            .collect()
    }

    /// How many results the program has on each device.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Element types and shapes of its results.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = &ArrayShape> {
        self.outputs.iter().map(|shape| &**shape)
    }

    /// Starts the program on all its devices and does not wait for its end:
    /// `arguments[device][number]`.
    ///
    /// An argument whose memory the program takes (`tf.aliasing_output`) is deleted by this call.
    /// The results can be passed on at once. An error that happens later is the one of the
    /// execution's [`wait`](Execution::wait), and of each of its results.
    ///
    /// # Errors
    ///
    /// Unless there is one list for each device, all of the same length, type and shape, with
    /// buffers that lie on the device and were not deleted: [`PjrtError::InvalidArgument`], and
    /// nothing has happened. And the plugin's, for instance because an argument has another shape
    /// than the program's parameter; then arguments may have been deleted.
    ///
    /// [`PjrtError::InvalidArgument`]: crate::pjrt::PjrtError::InvalidArgument
    pub fn execute<L, B>(&self, arguments: &[L], options: &ExecuteOptions) -> Result<Execution>
    where
        L: AsRef<[B]>,
        B: Borrow<Buffer>,
    {
        let arguments: Vec<Vec<&Buffer>> = arguments.iter().map(borrow_all).collect();
        // Held from the check to the launch, so that another execution cannot take an argument's
        // memory in between.
        let _turn = lock(&self.handle.client.launch);
        arguments::check(&arguments, &self.handle.client, &self.devices)?;
        let inputs: Vec<Vec<_>> = arguments.iter().map(|list| raw_all(list)).collect();
        let num_devices = self.devices.len();
        let input_lists: Vec<_> = inputs.iter().map(|list| list.as_ptr()).collect();
        let mut outputs = vec![vec![ptr::null_mut(); self.outputs.len()]; num_devices];
        let output_lists: Vec<_> = outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut events = vec![ptr::null_mut(); num_devices];
        let args = PJRT_LoadedExecutable_Execute_Args {
            executable: self.handle.raw,
            argument_lists: input_lists.as_ptr(),
            num_devices,
            num_args: inputs.first().map_or(0, Vec::len),
            output_lists: output_lists.as_ptr(),
            device_complete_events: events.as_mut_ptr(),
            ..Default::default()
        };
        // SAFETY: the lists have the lengths that are given and outlive the call; the buffers in
        // them are alive, borrowed from `arguments`.
        unsafe { self.launch(args, options)? };
        // SAFETY: the call succeeded, so it has filled both lists with what is now ours.
        unsafe { self.take_results(&outputs, &events) }
    }

    /// Runs the program on all its devices and blocks until it has ended everywhere:
    /// [`execute`](Self::execute) and [`Execution::wait`].
    ///
    /// # Errors
    ///
    /// The errors of both.
    pub fn run<L, B>(&self, arguments: &[L], options: &ExecuteOptions) -> Result<Vec<Vec<Buffer>>>
    where
        L: AsRef<[B]>,
        B: Borrow<Buffer>,
    {
        self.execute(arguments, options)?.wait()
    }

    /// Hands an execution to the devices. The caller holds the client's `launch` lock.
    ///
    /// # Safety
    ///
    /// The lists in `args` have the lengths that it gives, and what is in them is alive.
    unsafe fn launch(
        &self,
        mut args: PJRT_LoadedExecutable_Execute_Args,
        options: &ExecuteOptions,
    ) -> Result<()> {
        let client = &self.handle.client;
        let kept: Vec<i64> = options
            .non_donatable
            .iter()
            .map(|number| *number as i64)
            .collect();
        // Not zero, which means none, also after it has wrapped around.
        let launch = client.launches.fetch_add(1, Ordering::Relaxed) & i32::MAX;
        let mut raw_options = PJRT_ExecuteOptions {
            launch_id: launch.max(1),
            non_donatable_input_indices: kept.as_ptr(),
            num_non_donatable_input_indices: kept.len(),
            ..Default::default()
        };
        args.options = &raw mut raw_options;
        // SAFETY: promised by the caller; the options live until the end of this function.
        unsafe { call!(&client.api, PJRT_LoadedExecutable_Execute, args) }
    }

    /// Takes over the results of a successful call from its lists.
    ///
    /// # Safety
    ///
    /// Each is null, or a new buffer or event of this client.
    unsafe fn take_results(
        &self,
        outputs: &[Vec<*mut PJRT_Buffer>],
        events: &[*mut PJRT_Event],
    ) -> Result<Execution> {
        let client = &self.handle.client;
        // All are taken before any null among them is an error: none is lost.
        let take = |device: usize, raw: *mut PJRT_Buffer, shape: &Arc<ArrayShape>| {
            // SAFETY: promised by the caller.
            unsafe { Buffer::take(client, EXECUTE, raw, device, Arc::clone(shape)) }
        };
        let outputs: Vec<Vec<Result<Buffer>>> = outputs
            .iter()
            .zip(&*self.devices)
            .map(|(list, device)| {
                let list = list.iter().zip(&*self.outputs);
                list.map(|(raw, shape)| take(*device, *raw, shape))
                    .collect()
            })
            .collect();
        let take = |raw: &*mut PJRT_Event| {
            // SAFETY: promised by the caller.
            unsafe { Event::take(&client.api, EXECUTE, *raw) }
        };
        let events: Vec<Result<Event>> = events.iter().map(take).collect();
        let outputs = outputs.into_iter().map(|list| list.into_iter().collect());
        Ok(Execution {
            outputs: outputs.collect::<Result<_>>()?,
            events: events.into_iter().collect::<Result<_>>()?,
        })
    }
}

fn borrow_all<'a, L: AsRef<[B]>, B: Borrow<Buffer> + 'a>(list: &'a L) -> Vec<&'a Buffer> {
    list.as_ref().iter().map(Borrow::borrow).collect()
}

fn raw_all(list: &[&Buffer]) -> Vec<*mut PJRT_Buffer> {
    list.iter().map(|buffer| buffer.raw()).collect()
}

impl fmt::Debug for LoadedExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {} devices", self.executable, self.devices.len())
    }
}

/// A program that may still run, and its results.
///
/// Dropping it neither waits nor stops the program.
pub struct Execution {
    outputs: Vec<Vec<Buffer>>,
    events: Vec<Event>,
}

impl Execution {
    /// The results, `[device][number]`, without waiting for them: they can be passed on to other
    /// programs, and reading one waits for it.
    pub fn into_outputs(self) -> Vec<Vec<Buffer>> {
        self.outputs
    }

    /// Blocks until the program has ended on all devices, and returns the results,
    /// `[device][number]`.
    ///
    /// # Errors
    ///
    /// The first device's error, after all have ended.
    pub fn wait(self) -> Result<Vec<Vec<Buffer>>> {
        let ends: Vec<Result<()>> = self.events.iter().map(Event::wait).collect();
        ends.into_iter().collect::<Result<()>>()?;
        Ok(self.outputs)
    }

    /// Whether the program has ended on all devices.
    ///
    /// # Errors
    ///
    /// The plugin's, if it cannot tell.
    pub fn is_ready(&self) -> Result<bool> {
        for event in &self.events {
            if !event.is_ready()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs = self.outputs.first().map_or(0, Vec::len);
        write!(
            f,
            "Execution({outputs} results on {} devices)",
            self.outputs.len()
        )
    }
}
