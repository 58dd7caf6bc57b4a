//! Files that are there whole or not at all.

use std::fs::{self, File, Permissions};
use std::io;
use std::path::Path;

use tempfile::Builder;

/// Puts what `write` writes in the place of `path`, once it is on the disk: a crash or a full disk
/// leaves what was there. It is written beside it, into a new file with a name that nobody can
/// guess, which follows no link; one that is replaced keeps its permissions.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().filter(|parent| *parent != Path::new(""));
    let mut builder = Builder::new();
    builder.prefix(".new-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As of any new file: less what the user's mask takes away.
        builder.permissions(Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
    write(file.as_file_mut())?;
    if let Ok(before) = fs::metadata(path) {
        file.as_file().set_permissions(before.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
