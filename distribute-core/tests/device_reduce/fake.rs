//! The library in the places of the driver and of NCCL.

use std::path::{Path, PathBuf};

use distribute_core::collectives::nccl::NcclOptions;
use tempfile::TempDir;

use crate::built::library;

/// One copy of the library, loaded apart from all others.
pub struct Fake {
    directory: TempDir,
}

/// The library, built where that is needed.
pub fn built() -> &'static Path {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    library(&crate_directory.join("../distribute-collectives"))
}

impl Fake {
    /// A copy with these settings, which `fake-nccl/settings.rs` explains.
    pub fn new(settings: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::copy(built(), directory.path().join("libfake.so")).expect("a copy");
        let fake = Fake { directory };
        fake.set(settings);
        fake
    }

    pub fn set(&self, settings: &str) {
        let path = self.directory.path().join("fake.conf");
        std::fs::write(path, settings.replace(' ', "\n")).expect("settings");
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("libfake.so")
    }

    pub fn options(&self) -> NcclOptions {
        let library = self.path();
        NcclOptions::new(0)
            .nccl_library(&library)
            .cuda_library(&library)
            .grace(std::time::Duration::from_secs(2))
    }

    /// What exists in this process.
    pub fn stat(&self, name: &str) -> i64 {
        let file = format!("stats-{}", std::process::id());
        let text = std::fs::read_to_string(self.directory.path().join(file)).unwrap_or_default();
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        let found = lines.find(|(found, _)| *found == name);
        found.map_or(0, |(_, value)| value.parse().expect("a number"))
    }

    /// Nothing is left, and nothing was done that NCCL or the driver do not allow.
    pub fn assert_clean(&self) {
        for name in ["memory", "streams", "events", "contexts", "comms", "misuse"] {
            assert_eq!(self.stat(name), 0, "{name}");
        }
    }
}
