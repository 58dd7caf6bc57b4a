//! Where a plugin may be.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::{PjrtError, Result};

/// How the process environment is read; a test passes its own.
type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Variables that name a plugin's file, first hit wins; the first is for a plugin of CPUs.
const VARIABLES: [&str; 3] = [
    "PJRT_CPU_PLUGIN",
    "PJRT_PLUGIN_LIBRARY_PATH",
    "TPU_LIBRARY_PATH",
];

/// Where `distribute-tpu-xla/pjrt-cpu/build` puts XLA's CPU client, below the user's cache.
const CPU_CLIENT: &str = "distribute/pjrt-cpu/2.21.0/pjrt_c_api_cpu_plugin.so";

/// Where `distribute-tpu-xla/pjrt-cpu/fetch-libtpu` puts versions of libtpu.
const FETCHED: &str = "distribute/libtpu";

/// The one search for a PJRT plugin, which everything that needs one makes.
///
/// The first of these that is there is the plugin:
///
/// 1. the file that is given explicitly (`--pjrt-plugin`);
/// 2. the file that `PJRT_CPU_PLUGIN`, `PJRT_PLUGIN_LIBRARY_PATH` or `TPU_LIBRARY_PATH` names, in
///    this order;
/// 3. `libtpu/libtpu.so`, or else a plugin for jax, among the Python packages: of `PYTHONPATH`, of
///    the active environment, of the interpreters on the path, of the user and of the system;
/// 4. in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`), XLA's CPU client where
///    `distribute-tpu-xla/pjrt-cpu/build` puts it.
///
/// A search for a [topology](Self::topology) of TPUs leaves out what can only be a plugin of CPUs,
/// `PJRT_CPU_PLUGIN` and XLA's CPU client, and looks in the cache for what
/// `distribute-tpu-xla/pjrt-cpu/fetch-libtpu` has put there instead.
#[must_use]
pub struct PluginSearch<'a> {
    explicit: Option<&'a Path>,
    for_tpus: bool,
    environment: Option<Environment<'a>>,
}

impl<'a> PluginSearch<'a> {
    /// For devices of this machine; in the environment of this process.
    pub fn new(explicit: Option<&'a Path>) -> Self {
        Self {
            explicit,
            for_tpus: false,
            environment: None,
        }
    }

    /// To compile for devices by name, such as `v5e:2x4`, or `cpu:4`.
    pub fn topology(mut self, name: &str) -> Self {
        self.for_tpus = !name.starts_with("cpu");
        self
    }

    /// With the variables of another environment.
    pub fn environment(mut self, variable: Environment<'a>) -> Self {
        self.environment = Some(variable);
        self
    }

    /// Where the plugin is.
    ///
    /// # Errors
    ///
    /// [`NotFound`](PjrtError::NotFound) with all that was searched.
    pub fn find(&self) -> Result<PathBuf> {
        let own = |name: &str| env::var_os(name);
        let environment = self.environment.unwrap_or(&own);
        if let Some(path) = self.explicit {
            return Ok(path.to_path_buf());
        }
        let mut searched = Vec::new();
        for name in &VARIABLES[usize::from(self.for_tpus)..] {
            match environment(name) {
                Some(path) if !path.is_empty() => return Ok(path.into()),
                _ => searched.push(format!("{name} (not set)")),
            }
        }
        let folders = site_packages(environment);
        if let Some(path) = folders.iter().find_map(|folder| installed(folder)) {
            return Ok(path);
        }
        match self.cached(environment) {
            Ok(path) => return Ok(path),
            Err(place) => searched.push(place),
        }
        let what = "libtpu/libtpu.so or a jax plugin";
        if folders.is_empty() {
            searched.push(format!(
                "{what} in Python's site-packages (there is no such folder)"
            ));
        }
        let folders = folders.iter();
        searched.extend(folders.map(|folder| format!("{what} in {}", folder.display())));
        Err(PjrtError::NotFound { searched })
    }

