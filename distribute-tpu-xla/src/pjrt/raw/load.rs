//! Loads a shared library and agrees with it on the version of the C API.

use std::error::Error;
use std::fmt;
use std::mem::{self, offset_of};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use super::api::{Api, call};
use super::bindings::{
    PJRT_API_MAJOR, PJRT_Api, PJRT_Api_Version, PJRT_Plugin_Attributes_Args,
    PJRT_Plugin_Initialize_Args,
};
use super::client::Client;
use super::named;
use super::topology::Topology;
use crate::pjrt::error::{ApiVersion, PjrtError, Result};
use crate::pjrt::search::PluginSearch;
use crate::pjrt::value::{Attributes, Value};

/// The oldest version whose table begins like today's; XLA's own loader has the same limit.
const OLDEST: ApiVersion = ApiVersion {
    major: PJRT_API_MAJOR,
    minor: 29,
};

/// The one function that a plugin exports.
type GetPjrtApi = unsafe extern "C" fn() -> *const PJRT_Api;

/// A PJRT plugin: XLA for one kind of device, behind the PJRT C API.
///
/// Cheap to clone. The library stays loaded until the process ends, also when every `Plugin` is
/// gone: plugins start threads that never end.
#[derive(Clone)]
pub struct Plugin {
    api: Arc<Api>,
}

impl Plugin {
    /// Loads the plugin in this file and initializes it. Blocks while the library starts: about
    /// half a second for XLA's CPU client.
    ///
    /// This runs the code of the library: load what you trust. libtpu reads its variables from the
    /// process environment now, see [`LibtpuEnvironment`](crate::pjrt::LibtpuEnvironment).
    ///
    /// # Errors
    ///
    /// [`Load`](PjrtError::Load) for a file that is missing or no shared library,
    /// [`NotAPlugin`](PjrtError::NotAPlugin), [`Version`](PjrtError::Version), and
    /// [`Initialize`](PjrtError::Initialize) with the plugin's words.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // With its folders, because the loader looks for a bare name in the system's.
        let path = path
            .canonicalize()
            .map_err(|error| load_error(path, &error))?;
        let table = open(&path)?;
        let version = version_of(&table);
        let api = Arc::new(Api {
            table,
            path,
            version,
        });
        initialize(&api)?;
        Ok(Self { api })
    }

    /// Loads the plugin that [`locate`](Self::locate) finds.
    ///
    /// # Errors
    ///
    /// The errors of `locate` and of [`load`](Self::load). A plugin that is found and cannot be
    /// loaded is an error; no other is tried.
    pub fn find(explicit: Option<&Path>) -> Result<Self> {
        Self::load(Self::locate(explicit)?)
    }

    /// Where the plugin to use is: the path given here, or else what a [`PluginSearch`] finds.
    ///
    /// # Errors
    ///
    /// [`NotFound`](PjrtError::NotFound) with all that was searched.
    pub fn locate(explicit: Option<&Path>) -> Result<PathBuf> {
        PluginSearch::new(explicit).find()
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        self.api.path()
    }

    /// The version of the C API that the plugin was built with.
    pub fn api_version(&self) -> ApiVersion {
        self.api.version
    }

    /// What the plugin says of itself, such as `xla_version` and `stablehlo_current_version`.
    ///
    /// # Errors
    ///
    /// The plugin's.
    pub fn attributes(&self) -> Result<Attributes> {
        let mut args = PJRT_Plugin_Attributes_Args::default();
        // SAFETY: no handles; the attributes live as long as the plugin and are copied.
        unsafe {
            call!(&self.api, PJRT_Plugin_Attributes, args)?;
            named::read(args.attributes, args.num_attributes)
        }
    }

    /// Opens the plugin's devices. Blocks until they are ready, which takes long on a TPU slice.
    ///
    /// XLA's CPU client of this project takes `cpu_device_count` and, for programs that run on the
    /// devices of several processes, `node_id`, `num_nodes` (int64) and `coordinator_address`
    /// (string, `host:port`).
    ///
    /// # Errors
    ///
    /// The plugin's: no device, held by another process, an unknown option.
    pub fn client(&self, options: &[(&str, Value)]) -> Result<Client> {
        Client::create(Arc::clone(&self.api), options)
    }

    /// Describes a set of devices by name, such as `v5e:2x4`, to compile for them without having
    /// them.
    ///
    /// # Errors
    ///
    /// The plugin's, for instance for a name that it does not know.
    pub fn topology(&self, name: &str, options: &[(&str, Value)]) -> Result<Topology> {
        Topology::create(Arc::clone(&self.api), name, options)
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Plugin({}, API {})",
            self.path().display(),
            self.api_version()
        )
    }
}

