//! Where a plugin may be.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::{PjrtError, Result};

/// How the process environment is read; a test passes its own.
type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The variables that name a plugin's file, first hit wins.
const VARIABLES: [&str; 2] = ["PJRT_PLUGIN_LIBRARY_PATH", "TPU_LIBRARY_PATH"];

/// See [`Plugin::locate`](super::Plugin::locate).
pub(super) fn locate(explicit: Option<&Path>, environment: Environment<'_>) -> Result<PathBuf> {
    if let Some(path) = explicit {
        return Ok(path.to_path_buf());
    }
    let mut searched = Vec::new();
    for name in VARIABLES {
        match environment(name) {
            Some(path) if !path.is_empty() => return Ok(path.into()),
            _ => searched.push(format!("{name} (not set)")),
        }
    }
    let folders = site_packages(environment);
    for folder in &folders {
        if let Some(path) = installed(folder) {
            return Ok(path);
        }
    }
    let what = "libtpu/libtpu.so or a jax plugin";
    if folders.is_empty() {
        searched.push(format!(
            "{what} in Python's site-packages (there is no such folder)"
        ));
    }
    searched.extend(
        folders
            .iter()
            .map(|folder| format!("{what} in {}", folder.display())),
    );
    Err(PjrtError::NotFound { searched })
}

/// The plugin installed in a folder of Python packages: libtpu, else the first jax plugin by name.
fn installed(site_packages: &Path) -> Option<PathBuf> {
    let libtpu = site_packages.join("libtpu/libtpu.so");
    if libtpu.is_file() {
        return Some(libtpu);
    }
    let packages = children(&site_packages.join("jax_plugins"));
    let mut libraries = packages.iter().flat_map(|package| children(package));
    libraries.find(|path| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        // Beside the plugin lie Python's extension modules, which end with `.so` too.
        name.ends_with(".so") && name.contains("plugin") && path.is_file()
    })
}

/// The folders of Python packages that exist: of the active environment, of the interpreters on
/// the path, of the user and of the system, in this order.
fn site_packages(environment: Environment<'_>) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    if let Some(path) = environment("PYTHONPATH") {
        folders.extend(env::split_paths(&path).filter(|path| !path.as_os_str().is_empty()));
    }
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        folders.extend(
            environment(name)
                .into_iter()
                .flat_map(|root| of_prefix(root.as_ref())),
        );
    }
    for bin in environment("PATH").iter().flat_map(env::split_paths) {
        // Also from the folder that the link leads to: `python3` of a virtual environment or of a
        // version manager is one.
        let python = ["python3", "python"].map(|name| bin.join(name));
        let python = python.into_iter().find(|python| python.exists());
        for path in python
            .iter()
            .flat_map(|python| [Some(python.clone()), resolve(python)])
        {
            let prefix = path
                .as_deref()
                .and_then(Path::parent)
                .and_then(Path::parent);
            folders.extend(prefix.into_iter().flat_map(of_prefix));
        }
    }
    let home = environment("HOME").map(PathBuf::from);
    if let Some(root) = environment("PYENV_ROOT").map(PathBuf::from) {
        folders.extend(
            children(&root.join("versions"))
                .iter()
                .flat_map(|v| of_prefix(v)),
        );
    } else if let Some(home) = &home {
        let versions = children(&home.join(".pyenv/versions"));
        folders.extend(versions.iter().flat_map(|version| of_prefix(version)));
    }
    folders.extend(home.iter().flat_map(|home| of_prefix(&home.join(".local"))));
    for system in ["/usr/local", "/usr"] {
        folders.extend(of_prefix(system.as_ref()));
    }
    let mut unique = Vec::new();
    for folder in folders {
        if folder.is_dir() && !unique.contains(&folder) {
            unique.push(folder);
        }
    }
    unique
}

fn resolve(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

/// `lib/python3*/site-packages` and Debian's `dist-packages` below a Python's prefix.
fn of_prefix(prefix: &Path) -> Vec<PathBuf> {
    let versions = children(&prefix.join("lib")).into_iter().filter(|path| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        name.starts_with("python3")
    });
    let folders = |version: PathBuf| ["site-packages", "dist-packages"].map(|n| version.join(n));
    versions.flat_map(folders).collect()
}

/// What is in a folder, sorted; nothing if it cannot be read.
fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + use<> {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(n, v)| (n.to_string(), v.to_string()))
            .collect();
        move |name| {
            pairs
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, value)| value.into())
        }
    }

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn the_first_that_is_named_wins() {
        let pairs = [
            ("PJRT_PLUGIN_LIBRARY_PATH", "/b.so"),
            ("TPU_LIBRARY_PATH", "/c.so"),
        ];
        let both = environment(&pairs);
        assert_eq!(locate(Some(Path::new("a.so")), &both), Ok("a.so".into()));
        assert_eq!(locate(None, &both), Ok("/b.so".into()));
        assert_eq!(locate(None, &environment(&pairs[1..])), Ok("/c.so".into()));
        let empty = environment(&[
            ("PJRT_PLUGIN_LIBRARY_PATH", ""),
            ("TPU_LIBRARY_PATH", "/c.so"),
        ]);
        assert_eq!(locate(None, &empty), Ok("/c.so".into()));
    }

    #[test]
    fn packages_are_found_libtpu_first() {
        let root = tempfile::tempdir().unwrap();
        let packages = root.path().join("lib/python3.12/site-packages");
        let venv = environment(&[("VIRTUAL_ENV", root.path().to_str().unwrap())]);
        touch(&packages.join("jax_plugins/xla_cuda13/_versions.so"));
        touch(&packages.join("jax_plugins/xla_cuda13/xla_cuda_plugin.so"));
        let cuda = packages.join("jax_plugins/xla_cuda13/xla_cuda_plugin.so");
        assert_eq!(locate(None, &venv), Ok(cuda));
        touch(&packages.join("libtpu/libtpu.so"));
        assert_eq!(locate(None, &venv), Ok(packages.join("libtpu/libtpu.so")));
    }

    #[test]
    fn the_interpreter_on_the_path_leads_to_its_packages() {
        let root = tempfile::tempdir().unwrap();
        touch(&root.path().join("bin/python3"));
        touch(
            &root
                .path()
                .join("lib/python3.11/dist-packages/libtpu/libtpu.so"),
        );
        let path = environment(&[("PATH", root.path().join("bin").to_str().unwrap())]);
        let found = root
            .path()
            .join("lib/python3.11/dist-packages/libtpu/libtpu.so");
        assert_eq!(locate(None, &path), Ok(found));
    }

    #[test]
    fn the_error_lists_what_was_searched() {
        let root = tempfile::tempdir().unwrap();
        let packages = root.path().join("lib/python3.9/site-packages");
        fs::create_dir_all(&packages).unwrap();
        let venv = environment(&[("VIRTUAL_ENV", root.path().to_str().unwrap())]);
        // The system's own Python may have a plugin; then there is no error to look at.
        if let Err(error) = locate(None, &venv) {
            let text = error.to_string();
            assert!(
                text.contains("PJRT_PLUGIN_LIBRARY_PATH (not set)"),
                "{text}"
            );
            assert!(text.contains(packages.to_str().unwrap()), "{text}");
            let PjrtError::NotFound { searched } = error else {
                panic!("{error:?}");
            };
            let more = searched.len().saturating_sub(3);
            assert_eq!(text.contains(&format!("and {more} more places")), more > 0);
        }
    }
}
