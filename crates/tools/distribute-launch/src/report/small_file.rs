//! Small files that processes write for the launcher.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Reads the beginning of a file; `None` if there is no regular file: a pipe, for one, could block
/// the reader.
pub fn read(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).ok()?;
    let opened = File::options().read(true).custom_flags(flags).open(path);
    let file = opened.ok()?;
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return None;
    }
    let mut text = Vec::new();
    file.take(bytes_max).read_to_end(&mut text).ok()?;
    Some(text)
}
