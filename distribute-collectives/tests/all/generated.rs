//! The committed code and descriptors of the gRPC services are those of `proto/`.
//!
//! `DISTRIBUTE_WRITE_GENERATED=1 cargo test -p distribute-collectives --test all generated` writes
//! them anew.

use std::path::{Path, PathBuf};

use protox::prost::Message;

const MARK: &str = "// @generated from proto/control.proto by the test `generated`.\n";

fn path(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(inside)
}

/// Writes or compares one file.
fn check(inside: &str, made: &[u8]) {
    if std::env::var_os("DISTRIBUTE_WRITE_GENERATED").is_some() {
        std::fs::write(path(inside), made).unwrap();
    }
    let committed = std::fs::read(path(inside)).unwrap_or_default();
    assert!(
        committed == made,
        "{inside} is not what proto/ says; write it anew with DISTRIBUTE_WRITE_GENERATED=1"
    );
}

#[test]
fn the_code_is_that_of_the_proto_files() {
    let control = protox::compile([path("proto/control.proto")], [path("proto")]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    // The messages alone: the service has one method, which is called and answered by hand.
    tonic_prost_build::configure()
        .build_client(false)
        .build_server(false)
        .out_dir(directory.path())
        .compile_fds(control)
        .unwrap();
    let made = std::fs::read_to_string(directory.path().join("distribute.v1.rs")).unwrap();
    check(
        "src/control/generated.rs",
        format!("{MARK}{made}").as_bytes(),
    );
}

#[test]
fn the_descriptors_are_those_of_the_proto_files() {
    let files = [path("proto/control.proto"), path("proto/collectives.proto")];
    let set = protox::compile(files, [path("proto")]).unwrap();
    check("src/control/descriptors.bin", &set.encode_to_vec());
}