    /// What is in the user's cache, or where it would be.
    fn cached(&self, environment: Environment<'_>) -> std::result::Result<PathBuf, String> {
        let set = |name| environment(name).filter(|value| !value.is_empty());
        let home = || Some(PathBuf::from(set("HOME")?).join(".cache"));
        let cache = set("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(home)
            .ok_or("the user's cache (neither XDG_CACHE_HOME nor HOME is set)")?;
        let (place, found) = if self.for_tpus {
            let place = cache.join(FETCHED);
            let versions = children(&place).into_iter();
            let files = versions.map(|version| version.join("libtpu/libtpu.so"));
            let there = files.filter(|file| file.is_file());
            (place, there.max_by_key(|file| numbers(file)))
        } else {
            let place = cache.join(CPU_CLIENT);
            (place.clone(), Some(place).filter(|file| file.is_file()))
        };
        found.ok_or_else(|| format!("{} (not there)", place.display()))
    }
}

/// The numbers in a path, so that version 0.0.9 is older than 0.0.40.
fn numbers(path: &Path) -> Vec<u64> {
    let path = path.to_string_lossy();
    let parts = path.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

impl fmt::Debug for PluginSearch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginSearch")
            .field("explicit", &self.explicit)
            .field("for_tpus", &self.for_tpus)
            .finish_non_exhaustive()
    }
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

    fn locate(explicit: Option<&Path>, environment: Environment<'_>) -> Result<PathBuf> {
        let search = PluginSearch::new(explicit).environment(environment);
        search.find()
    }

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
            ("PJRT_CPU_PLUGIN", "/cpu.so"),
        ];
        let all = environment(&pairs);
        assert_eq!(locate(Some(Path::new("a.so")), &all), Ok("a.so".into()));
        assert_eq!(locate(None, &all), Ok("/cpu.so".into()));
        let of_topology = |name| {
            PluginSearch::new(None)
                .topology(name)
                .environment(&all)
                .find()
        };
        assert_eq!(of_topology("v5e:2x4"), Ok("/b.so".into()));
        assert_eq!(of_topology("cpu:4"), Ok("/cpu.so".into()));
        let both = environment(&pairs[..2]);
        assert_eq!(locate(None, &both), Ok("/b.so".into()));
        assert_eq!(locate(None, &environment(&pairs[1..2])), Ok("/c.so".into()));
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

    /// All places, of which the message names the first.
    fn searched(error: PjrtError) -> Vec<String> {
        match error {
            PjrtError::NotFound { searched } => searched,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_the_repositorys_commands_have_made_is_found_in_the_cache() {
        let root = tempfile::tempdir().unwrap();
        for (name, cache) in [("HOME", ".cache"), ("XDG_CACHE_HOME", "")] {
            let cache = root.path().join(name).join(cache);
            let set = root.path().join(name);
            let pairs = [(name, set.to_str().unwrap())];
            let found = |topology| {
                let pairs = environment(&pairs);
                let search = PluginSearch::new(None).topology(topology);
                search.environment(&pairs).find()
            };
            // The system's own Python may have a plugin, which comes first.
            let Err(nothing) = found("cpu:2") else {
                println!("SKIPPED: this system's Python has a plugin");
                return;
            };
            let built = cache.join(CPU_CLIENT);
            let text = searched(nothing).join("; ");
            assert!(text.contains(built.to_str().unwrap()), "{text}");
            touch(&built);
            assert_eq!(found("cpu:2"), Ok(built.clone()));
            let nothing = searched(found("v5e:2x4").unwrap_err()).join("; ");
            assert!(!nothing.contains("pjrt-cpu"), "{nothing}");
            for version in ["0.0.9", "0.0.50", "0.0.51"] {
                touch(&cache.join(FETCHED).join(version).join("libtpu/libtpu.so"));
            }
            let newest = cache.join(FETCHED).join("0.0.51/libtpu/libtpu.so");
            assert_eq!(found("v5e:2x4"), Ok(newest));
            assert_eq!(found("cpu:2"), Ok(built));
        }
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
            let searched = searched(error);
            let all = searched.join("; ");
            assert!(all.contains(packages.to_str().unwrap()), "{all}");
            let more = searched.len().saturating_sub(4);
            assert_eq!(text.contains(&format!("and {more} more places")), more > 0);
        }
    }
}
