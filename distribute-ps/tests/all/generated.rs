//! The committed code of the gRPC services and messages is that of `proto/`.
//!
//! `DISTRIBUTE_WRITE_GENERATED=1 cargo test -p distribute-ps --test all generated` writes it anew.

use std::path::{Path, PathBuf};

const MARK: &str = "// @generated from proto/ by the test `generated`.\n";
const FILES: &[&str] = &["proto/parameter_server.proto", "proto/rpc.proto"];

fn path(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(inside)
}

#[test]
fn the_code_is_that_of_the_proto_files() {
    let set = protox::compile(FILES.iter().map(|file| path(file)), [path("proto")]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .out_dir(directory.path())
        .compile_fds(set)
        .unwrap();
    let made = std::fs::read_to_string(directory.path().join("distribute.ps.v1.rs")).unwrap();
    let made = format!("{MARK}{made}");
    let committed = path("src/generated.rs");
    if std::env::var_os("DISTRIBUTE_WRITE_GENERATED").is_some() {
        std::fs::write(&committed, &made).unwrap();
    }
    let found = std::fs::read_to_string(committed).unwrap_or_default();
    assert!(
        found == made,
        "src/generated.rs is not what proto/ says; write it anew with DISTRIBUTE_WRITE_GENERATED=1"
    );
}
