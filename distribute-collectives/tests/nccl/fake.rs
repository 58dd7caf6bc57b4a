//! The libraries in the places of the driver and of NCCL.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use distribute_collectives::nccl::{self, NcclCommunicator, NcclOptions};
use distribute_collectives::{GroupOptions, InProcessCommunicator};
use tempfile::TempDir;

use super::built::library;

/// A rank among threads.
pub type Rank = NcclCommunicator<InProcessCommunicator>;

/// One copy of the library, loaded apart from all others.
pub struct Fake {
    directory: TempDir,
}

impl Fake {
    /// A copy with these settings, which `fake-nccl/settings.rs` explains.
    pub fn new(settings: &str) -> Fake {
        let directory = tempfile::tempdir().expect("a directory");
        let library = library(Path::new(env!("CARGO_MANIFEST_DIR")));
        std::fs::copy(library, directory.path().join("libfake.so")).expect("a copy");
        let fake = Fake { directory };
        fake.set(settings);
        fake
    }

    pub fn set(&self, settings: &str) {
        let path = self.directory.path().join("fake.conf");
        std::fs::write(path, settings.replace(' ', "\n")).expect("settings");
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("libfake.so")
    }

    pub fn options(&self, device: usize) -> NcclOptions {
        options(&self.path(), device)
    }

    /// A group of threads.
    pub fn group(&self, world_size: usize) -> Vec<Rank> {
        self.group_with(world_size, GroupOptions::default(), self.options(0))
    }

    pub fn group_with(
        &self,
        world_size: usize,
        group: GroupOptions,
        options: NcclOptions,
    ) -> Vec<Rank> {
        let devices: Vec<usize> = (0..world_size).collect();
        nccl::in_process(&devices, group, options).expect("a group")
    }

    /// What exists in this process.
    pub fn stats(&self) -> BTreeMap<String, i64> {
        let name = format!("stats-{}", std::process::id());
        let text = std::fs::read_to_string(self.directory.path().join(name)).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once('='));
        lines
            .map(|(name, value)| (name.to_string(), value.parse().expect("a number")))
            .collect()
    }

    pub fn stat(&self, name: &str) -> i64 {
        self.stats().get(name).copied().unwrap_or(0)
    }

    /// Nothing is left, and nothing was done that NCCL or the driver do not allow.
    pub fn assert_clean(&self) {
        for name in [
            "memory",
            "host_memory",
            "streams",
            "events",
            "contexts",
            "comms",
            "misuse",
        ] {
            assert_eq!(self.stat(name), 0, "{name} of {:?}", self.stats());
        }
    }
}

pub fn options(library: &Path, device: usize) -> NcclOptions {
    NcclOptions::new(device)
        .nccl_library(library)
        .cuda_library(library)
}