fn load_error(path: &Path, error: &dyn Error) -> PjrtError {
    // What the dynamic loader says is the source of libloading's error.
    let reason = error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string);
    PjrtError::Load {
        path: path.to_path_buf(),
        reason,
    }
}

fn no_plugin(path: &Path, reason: impl Into<String>) -> PjrtError {
    PjrtError::NotAPlugin {
        path: path.to_path_buf(),
        reason: reason.into(),
    }
}

/// Loads the library and copies its table.
fn open(path: &Path) -> Result<PJRT_Api> {
    // SAFETY: runs the initializers of a library that the user named as a plugin; see `load`.
    let library = unsafe { open_library(path) }.map_err(|error| load_error(path, &error))?;
    // SAFETY: the symbol of this name has this type in every version of the C API.
    let get_api = unsafe { library.get::<GetPjrtApi>(b"GetPjrtApi\0") }
        .map_err(|_| no_plugin(path, "it does not export the function GetPjrtApi"))?;
    // SAFETY: takes no argument; every plugin lets it be called at any time.
    let api = unsafe { get_api() };
    // From here on the library may have started threads and handed out addresses: it stays.
    mem::forget(library);
    if api.is_null() || !api.is_aligned() {
        return Err(no_plugin(
            path,
            "its GetPjrtApi returned no table of functions",
        ));
    }
    // SAFETY: not null, and a table begins with its size and stays valid and unchanged until the
    // process ends.
    unsafe { copy_table(path, api) }
}

/// All symbols are resolved now: a library with a hole fails here and not in the middle of a step.
#[cfg(unix)]
unsafe fn open_library(path: &Path) -> Result<libloading::Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // SAFETY: promised by the caller.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL).map(Into::into) }
}

#[cfg(not(unix))]
unsafe fn open_library(path: &Path) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: promised by the caller.
    unsafe { libloading::Library::new(path) }
}

/// Checks version and size of a plugin's table, and copies the part that both sides know.
///
/// # Safety
///
/// `api` points to a table whose first field tells how many bytes it has.
unsafe fn copy_table(path: &Path, api: *const PJRT_Api) -> Result<PJRT_Api> {
    const HEAD: usize = offset_of!(PJRT_Api, pjrt_api_version) + size_of::<PJRT_Api_Version>();
    // SAFETY: the size is the first field of every version.
    let size = unsafe { ptr::read(&raw const (*api).struct_size) };
    if size < HEAD {
        let reason = format!("its table has {size} bytes, too few for a version");
        return Err(no_plugin(path, reason));
    }
    let mut table = PJRT_Api::default();
    // Whole entries only: half a pointer is none.
    let known = size.min(size_of::<PJRT_Api>()) / size_of::<usize>() * size_of::<usize>();
    // SAFETY: both sides have `known` bytes, and do not overlap. What is copied are an integer,
    // pointers that are not followed, and functions, for which zero is `None`.
    unsafe {
        ptr::copy_nonoverlapping(api.cast::<u8>(), (&raw mut table).cast::<u8>(), known);
    }
    check_version(path, &table)?;
    Ok(table)
}

fn version_of(table: &PJRT_Api) -> ApiVersion {
    let version = &table.pjrt_api_version;
    ApiVersion {
        major: version.major_version,
        minor: version.minor_version,
    }
}

fn check_version(path: &Path, table: &PJRT_Api) -> Result<()> {
    let plugin = version_of(table);
    let refuse = |reason: String| {
        Err(PjrtError::Version {
            path: path.to_path_buf(),
            plugin,
            oldest: OLDEST,
            reason,
        })
    };
    if plugin.major != OLDEST.major {
        return refuse("another major version has other structs".to_string());
    }
    if plugin < OLDEST {
        return refuse("its structs are too old".to_string());
    }
    if table.PJRT_Error_Destroy.is_none() || table.PJRT_Error_Message.is_none() {
        return refuse("its table has no functions to read and free errors".to_string());
    }
    Ok(())
}

/// `PJRT_Plugin_Initialize`, without which libtpu aborts the process at the first other call.
fn initialize(api: &Api) -> Result<()> {
    let mut args = PJRT_Plugin_Initialize_Args::default();
    // SAFETY: takes nothing.
    let result = unsafe { call!(api, PJRT_Plugin_Initialize, args) };
    result.map_err(|error| match error {
        PjrtError::Plugin { code, message, .. } => PjrtError::Initialize {
            path: api.path.clone(),
            code,
            message,
        },
        other => other,
    })
}
