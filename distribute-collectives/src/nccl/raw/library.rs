//! Finding the two libraries and their functions.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::Arc;

use libloading::Library;

use crate::error::Searched;
use crate::nccl::options::{CUDA_LIBRARY, NCCL_LIBRARY};
use crate::nccl::unavailable::NcclUnavailable;
use crate::nccl::version::Version;

/// A result of a function of the CUDA driver; 0 is success.
pub(crate) type CudaResult = c_int;
/// A result of a function of NCCL; 0 is success.
pub(crate) type NcclResult = c_int;

/// `cuDriverGetVersion` or `ncclGetVersion`.
type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;

/// A handle of the driver (context, stream, event) or of NCCL.
pub(crate) type Handle = *mut c_void;

/// The beginning of `ncclConfig_t` that every version from 2.14 on has. `size` and `version` tell
/// the library how much of it there is; it takes its defaults for the rest.
#[repr(C)]
pub(crate) struct RawConfig {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) blocking: c_int,
}

/// What the ranks of one communicator have in common before it exists: `ncclUniqueId`, which is
/// passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// Declares a table of functions that are looked up by their names in a library.
macro_rules! functions {
    ($(#[$meta:meta])* $name:ident { $($symbol:ident($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$meta])*
        #[expect(non_snake_case, reason = "the fields have the names of the C functions")]
        pub(crate) struct $name {
            $(pub(crate) $symbol: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $name {
            fn find(library: &Library, path: &str) -> Result<Self, NcclUnavailable> {
                Ok($name {
                    // SAFETY: the C headers declare the function of this name with this type.
                    $($symbol: unsafe { symbol(library, path, stringify!($symbol)) }?,)*
                })
            }
        }
    };
}

functions! {
    /// The functions of `libcuda.so.1` in use.
    CudaFunctions {
        cuDeviceGet(*mut c_int, c_int) -> CudaResult;
        cuDeviceGetCount(*mut c_int) -> CudaResult;
        cuDeviceGetName(*mut c_char, c_int, c_int) -> CudaResult;
        // A `CUuuid` is 16 bytes.
        cuDeviceGetUuid(*mut [u8; 16], c_int) -> CudaResult;
        cuDeviceGetPCIBusId(*mut c_char, c_int, c_int) -> CudaResult;
        cuDeviceTotalMem_v2(*mut usize, c_int) -> CudaResult;
        cuDeviceCanAccessPeer(*mut c_int, c_int, c_int) -> CudaResult;
        cuDeviceGetP2PAttribute(*mut c_int, c_int, c_int, c_int) -> CudaResult;
        cuDevicePrimaryCtxRetain(*mut Handle, c_int) -> CudaResult;
        cuDevicePrimaryCtxRelease_v2(c_int) -> CudaResult;
        cuCtxPushCurrent_v2(Handle) -> CudaResult;
        cuCtxPopCurrent_v2(*mut Handle) -> CudaResult;
        cuStreamCreate(*mut Handle, c_uint) -> CudaResult;
        cuStreamDestroy_v2(Handle) -> CudaResult;
        cuStreamWaitEvent(Handle, Handle, c_uint) -> CudaResult;
        cuEventCreate(*mut Handle, c_uint) -> CudaResult;
        cuEventDestroy_v2(Handle) -> CudaResult;
        cuEventRecord(Handle, Handle) -> CudaResult;
        cuEventQuery(Handle) -> CudaResult;
        cuMemAlloc_v2(*mut u64, usize) -> CudaResult;
        cuMemFree_v2(u64) -> CudaResult;
        cuMemAllocHost_v2(*mut *mut c_void, usize) -> CudaResult;
        cuMemFreeHost(*mut c_void) -> CudaResult;
        cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Handle) -> CudaResult;
        cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, Handle) -> CudaResult;
        cuGetErrorString(CudaResult, *mut *const c_char) -> CudaResult;
    }
}

functions! {
    /// The functions of `libnccl.so.2` in use.
    NcclFunctions {
        ncclGetUniqueId(*mut UniqueId) -> NcclResult;
        ncclCommInitRankConfig(*mut Handle, c_int, UniqueId, c_int, *mut RawConfig) -> NcclResult;
        ncclCommFinalize(Handle) -> NcclResult;
        ncclCommDestroy(Handle) -> NcclResult;
        ncclCommAbort(Handle) -> NcclResult;
        ncclCommGetAsyncError(Handle, *mut NcclResult) -> NcclResult;
        ncclGetErrorString(NcclResult) -> *const c_char;
        ncclGetLastError(Handle) -> *const c_char;
        ncclAllReduce(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle)
            -> NcclResult;
        ncclReduceScatter(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle)
            -> NcclResult;
        ncclReduce(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Handle, Handle)
            -> NcclResult;
        ncclAllGather(*const c_void, *mut c_void, usize, c_int, Handle, Handle) -> NcclResult;
        ncclBroadcast(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle)
            -> NcclResult;
        ncclSend(*const c_void, usize, c_int, c_int, Handle, Handle) -> NcclResult;
        ncclRecv(*mut c_void, usize, c_int, c_int, Handle, Handle) -> NcclResult;
        ncclGroupStart() -> NcclResult;
        ncclGroupEnd() -> NcclResult;
    }
}

/// A call of one of the libraries that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {code} ({text})")]
pub(crate) struct LibraryError {
    /// The name of the C function.
    pub(crate) call: &'static str,
    /// What it returned.
    pub(crate) code: c_int,
    /// What that means, in the words of the library.
    pub(crate) text: String,
}

impl From<LibraryError> for NcclUnavailable {
    fn from(failed: LibraryError) -> Self {
        NcclUnavailable::Failed {
            what: failed.to_string(),
        }
    }
}

/// The CUDA driver. It is never unloaded.
pub(crate) struct Cuda {
    pub(crate) functions: CudaFunctions,
    /// The newest CUDA that it supports.
    pub(crate) version: Version,
    /// Where it was found.
    pub(crate) path: String,
}

/// NCCL. It is never unloaded: its threads may outlive a communicator.
pub(crate) struct Nccl {
    pub(crate) functions: NcclFunctions,
    pub(crate) version: Version,
    /// Where it was found.
    pub(crate) path: String,
}

impl Cuda {
    /// Loads the driver and checks that it is new enough and has a device.
    pub(crate) fn load(wanted: Option<&Path>) -> Result<Arc<Cuda>, NcclUnavailable> {
        let names = [
            "libcuda.so.1",
            "libcuda.so",
            "/usr/lib/wsl/lib/libcuda.so.1",
        ];
        let (library, path) = open("the CUDA driver", CUDA_LIBRARY, wanted, &names)?;
        type Init = unsafe extern "C" fn(c_uint) -> CudaResult;
        // SAFETY: `CUresult cuInit(unsigned)`.
        let init: Init = unsafe { symbol(&library, &path, "cuInit") }?;
        // SAFETY: `CUresult cuDriverGetVersion(int *)`.
        let get_version: GetVersion = unsafe { symbol(&library, &path, "cuDriverGetVersion") }?;
        let mut code = 0;
        // SAFETY: may be called before `cuInit`; `code` outlives the call.
        let result = unsafe { get_version(&raw mut code) };
        if result != 0 {
            return Err(NcclUnavailable::driver(&path, "cuDriverGetVersion", result));
        }
        let version = Version::of_cuda(code);
        if version < Version::MIN_CUDA {
            return Err(NcclUnavailable::TooOld {
                library: "the CUDA driver".to_string(),
                path,
                found: version,
                needed: Version::MIN_CUDA,
            });
        }
        let functions = CudaFunctions::find(&library, &path)?;
        // SAFETY: 0 is the only value that is allowed; calling it again does nothing.
        let result = unsafe { init(0) };
        std::mem::forget(library);
        if result != 0 {
            return Err(NcclUnavailable::driver(&path, "cuInit", result));
        }
        Ok(Arc::new(Cuda {
            functions,
            version,
            path,
        }))
    }

    /// Turns what a function returned into a result.
    pub(crate) fn check(&self, call: &'static str, code: CudaResult) -> Result<(), LibraryError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: `text` outlives the call, which sets it to a constant or to null.
        let known = unsafe { (self.functions.cuGetErrorString)(code, &raw mut text) };
        let text = match known {
            // SAFETY: a constant of the library, which is never unloaded.
            0 => unsafe { text_of(text) },
            _ => "unknown".to_string(),
        };
        Err(LibraryError { call, code, text })
    }
}

impl Nccl {
    /// Loads NCCL and checks that it is new enough.
    pub(crate) fn load(wanted: Option<&Path>) -> Result<Arc<Nccl>, NcclUnavailable> {
        let names = ["libnccl.so.2", "libnccl.so"];
        let (library, path) = open("NCCL", NCCL_LIBRARY, wanted, &names)?;
        // SAFETY: `ncclResult_t ncclGetVersion(int *)`.
        let get_version: GetVersion = unsafe { symbol(&library, &path, "ncclGetVersion") }?;
        let mut code = 0;
        // SAFETY: `code` outlives the call.
        if unsafe { get_version(&raw mut code) } != 0 {
            code = 0;
        }
        let version = Version::of_nccl(code);
        if version < Version::MIN_NCCL {
            return Err(NcclUnavailable::TooOld {
                library: "NCCL".to_string(),
                path,
                found: version,
                needed: Version::MIN_NCCL,
            });
        }
        let functions = NcclFunctions::find(&library, &path)?;
        std::mem::forget(library);
        Ok(Arc::new(Nccl {
            functions,
            version,
            path,
        }))
    }

    /// What a result means.
    pub(crate) fn failed(&self, call: &'static str, code: NcclResult) -> LibraryError {
        // SAFETY: takes any number and returns a constant; a null communicator asks for the last
        // error of this thread, whose text is only read here.
        let (text, last) = unsafe {
            (
                text_of((self.functions.ncclGetErrorString)(code)),
                text_of((self.functions.ncclGetLastError)(std::ptr::null_mut())),
            )
        };
        let text = match last.trim() {
            "" => text,
            last => format!("{text}: {last}"),
        };
        LibraryError { call, code, text }
    }
}

/// The text, or nothing for null.
///
/// # Safety
/// `text` is null or a C string that lives until this returns.
unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, so a C string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Opens the library at `wanted`, else the first of `names` that the loader finds.
fn open(
    what: &str,
    variable: &'static str,
    wanted: Option<&Path>,
    names: &[&str],
) -> Result<(Library, String), NcclUnavailable> {
    let paths: Vec<&OsStr> = match wanted {
        Some(path) => vec![path.as_os_str()],
        None => names.iter().map(OsStr::new).collect(),
    };
    let mut searched = Vec::new();
    for path in paths {
        let name = path.to_string_lossy().into_owned();
        // SAFETY: loading runs the initialisers of the driver or of NCCL, or of what the caller
        // named in their place, as any program that is linked with them does.
        match unsafe { Library::new(path) } {
            Ok(library) => return Ok((library, name)),
            Err(error) => searched.push(Searched {
                reason: reason(&error, &name),
                path: name,
            }),
        }
    }
    Err(NcclUnavailable::Absent {
        library: what.to_string(),
        variable,
        searched,
    })
}

/// What the system said, without the file's name and what this crate's loader adds.
fn reason(error: &dyn std::error::Error, name: &str) -> String {
    if let Some(source) = error.source() {
        return reason(source, name);
    }
    let said = error.to_string();
    let rest = said
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix(": "));
    rest.map_or(said.clone(), str::to_owned)
}

/// Finds one function.
///
/// # Safety
/// `F` is the type of the C function with this name.
unsafe fn symbol<F: Copy>(library: &Library, path: &str, name: &str) -> Result<F, NcclUnavailable> {
    // SAFETY: as the caller promises. The copy outlives the `Symbol`, but every library whose
    // functions are kept is never unloaded.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(NcclUnavailable::MissingSymbol {
            path: path.to_string(),
            symbol: name.to_string(),
        }),
    }
}
