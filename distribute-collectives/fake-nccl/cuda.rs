//! The symbols of the CUDA driver.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::memory::{self, INVALID_VALUE};
use crate::settings;
use crate::stats::{self, lock};

const SUCCESS: c_int = 0;
const NO_DEVICE: c_int = 100;
const INVALID_CONTEXT: c_int = 201;
const INVALID_HANDLE: c_int = 400;
const NOT_READY: c_int = 600;

type Handle = *mut c_void;
type Work = Box<dyn FnOnce() + Send>;

/// Numbers for handles.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

pub fn new_handle() -> usize {
    NEXT.fetch_add(8, Ordering::Relaxed)
}

static STREAMS: Mutex<BTreeMap<usize, Sender<Work>>> = Mutex::new(BTreeMap::new());
static EVENTS: Mutex<BTreeMap<usize, Arc<Event>>> = Mutex::new(BTreeMap::new());

thread_local! {
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Event {
    recorded: AtomicU64,
    reached: Mutex<u64>,
    further: Condvar,
}

/// Writes a result to where the caller wants it.
fn put<T>(to: *mut T, value: T) -> c_int {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller passes a variable of this type, as the C header says.
    unsafe { to.write(value) };
    SUCCESS
}

/// Writes a C string.
fn put_text(to: *mut c_char, room: c_int, text: &str) -> c_int {
    let bytes = text.bytes().take(room as usize - 1).chain([0]);
    for (index, byte) in bytes.enumerate() {
        // SAFETY: `room` bytes, as the caller says.
        unsafe { to.add(index).write(byte as c_char) };
    }
    SUCCESS
}

/// Puts work into a stream.
pub fn enqueue(stream: usize, work: Work) -> c_int {
    match lock(&STREAMS).get(&stream) {
        Some(sender) if sender.send(work).is_ok() => SUCCESS,
        _ => INVALID_HANDLE,
    }
}

/// Refuses threads without a context.
pub fn has_context() -> bool {
    let has = CONTEXTS.with_borrow(|contexts| !contexts.is_empty());
    if !has {
        stats::add("misuse", 1);
    }
    has
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    match settings::number("devices", 8) {
        0 => NO_DEVICE,
        _ => SUCCESS,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    put(version, settings::number("driver", 12080))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    put(count, settings::number("devices", 8))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    put(device, ordinal)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, _device: c_int) -> c_int {
    put_text(name, room, "Host memory")
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(name: *mut c_char, room: c_int, device: c_int) -> c_int {
    put_text(name, room, &format!("0000:{device:02X}:00.0"))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> c_int {
    let number = match settings::number("one_uuid", 0) {
        0 => device as u8,
        _ => 0,
    };
    put(uuid, [number; 16])
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_int {
    put(bytes, 8 << 30)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, other: c_int) -> c_int {
    put(can, c_int::from(device / 4 == other / 4))
}

/// Neighbours in pairs have the better link, with atomics.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetP2PAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
    other: c_int,
) -> c_int {
    let is_pair = device / 2 == other / 2;
    match attribute {
        1 => put(value, c_int::from(!is_pair)),
        3 => put(value, c_int::from(is_pair)),
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> c_int {
    stats::add("contexts", 1);
    put(context, device as usize + 1)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> c_int {
    stats::add("contexts", -1);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> c_int {
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context.addr()));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> c_int {
    match CONTEXTS.with_borrow_mut(Vec::pop) {
        Some(popped) => put(context, popped),
        None => INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: *mut usize, _flags: c_uint) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    let (sender, work) = channel::<Work>();
    // Ends when the stream is destroyed and its work is done.
    std::thread::spawn(move || work.into_iter().for_each(|work| work()));
    let handle = new_handle();
    lock(&STREAMS).insert(handle, sender);
    stats::add("streams", 1);
    put(stream, handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> c_int {
    match lock(&STREAMS).remove(&stream.addr()) {
        None => INVALID_HANDLE,
        Some(_) => {
            stats::add("streams", -1);
            SUCCESS
        }
    }
}

fn event(event: Handle) -> Option<Arc<Event>> {
    lock(&EVENTS).get(&event.addr()).cloned()
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, mark: Handle, _flags: c_uint) -> c_int {
    let Some(event) = event(mark) else {
        return INVALID_HANDLE;
    };
    let until = event.recorded.load(Ordering::SeqCst);
    let wait = move || {
        let is_before = |reached: &mut u64| *reached < until;
        drop(event.further.wait_while(lock(&event.reached), is_before));
    };
    enqueue(stream.addr(), Box::new(wait))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(mark: *mut usize, _flags: c_uint) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    let handle = new_handle();
    lock(&EVENTS).insert(handle, Arc::default());
    stats::add("events", 1);
    put(mark, handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(mark: Handle) -> c_int {
    match lock(&EVENTS).remove(&mark.addr()) {
        None => INVALID_HANDLE,
        Some(_) => {
            stats::add("events", -1);
            SUCCESS
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(mark: Handle, stream: Handle) -> c_int {
    let Some(event) = event(mark) else {
        return INVALID_HANDLE;
    };
    let number = event.recorded.fetch_add(1, Ordering::SeqCst) + 1;
    let reach = move || {
        let mut reached = lock(&event.reached);
        *reached = number.max(*reached);
        event.further.notify_all();
    };
    enqueue(stream.addr(), Box::new(reach))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(mark: Handle) -> c_int {
    match event(mark) {
        None => INVALID_HANDLE,
        Some(event) => {
            let recorded = event.recorded.load(Ordering::SeqCst);
            if *lock(&event.reached) >= recorded {
                SUCCESS
            } else {
                NOT_READY
            }
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    if has_context() {
        put(address, memory::allocate(bytes))
    } else {
        INVALID_CONTEXT
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    if has_context() {
        memory::free(address)
    } else {
        INVALID_CONTEXT
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocHost_v2(pointer: *mut *mut c_void, bytes: usize) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    stats::add("host_memory", 1);
    // SAFETY: any size; freed below.
    put(pointer, unsafe { libc::malloc(bytes) })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> c_int {
    stats::add("host_memory", -1);
    // SAFETY: came from `cuMemAllocHost`, as the driver demands.
    unsafe { libc::free(pointer) };
    SUCCESS
}

/// Lets copies take a while, when that is wanted.
fn slow() {
    std::thread::sleep(Duration::from_millis(settings::number("copy_ms", 0) as u64));
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> c_int {
    let Some(place) = memory::find(to, bytes) else {
        return INVALID_VALUE;
    };
    // SAFETY: that many bytes, as the caller says.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
    place.write(0, bytes);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> c_int {
    let Some(place) = memory::find(from, bytes) else {
        return INVALID_VALUE;
    };
    let found = place.read();
    // SAFETY: room for that many bytes, as the caller says.
    unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), to.cast::<u8>(), bytes) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: Handle,
) -> c_int {
    let Some(place) = memory::find(to, bytes) else {
        return INVALID_VALUE;
    };
    let from = from.expose_provenance();
    let copy = move || {
        slow();
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        // SAFETY: the caller keeps that many bytes until the stream has come to a later mark.
        place.write(0, unsafe { std::slice::from_raw_parts(from, bytes) });
    };
    enqueue(stream.addr(), Box::new(copy))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: Handle,
) -> c_int {
    let Some(place) = memory::find(from, bytes) else {
        return INVALID_VALUE;
    };
    let to = to.expose_provenance();
    let copy = move || {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
        let found = place.read();
        // SAFETY: the caller keeps that many bytes until the stream has come to a later mark.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), to, found.len()) };
    };
    enqueue(stream.addr(), Box::new(copy))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: c_int, text: *mut *const c_char) -> c_int {
    let meaning: &CStr = match code {
        INVALID_VALUE => c"invalid argument",
        INVALID_CONTEXT => c"invalid device context",
        INVALID_HANDLE => c"invalid resource handle",
        _ => c"unknown error",
    };
    put(text, meaning.as_ptr())
}
