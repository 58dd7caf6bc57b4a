//! The library `fake-nccl/` as cargo has built it; shared with the tests of other crates.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Where the library is. `cargo test` of the whole crate builds it too; where it is older than its
/// sources, it is built here.
pub fn library(collectives: &Path) -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("this program");
        let target = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
        let path = target.join("examples/libfake_nccl.so");
        let built = std::fs::metadata(&path).and_then(|file| file.modified());
        if built.is_ok_and(|built| built > last_change(collectives)) {
            return path;
        }
        let profile = match target.file_name() {
            Some(name) if name != "debug" => name.to_str().expect("a profile"),
            _ => "dev",
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .current_dir(collectives)
            // With what the whole workspace was built of.
            .args(["build", "--workspace", "--example", "fake_nccl"])
            .args(["--features", "distribute-collectives/nccl"])
            .args(["--profile", profile, "--target-dir"])
            .arg(target.parent().expect("target"));
        for (name, _) in std::env::vars_os() {
            // Of the crate whose test this is: build scripts that watch them would run again.
            let is_of_test =
                |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIF");
            if name.to_str().is_some_and(is_of_test) {
                command.env_remove(name);
            }
        }
        let status = command.status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "the fake does not build"
        );
        path
    })
}

/// When the sources of the fake were changed.
fn last_change(collectives: &Path) -> SystemTime {
    let files = std::fs::read_dir(collectives.join("fake-nccl")).expect("its sources");
    let changes = files.filter_map(|file| file.ok()?.metadata().ok()?.modified().ok());
    changes.max().expect("files")
}
