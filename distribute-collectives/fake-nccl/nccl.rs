//! The symbols of NCCL.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arithmetic::size_bytes;
use crate::comm::{
    self, Buffers, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Kind, SUCCESS, Work, misuse,
};
use crate::{cuda, memory, settings};

type Handle = *mut c_void;

#[repr(C)]
struct UniqueId([u8; 128]);

#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// Writes a result to where the caller wants it.
fn put<T>(to: *mut T, value: T) {
    // SAFETY: the caller passes a variable of this type, as the C header says.
    unsafe { to.write(value) };
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    put(version, settings::number("nccl", 22703));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = settings::directory().join(format!("world-{}-{number}", std::process::id()));
    let path = path.as_os_str().as_bytes();
    let mut bytes = [0; 128];
    if path.len() >= bytes.len() {
        return 3;
    }
    bytes[..path.len()].copy_from_slice(path);
    put(id, UniqueId(bytes));
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    handle: *mut usize,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> c_int {
    // SAFETY: the caller passes a configuration, which begins like that in every version.
    let config = unsafe { &*config };
    let is_config = config.magic == 0xcafe_beef
        && config.version >= 21_400
        && config.size >= size_of::<Config>();
    if !is_config || config.blocking != 0 || rank >= size || !cuda::has_context() {
        return misuse(INVALID_ARGUMENT);
    }
    let end = id.0.iter().position(|byte| *byte == 0).unwrap_or(128);
    let path = PathBuf::from(OsStr::from_bytes(&id.0[..end]));
    put(handle, comm::begin(path, rank as usize, size as usize));
    IN_PROGRESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(handle: Handle) -> c_int {
    let Some(comm) = comm::find(handle.addr()) else {
        return misuse(INVALID_ARGUMENT);
    };
    if comm.state() != SUCCESS {
        return misuse(INVALID_USAGE);
    }
    comm.busy();
    IN_PROGRESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(handle: Handle) -> c_int {
    comm::end(handle.addr(), false)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(handle: Handle) -> c_int {
    comm::end(handle.addr(), true)
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommGetAsyncError(handle: Handle, state: *mut c_int) -> c_int {
    match comm::find(handle.addr()) {
        None => misuse(INVALID_ARGUMENT),
        Some(comm) => {
            put(state, comm.poll());
            SUCCESS
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let meaning: &CStr = match code {
        SUCCESS => c"no error",
        2 => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        comm::REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    meaning.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_handle: Handle) -> *const c_char {
    c"".as_ptr()
}

/// The buffers of a call: `input` and `output` elements.
fn buffers(
    from: *const c_void,
    input: usize,
    to: *mut c_void,
    output: usize,
    dtype: c_int,
) -> Option<Buffers> {
    let each = size_bytes(dtype)?;
    Some(Buffers {
        from: memory::find(from.addr() as u64, input * each)?,
        to: memory::find(to.addr() as u64, output * each)?,
    })
}

fn size_of_comm(handle: Handle) -> usize {
    comm::find(handle.addr()).map_or(1, |comm| comm.size)
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    handle: Handle,
    stream: Handle,
) -> c_int {
    let kind = Kind::Reduce {
        op,
        dtype,
        root: None,
    };
    let buffers = buffers(from, count, to, count, dtype);
    let work = buffers.and_then(|buffers| comm::collective(buffers, kind));
    comm::call(handle.addr(), stream.addr(), work)
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    handle: Handle,
    stream: Handle,
) -> c_int {
    let kind = Kind::Reduce {
        op,
        dtype,
        root: Some(root as usize),
    };
    let buffers = buffers(from, count, to, count, dtype);
    let work = buffers.and_then(|buffers| comm::collective(buffers, kind));
    comm::call(handle.addr(), stream.addr(), work)
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    handle: Handle,
    stream: Handle,
) -> c_int {
    let buffers = buffers(from, count * size_of_comm(handle), to, count, dtype);
    let kind = Kind::Scatter { op, dtype };
    let work = buffers.and_then(|buffers| comm::collective(buffers, kind));
    comm::call(handle.addr(), stream.addr(), work)
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    handle: Handle,
    stream: Handle,
) -> c_int {
    let buffers = buffers(from, count, to, count * size_of_comm(handle), dtype);
    let work = buffers.and_then(|buffers| comm::collective(buffers, Kind::Gather));
    comm::call(handle.addr(), stream.addr(), work)
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    handle: Handle,
    stream: Handle,
) -> c_int {
    let buffers = buffers(from, count, to, count, dtype);
    let kind = Kind::Broadcast {
        root: root as usize,
    };
    let work = buffers.and_then(|buffers| comm::collective(buffers, kind));
    comm::call(handle.addr(), stream.addr(), work)
}

/// The bytes of a call between two ranks.
fn place(at: *const c_void, count: usize, dtype: c_int) -> Option<(memory::Place, usize)> {
    let len = count * size_bytes(dtype)?;
    Some((memory::find(at.addr() as u64, len)?, len))
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    from: *const c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    handle: Handle,
    stream: Handle,
) -> c_int {
    let place = place(from, count, dtype);
    let work: Option<Work> = place.map(|(place, _)| comm::send(place, peer as usize));
    comm::call(handle.addr(), stream.addr(), work)
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    handle: Handle,
    stream: Handle,
) -> c_int {
    let place = place(to, count, dtype);
    let work: Option<Work> = place.map(|(place, len)| comm::receive(place, len, peer as usize));
    comm::call(handle.addr(), stream.addr(), work)
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> c_int {
    comm::group_start()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> c_int {
    comm::group_end()
}
