//! The committed code of the worker's gRPC service is that of `proto/worker.proto`.
//!
//! `DISTRIBUTE_WRITE_GENERATED=1 cargo test -p distribute-ps --test all generated` writes it anew.

use std::path::{Path, PathBuf};

const MARK: &str = "// @generated from proto/worker.proto by the test `coordinator::generated`.\n";

fn path(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(inside)
}

#[test]
fn the_code_is_that_of_the_proto_file() {
    let files = protox::compile([path("proto/worker.proto")], [path("proto")]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .bytes(".")
        .out_dir(directory.path())
        .compile_fds(files)
        .unwrap();
    let made = std::fs::read_to_string(directory.path().join("distribute.ps.v1.rs")).unwrap();
    let made = format!("{MARK}{made}");
    let committed = path("src/worker/generated.rs");
    if std::env::var_os("DISTRIBUTE_WRITE_GENERATED").is_some() {
        std::fs::write(&committed, &made).unwrap();
    }
    assert!(
        std::fs::read_to_string(committed).unwrap_or_default() == made,
        "src/worker/generated.rs is not what proto/ says; write it anew with \
         DISTRIBUTE_WRITE_GENERATED=1"
    );
}
