//! What a process says of itself and of its host.

use std::fs;

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

/// What is compared between the processes of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct Facts {
    /// The version of the program; builds that differ refuse each other in a job.
    pub version: String,
    /// The cargo features of the program.
    pub features: String,
    /// The extensions of the processor that kernels use.
    pub cpu_features: Vec<String>,
    /// The processors that this process may use.
    pub cores: usize,
    /// Operating system and architecture.
    pub system: String,
    /// The name of the host.
    pub host: String,
    /// Tells hosts apart by what separates networks: the machine since its start, and its network
    /// namespace. Empty where the system does not say.
    pub network: String,
    /// How many file descriptors the process may open at once (the soft limit); `None` for any
    /// number.
    pub descriptors: Option<u64>,
    /// How far a process may raise that (the hard limit); `None` for any number.
    pub descriptors_max: Option<u64>,
}

impl Facts {
    /// What the system says of this process, for a program of this version with these features.
    pub fn of_this_process(version: impl Into<String>, features: impl Into<String>) -> Self {
        let limit = getrlimit(Resource::Nofile);
        let cores = std::thread::available_parallelism();
        Self {
            version: version.into(),
            features: features.into(),
            cpu_features: Vec::new(),
            cores: cores.map_or(1, usize::from),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            host: gethostname::gethostname().to_string_lossy().into_owned(),
            network: network(),
            descriptors: limit.current,
            descriptors_max: limit.maximum,
        }
    }

    /// The extensions of the processor that the program's kernels use.
    #[must_use]
    pub fn with_cpu_features(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.cpu_features = names.into_iter().map(Into::into).collect();
        self
    }
}

fn network() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    match boot.trim() {
        "" => String::new(),
        boot => format!("{boot} {}", space.display()),
    }
}
