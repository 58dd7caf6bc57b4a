//! Contexts, streams and events of the CUDA driver.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use bytemuck::Zeroable;

use super::library::{Cuda, CudaResult, Handle, LibraryError};
use crate::nccl::devices::{DeviceInfo, PeerLink};
use crate::nccl::unavailable::NcclUnavailable;

/// `CU_STREAM_NON_BLOCKING`: no implicit order with the default stream.
const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK`.
const P2P_PERFORMANCE_RANK: c_int = 1;
/// `CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`.
const P2P_NATIVE_ATOMICS: c_int = 3;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;

impl Cuda {
    /// Number of devices.
    pub(crate) fn count(&self) -> Result<usize, LibraryError> {
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let code = unsafe { (self.functions.cuDeviceGetCount)(&raw mut count) };
        self.check("cuDeviceGetCount", code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The driver's handle of a device.
    fn device(&self, ordinal: usize) -> Result<c_int, NcclUnavailable> {
        let count = self.count()?;
        let missing = NcclUnavailable::NoDevice {
            device: ordinal,
            count,
        };
        let number = c_int::try_from(ordinal).map_err(|_| missing.clone())?;
        if ordinal >= count {
            return Err(missing);
        }
        let mut device = 0;
        // SAFETY: `device` outlives the call.
        let code = unsafe { (self.functions.cuDeviceGet)(&raw mut device, number) };
        self.check("cuDeviceGet", code)?;
        Ok(device)
    }

    /// What the driver says about a device.
    pub(crate) fn describe(&self, ordinal: usize) -> Result<DeviceInfo, NcclUnavailable> {
        let device = self.device(ordinal)?;
        let (mut name, mut bus) = ([0_i8; 256], [0_i8; 32]);
        let (mut uuid, mut memory_bytes) = ([0; 16], 0_usize);
        let functions = &self.functions;
        // SAFETY: the pointers lead to variables of the lengths that are given, which outlive the
        // calls; the functions write C strings.
        unsafe {
            let code = (functions.cuDeviceGetName)(name.as_mut_ptr().cast(), 256, device);
            self.check("cuDeviceGetName", code)?;
            let code = (functions.cuDeviceGetPCIBusId)(bus.as_mut_ptr().cast(), 32, device);
            self.check("cuDeviceGetPCIBusId", code)?;
            let code = (functions.cuDeviceGetUuid)(&raw mut uuid, device);
            self.check("cuDeviceGetUuid", code)?;
            let code = (functions.cuDeviceTotalMem_v2)(&raw mut memory_bytes, device);
            self.check("cuDeviceTotalMem", code)?;
        }
        let others = (0..self.count()?).filter(|other| *other != ordinal);
        let links: Vec<PeerLink> = others
            .map(|other| self.link(device, other))
            .collect::<Result<_, _>>()?;
        let reached = links.iter().filter(|link| link.access);
        Ok(DeviceInfo {
            ordinal,
            name: text(bytemuck::cast_slice(&name)),
            uuid,
            pci_bus_id: text(bytemuck::cast_slice(&bus)),
            memory_bytes,
            peers: reached.map(|link| link.device).collect(),
            links,
        })
    }

    /// How a device reaches another one.
    fn link(&self, device: c_int, ordinal: usize) -> Result<PeerLink, NcclUnavailable> {
        let (mut can, other) = (0, self.device(ordinal)?);
        // SAFETY: `can` outlives the call.
        let code = unsafe { (self.functions.cuDeviceCanAccessPeer)(&raw mut can, device, other) };
        self.check("cuDeviceCanAccessPeer", code)?;
        let attribute = |attribute: c_int| {
            let mut value = 0;
            let get = self.functions.cuDeviceGetP2PAttribute;
            // SAFETY: `value` outlives the call; both devices exist.
            let code = unsafe { get(&raw mut value, attribute, device, other) };
            // A driver that does not know it says nothing about the link.
            (code == 0).then_some(value)
        };
        let access = can != 0;
        Ok(PeerLink {
            device: ordinal,
            access,
            native_atomics: access && attribute(P2P_NATIVE_ATOMICS) == Some(1),
            performance_rank: attribute(P2P_PERFORMANCE_RANK).filter(|_| access),
        })
    }
}

fn text(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

/// The primary context of a device, which every library in the process uses.
pub(crate) struct Context {
    pub(crate) cuda: Arc<Cuda>,
    device: c_int,
    raw: Handle,
}

// SAFETY: the driver lets any thread use a context.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the context of a device.
    pub(crate) fn retain(cuda: &Arc<Cuda>, ordinal: usize) -> Result<Arc<Self>, NcclUnavailable> {
        let device = cuda.device(ordinal)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call; the device exists.
        let code = unsafe { (cuda.functions.cuDevicePrimaryCtxRetain)(&raw mut raw, device) };
        cuda.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Arc::new(Context {
            cuda: cuda.clone(),
            device,
            raw,
        }))
    }

    /// Runs `f` with this context current; the thread gets its own one back afterwards.
    pub(crate) fn with<R>(&self, f: impl FnOnce() -> R) -> Result<R, LibraryError> {
        // SAFETY: the context is retained.
        let code = unsafe { (self.cuda.functions.cuCtxPushCurrent_v2)(self.raw) };
        self.cuda.check("cuCtxPushCurrent", code)?;
        let _pop = Pop(&self.cuda);
        Ok(f())
    }
}

/// Takes the current context off again, also when there was a panic.
struct Pop<'a>(&'a Cuda);

impl Drop for Pop<'_> {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: was pushed on this thread; `popped` outlives the call.
        let _ = unsafe { (self.0.functions.cuCtxPopCurrent_v2)(&raw mut popped) };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by this value; what was made in it holds a reference to it.
        let _ = unsafe { (self.cuda.functions.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// A thing of the driver that was made in a context, and is freed in it.
pub(super) struct Owned<R: Copy> {
    pub(super) context: Arc<Context>,
    pub(super) raw: R,
    free: unsafe extern "C" fn(R) -> CudaResult,
}

impl<R: Copy + Zeroable> Owned<R> {
    /// Has `create`, the function called `name`, make it. The context must be current.
    ///
    /// # Safety
    /// `create` may be called with `argument`; when it succeeds, `free` may be called once with
    /// what it has set, at any time from then on at which the owner has no more use for it.
    pub(super) unsafe fn create<A>(
        context: &Arc<Context>,
        name: &'static str,
        create: unsafe extern "C" fn(*mut R, A) -> CudaResult,
        argument: A,
        free: unsafe extern "C" fn(R) -> CudaResult,
    ) -> Result<Self, LibraryError> {
        let mut raw = R::zeroed();
        // SAFETY: `raw` outlives the call; the rest is as the caller promises.
        let code = unsafe { create(&raw mut raw, argument) };
        context.cuda.check(name, code)?;
        Ok(Owned {
            context: context.clone(),
            raw,
            free,
        })
    }
}

impl<R: Copy> Drop for Owned<R> {
    fn drop(&mut self) {
        let free = || {
            // SAFETY: as the caller of `create` has promised; it is freed only here.
            unsafe { (self.free)(self.raw) }
        };
        let _ = self.context.with(free);
    }
}

impl<R: Copy> std::fmt::Debug for Owned<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owned").finish_non_exhaustive()
    }
}

/// A stream of this library.
pub(crate) struct OwnedStream(pub(super) Owned<Handle>);

// SAFETY: the driver lets any thread use a stream.
unsafe impl Send for OwnedStream {}

impl OwnedStream {
    /// A stream without implicit order with others. The context must be current.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, LibraryError> {
        let functions = &context.cuda.functions;
        let (create, free) = (functions.cuStreamCreate, functions.cuStreamDestroy_v2);
        let (name, flags) = ("cuStreamCreate", STREAM_NON_BLOCKING);
        // SAFETY: a flag of this function; the driver frees a stream when its work is done.
        unsafe { Owned::create(context, name, create, flags, free) }.map(OwnedStream)
    }

    /// What comes next waits for the event.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), LibraryError> {
        let cuda = &self.0.context.cuda;
        // SAFETY: stream and event exist.
        let code = unsafe { (cuda.functions.cuStreamWaitEvent)(self.0.raw, event.0.raw, 0) };
        cuda.check("cuStreamWaitEvent", code)
    }
}

/// A stream of the caller (`CUstream` or `cudaStream_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(usize);

