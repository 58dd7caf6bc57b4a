//! Finds optional libraries by their files. Nothing is loaded, because a broken driver must not end
//! `doctor`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

#[cfg(feature = "full")]
use distribute_tpu_xla::pjrt::{PjrtError, PluginSearch};

/// An optional library of a strategy or communicator.
#[derive(Debug)]
pub(crate) struct Library {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its purpose.
    pub(crate) purpose: &'static str,
    /// The path at which it was found.
    pub(crate) path: Option<PathBuf>,
    /// Its version, if the file's name contains it.
    pub(crate) version: Option<String>,
    /// The searched paths.
    pub(crate) searched: Vec<String>,
}

/// Name, purpose, file names, environment variables that may hold its path.
type Wanted = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const WANTED: [Wanted; 3] = [
    (
        "CUDA driver",
        "NVIDIA GPUs",
        &["libcuda.so.1", "libcuda.so"],
        &["DISTRIBUTE_CUDA_LIBRARY"],
    ),
    (
        "NCCL",
        "collectives between GPUs",
        &["libnccl.so.2", "libnccl.so"],
        &["DISTRIBUTE_NCCL_LIBRARY"],
    ),
    (
        "MPI",
        "collectives on a cluster's fabric",
        &["libmpi.so.40", "libmpi.so.12", "libmpi.so"],
        &[],
    ),
];

const FOLDERS: [&str; 9] = [
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib",
    "/lib/x86_64-linux-gnu",
    "/opt/openmpi/lib",
];

/// Searches for all of them. `variable` reads the environment.
pub(crate) fn find_all(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<Library> {
    let folders = folders(variable);
    let found = WANTED.iter().map(|wanted| find(wanted, &folders, variable));
    #[cfg(feature = "full")]
    let found = found.chain([pjrt_plugin(variable)]);
    found.collect()
}

/// Uses the search of `--strategy tpu`.
#[cfg(feature = "full")]
fn pjrt_plugin(variable: &dyn Fn(&str) -> Option<OsString>) -> Library {
    let found = PluginSearch::new(None).environment(variable).find();
    let searched = match &found {
        Err(PjrtError::NotFound { searched }) => searched.clone(),
        _ => Vec::new(),
    };
    let path = found.ok();
    Library {
        name: "PJRT plugin",
        purpose: "TPUs and other XLA devices",
        version: path.as_deref().and_then(version),
        path,
        searched,
    }
}

/// `LD_LIBRARY_PATH` first, then the folders in `ld.so.conf`, then the usual places.
fn folders(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    if let Some(path) = variable("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&path).filter(|path| !path.as_os_str().is_empty()));
    }
    let configurations = std::fs::read_dir("/etc/ld.so.conf.d")
        .into_iter()
        .flatten()
        .flatten();
    let mut configured = BTreeSet::new();
    for file in configurations {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with('/'));
        configured.extend(lines.map(PathBuf::from));
    }
    folders.extend(configured);
    folders.extend(FOLDERS.map(PathBuf::from));
    let mut seen = BTreeSet::new();
    folders.retain(|folder| seen.insert(folder.clone()));
    folders
}

fn find(
    (name, purpose, files, variables): &Wanted,
    folders: &[PathBuf],
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Library {
    let named: Vec<PathBuf> = variables
        .iter()
        .filter_map(|name| variable(name))
        .map(PathBuf::from)
        .collect();
    let in_folders = folders
        .iter()
        .flat_map(|folder| files.iter().map(move |file| folder.join(file)));
    let path = named
        .iter()
        .cloned()
        .chain(in_folders)
        .find(|path| path.is_file());
    Library {
        name,
        purpose,
        version: path.as_deref().and_then(version),
        path,
        searched: named
            .iter()
            .chain(folders)
            .map(|path| path.display().to_string())
            .collect(),
    }
}

/// `libnccl.so.2` is a link to `libnccl.so.2.21.5`.
fn version(path: &Path) -> Option<String> {
    let file = path.canonicalize().ok()?;
    let name = file.file_name()?.to_str()?;
    let version = name.split_once(".so.")?.1;
    let is_version = version.chars().all(|c| c.is_ascii_digit() || c == '.');
    is_version.then(|| version.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_variable_or_folder_with_its_version() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libnccl.so.2.21.5"), "").unwrap();
        let link = folder.path().join("libnccl.so.2");
        std::os::unix::fs::symlink("libnccl.so.2.21.5", &link).unwrap();
        let plugin = folder.path().join("my_plugin.so");
        std::fs::write(&plugin, "").unwrap();
        let environment = |name: &str| match name {
            "LD_LIBRARY_PATH" => Some(folder.path().as_os_str().to_owned()),
            "PJRT_PLUGIN_LIBRARY_PATH" => Some(plugin.as_os_str().to_owned()),
            _ => None,
        };
        let found = find_all(&environment);
        let by_name = |name: &str| found.iter().find(|library| library.name == name).unwrap();
        let nccl = by_name("NCCL");
        assert_eq!(nccl.path.as_deref(), Some(&*link));
        assert_eq!(nccl.version.as_deref(), Some("2.21.5"));
        assert_eq!(nccl.searched[0], folder.path().display().to_string());
        assert_eq!(by_name("PJRT plugin").path.as_deref(), Some(&*plugin));
        for (library, variable) in [
            ("NCCL", "DISTRIBUTE_NCCL_LIBRARY"),
            ("CUDA driver", "DISTRIBUTE_CUDA_LIBRARY"),
        ] {
            let named = |name: &str| (name == variable).then(|| plugin.as_os_str().to_owned());
            let all = find_all(&named);
            let found = all.iter().find(|one| one.name == library).unwrap();
            assert_eq!(found.path.as_deref(), Some(&*plugin), "{variable}");
        }
    }
}
