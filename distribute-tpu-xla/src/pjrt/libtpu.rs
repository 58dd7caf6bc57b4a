//! What libtpu reads from the process environment.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use super::error::{PjrtError, Result};

/// The variables that libtpu needs to compile on a machine without a TPU.
///
/// libtpu reads them while it is loaded and initialized. Without `TPU_SKIP_MDS_QUERY=1` it asks
/// Google Cloud's metadata server for minutes; without `ALLOW_MULTIPLE_LIBTPU_LOAD=1` only one
/// process at a time can use it.
///
/// This library never changes the environment of its own process: with other threads running that
/// is undefined behaviour. So a program sets them where it is safe: in the shell, in the job's
/// description, or by starting itself once more:
///
/// ```
/// use distribute_tpu_xla::pjrt::LibtpuEnvironment;
///
/// let environment = LibtpuEnvironment::compile_only();
/// let mut again = std::process::Command::new("distribute-cli");
/// environment.apply_to(&mut again); // sets the variables that the user has not set
/// ```
///
/// On a machine with a TPU none of them is needed.
#[derive(Debug, Clone)]
pub struct LibtpuEnvironment {
    variables: &'static [(&'static str, &'static str)],
}

/// The first is needed; the others keep libtpu from complaining and from locking out others.
const COMPILE_ONLY: [(&str, &str); 5] = [
    ("TPU_SKIP_MDS_QUERY", "1"),
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
    ("TPU_ACCELERATOR_TYPE", "v5litepod-8"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("TPU_WORKER_ID", "0"),
];

/// How many of [`COMPILE_ONLY`] must be set.
const NEEDED: usize = 1;

impl LibtpuEnvironment {
    /// For [`Plugin::topology`](super::Plugin::topology) on a machine without a TPU. The topology
    /// is the one that is asked for by name, whatever these variables say.
    pub fn compile_only() -> Self {
        Self {
            variables: &COMPILE_ONLY,
        }
    }

    /// All variables, with their values.
    pub fn variables(&self) -> &'static [(&'static str, &'static str)] {
        self.variables
    }

    /// Gives a process that is about to start the variables that this process has not set itself.
    pub fn apply_to(&self, command: &mut Command) {
        for (name, value) in self.variables {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
    }

    /// Whether `plugin` is libtpu, by the name of its file; other plugins need none of this.
    pub fn is_for(plugin: &Path) -> bool {
        let name = plugin
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        name.starts_with("libtpu")
    }

    /// Checks that this process was started with the needed variables.
    ///
    /// # Errors
    ///
    /// [`Environment`](PjrtError::Environment), with what to set.
    pub fn check(&self) -> Result<()> {
        self.check_in(&|name| std::env::var_os(name))
    }

    fn check_in(&self, environment: &dyn Fn(&str) -> Option<OsString>) -> Result<()> {
        let needed = self.variables.iter().take(NEEDED);
        let missing: Vec<_> = needed
            .filter(|(name, _)| environment(name).is_none_or(|v| v.is_empty()))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(PjrtError::Environment { missing })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let environment = LibtpuEnvironment::compile_only();
        let error = environment.check_in(&|_| None).unwrap_err().to_string();
        assert!(error.ends_with("set TPU_SKIP_MDS_QUERY=1"), "{error}");
        assert_eq!(environment.check_in(&|_| Some("1".into())), Ok(()));
        assert!(LibtpuEnvironment::is_for("/x/libtpu.so".as_ref()));
        assert!(!LibtpuEnvironment::is_for(
            "/libtpu/xla_cuda_plugin.so".as_ref()
        ));
    }
}