impl Stream {
    /// Names a stream by its handle.
    ///
    /// # Safety
    /// The stream belongs to the device of the communicator that it is used with, and exists
    /// until the operations on buffers that name it have returned.
    pub unsafe fn from_raw(stream: *mut c_void) -> Self {
        Stream(stream.addr())
    }

    /// The handle.
    fn raw(self) -> Handle {
        std::ptr::without_provenance_mut(self.0)
    }
}

/// A mark in a stream.
pub(crate) struct Event(Owned<Handle>);

// SAFETY: the driver lets any thread use an event.
unsafe impl Send for Event {}

impl Event {
    /// An event without a time. The context must be current.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, LibraryError> {
        let functions = &context.cuda.functions;
        let (create, free) = (functions.cuEventCreate, functions.cuEventDestroy_v2);
        let (name, flags) = ("cuEventCreate", EVENT_DISABLE_TIMING);
        // SAFETY: a flag of this function; the driver frees an event when it has been reached.
        unsafe { Owned::create(context, name, create, flags, free) }.map(Event)
    }

    /// Marks what was put into the stream so far.
    pub(crate) fn record(&self, stream: &OwnedStream) -> Result<(), LibraryError> {
        self.record_raw(stream.0.raw)
    }

    /// As [`record`](Self::record), in a stream of the caller.
    pub(crate) fn record_in(&self, stream: Stream) -> Result<(), LibraryError> {
        self.record_raw(stream.raw())
    }

    fn record_raw(&self, stream: Handle) -> Result<(), LibraryError> {
        let cuda = &self.0.context.cuda;
        // SAFETY: the event exists, and so does the stream: it is one of this module, or one whose
        // owner has promised that.
        let code = unsafe { (cuda.functions.cuEventRecord)(self.0.raw, stream) };
        cuda.check("cuEventRecord", code)
    }

    /// Whether the stream has come to the mark.
    pub(crate) fn is_reached(&self) -> Result<bool, LibraryError> {
        let cuda = &self.0.context.cuda;
        // SAFETY: the event exists.
        match unsafe { (cuda.functions.cuEventQuery)(self.0.raw) } {
            NOT_READY => Ok(false),
            code => cuda.check("cuEventQuery", code).map(|()| true),
        }
    }
}
