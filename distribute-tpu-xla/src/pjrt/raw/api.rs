//! A plugin's table of functions, and the errors that they return.

use std::path::{Path, PathBuf};
use std::slice;

use super::bindings::{
    PJRT_Api, PJRT_Error, PJRT_Error_Destroy_Args, PJRT_Error_GetCode_Args, PJRT_Error_Message_Args,
};
use crate::pjrt::error::{ApiVersion, ErrorCode, PjrtError, Result};

/// A loaded and initialized plugin.
pub(super) struct Api {
    /// A copy, in which every entry that the plugin's own table does not cover is `None`.
    pub table: PJRT_Api,
    pub path: PathBuf,
    pub version: ApiVersion,
}

// SAFETY: the table holds functions, which the C API lets any thread call, and a pointer to
// extensions that is never read. The library they live in is never unloaded.
unsafe impl Send for Api {}
// SAFETY: as above; nothing in it is ever written.
unsafe impl Sync for Api {}

/// Calls an entry of the table: `call!(api, PJRT_Client_Destroy, args)` with `args` a mutable
/// variable of that function's struct. `unsafe`: the arguments must be what the function expects.
macro_rules! call {
    ($api:expr, $function:ident, $args:expr) => {{
        let api: &$crate::pjrt::raw::api::Api = $api;
        match api.table.$function {
            Some(function) => api.check(stringify!($function), function(&mut $args)),
            None => Err(api.missing(stringify!($function))),
        }
    }};
}
pub(super) use call;

impl Api {
    /// The file of the plugin.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn missing(&self, function: &'static str) -> PjrtError {
        let (path, version) = (self.path.clone(), self.version);
        PjrtError::MissingFunction {
            function,
            path,
            version,
        }
    }

    /// Turns what `function` returned into a result, and frees it.
    ///
    /// # Safety
    ///
    /// `error` is null or an error of this plugin that nothing else frees.
    pub unsafe fn check(&self, function: &'static str, error: *mut PJRT_Error) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: promised by the caller; the error is freed here and not used afterwards.
        let (code, message) = unsafe { self.take_error(error) };
        Err(PjrtError::Plugin {
            function,
            code,
            message,
        })
    }

    /// Reads and frees an error.
    unsafe fn take_error(&self, error: *mut PJRT_Error) -> (ErrorCode, String) {
        let mut message = String::from("the plugin gives no reason");
        let mut args = PJRT_Error_Message_Args {
            error,
            ..Default::default()
        };
        if let Some(function) = self.table.PJRT_Error_Message {
            // SAFETY: the error is alive, and its message until the error is destroyed below.
            message = unsafe {
                function(&mut args);
                string(args.message, args.message_size)
            };
        }
        let mut code = ErrorCode::Unknown;
        let mut args = PJRT_Error_GetCode_Args {
            error,
            ..Default::default()
        };
        if let Some(function) = self.table.PJRT_Error_GetCode {
            // SAFETY: the error is alive.
            let failed = unsafe { function(&mut args) };
            if failed.is_null() {
                code = ErrorCode::from_number(args.code);
            } else {
                self.destroy_error(failed);
            }
        }
        self.destroy_error(error);
        (code, message)
    }

    fn destroy_error(&self, error: *mut PJRT_Error) {
        let mut args = PJRT_Error_Destroy_Args {
            error,
            ..Default::default()
        };
        if let Some(function) = self.table.PJRT_Error_Destroy {
            // SAFETY: only `take_error` calls this, once for each error.
            unsafe { function(&mut args) };
        }
    }
}

/// Logs why a handle could not be destroyed: a destructor cannot return an error.
pub(super) fn log_destroy(result: Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "a PJRT handle was not destroyed");
    }
}

/// Refuses a null where the C API promises an object.
pub(super) fn non_null<T>(function: &'static str, pointer: *mut T) -> Result<*mut T> {
    if pointer.is_null() {
        return Err(malformed(
            function,
            "it succeeded and returned a null pointer",
        ));
    }
    Ok(pointer)
}

pub(super) fn malformed(function: &'static str, what: impl Into<String>) -> PjrtError {
    PjrtError::Malformed {
        function,
        what: what.into(),
    }
}

/// Copies text that a plugin lends. Bytes that are no UTF-8 become replacement characters.
///
/// # Safety
///
/// `text` points to `size` readable bytes, or is null.
pub(super) unsafe fn string(text: *const std::ffi::c_char, size: usize) -> String {
    // SAFETY: the same promise.
    String::from_utf8_lossy(unsafe { lent(text.cast::<u8>(), size) }).into_owned()
}

/// An array that a plugin lends; a null pointer is an empty one, and so is what no memory can hold.
///
/// # Safety
///
/// `first` points to `length` values that stay alive and unchanged for `'a`, or is null.
pub(super) unsafe fn lent<'a, T>(first: *const T, length: usize) -> &'a [T] {
    let most = isize::MAX as usize / size_of::<T>().max(1);
    if first.is_null() || length == 0 || length > most {
        return &[];
    }
    // SAFETY: the same promise, and not null.
    unsafe { slice::from_raw_parts(first, length) }
}
