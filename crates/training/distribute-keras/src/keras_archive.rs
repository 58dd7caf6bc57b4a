//! The zip archive that a `.keras` file is.

use std::io::{self, Read};

use zip::ZipArchive;

/// The members of a `.keras` file.
pub(crate) const CONFIG: &str = "config.json";
pub(crate) const METADATA: &str = "metadata.json";
pub(crate) const WEIGHTS: &str = "model.weights.h5";
/// Deflate expands nothing more than this.
const EXPANSION: u64 = 1032;

/// What is wrong with an archive.
pub(crate) fn damaged(error: &io::Error) -> String {
    format!("a zip archive that is cut off or damaged ({error})")
}

/// Whether an archive has a member of this name.
pub(crate) fn has_member(bytes: &[u8], name: &str) -> bool {
    let archive = ZipArchive::new(io::Cursor::new(bytes));
    archive.is_ok_and(|archive| archive.index_for_name(name).is_some())
}

/// A member of an archive; `None` if there is none of this name.
pub(crate) fn member(bytes: &[u8], name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut archive = ZipArchive::new(io::Cursor::new(bytes)).map_err(io::Error::other)?;
    if archive.index_for_name(name).is_none() {
        return Ok(None);
    }
    let mut read = Vec::new();
    let member = archive.by_name(name).map_err(io::Error::other)?;
    let most = (bytes.len() as u64).saturating_mul(EXPANSION);
    // One byte more than an archive of this length can hold.
    let count = member.take(most.saturating_add(1)).read_to_end(&mut read)?;
    if count as u64 > most {
        return Err(io::Error::other(format!("{name} is too large for it")));
    }
    Ok(Some(read))
}
