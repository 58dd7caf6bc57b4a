//! What a test wants: lines `NAME=VALUE` of the file `fake.conf` beside the library.
//!
//! | name | meaning | without it |
//! |---|---|---|
//! | `nccl` | what `ncclGetVersion` says | 22703 |
//! | `driver` | what `cuDriverGetVersion` says | 12080 |
//! | `devices` | number of devices | 8 |
//! | `one_uuid` | all devices are one | no |
//! | `polls` | polls until a call is done | 3 |
//! | `copy_ms` | how long a copy to the device takes | 0 |
//! | `refuse` | the rank whose communicator cannot be made | none |
//! | `error` | `RANK:N`: its group `N` (from 0) fails later by itself | none |
//! | `hang` | `RANK:N`: its group `N` does not end until it is aborted | none |
//! | `block` | `RANK:N`: the call that ends group `N` does not return until it is aborted | none |
//! | `slow` | `RANK:N`: each call of group `N` takes a second to look at its handle | none |
//! | `stuck_abort` | the rank whose abort does not return, and ends nothing | none |
//! | `dead` | `RANK:N`: its group `N` keeps the stream for good, also when it is aborted | none |

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The directory of this library.
pub fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let mut info = libc::Dl_info {
            dli_fname: std::ptr::null(),
            dli_fbase: std::ptr::null_mut(),
            dli_sname: std::ptr::null(),
            dli_saddr: std::ptr::null_mut(),
        };
        // SAFETY: a function of this library, and a variable that outlives the call.
        if unsafe { libc::dladdr(directory as *const libc::c_void, &raw mut info) } == 0 {
            return PathBuf::from(".");
        }
        // SAFETY: `dladdr` has set it to the path by which this library was loaded.
        let path = unsafe { CStr::from_ptr(info.dli_fname) };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        path.parent().unwrap_or(Path::new(".")).to_path_buf()
    })
}

/// The value of a setting.
pub fn text(name: &str) -> Option<String> {
    let text = std::fs::read_to_string(directory().join("fake.conf")).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once('='));
    let (_, value) = lines.find(|(found, _)| found.trim() == name)?;
    Some(value.trim().to_string())
}

/// A setting that is a number.
pub fn number(name: &str, default: i32) -> i32 {
    text(name)
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

/// Whether `RANK:N` is this rank and group.
pub fn concerns(name: &str, rank: usize, group: u64) -> bool {
    text(name).is_some_and(|value| value == format!("{rank}:{group}"))
}
