//! A directory that is created completely or not at all.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::failure::Failure;

/// A temporary directory that is renamed when it is complete, and removed otherwise.
pub(super) struct WholeDirectory(TempDir);

impl WholeDirectory {
    /// Creates it with a name that begins with `prefix`.
    pub(super) fn beside(place: &Path, prefix: &str) -> Result<Self, Failure> {
        let parent = place
            .parent()
            .filter(|parent| *parent != Path::new(""))
            .unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // The mode of any new directory, minus the user's umask.
            builder.permissions(fs::Permissions::from_mode(0o777));
        }
        let made = fs::create_dir_all(parent).and_then(|()| builder.tempdir_in(parent));
        made.map(Self)
            .map_err(|error| Failure::of_file(&error, &error).in_file(place))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Renames it to its final path.
    pub(super) fn put(self, place: &Path) -> Result<(), Failure> {
        let renamed = fs::rename(self.path(), place);
        renamed.map_err(|error| Failure::of_file(&error, &error).in_file(place))?;
        // Nothing has to be removed any more.
        let _ = self.0.keep();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::WholeDirectory;

    #[test]
    fn what_does_not_get_to_its_place_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a/certs");
        let whole = WholeDirectory::beside(&place, ".half-").unwrap();
        fs::write(whole.path().join("ca.pem"), "half").unwrap();
        drop(whole);
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 0);
        let whole = WholeDirectory::beside(&place, ".half-").unwrap();
        fs::write(whole.path().join("ca.pem"), "whole").unwrap();
        whole.put(&place).unwrap();
        assert!(place.join("ca.pem").is_file());
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 1);
    }
}
