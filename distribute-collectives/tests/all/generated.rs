//! The committed code of the gRPC services is generated from `proto/`.
//!
//! `DISTRIBUTE_WRITE_GENERATED=1 cargo test -p distribute-collectives --test all generated` writes
//! it anew.

use std::path::{Path, PathBuf};

const MARK: &str = "// @generated from proto/control.proto by the test `generated`.\n";

fn path(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(inside)
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
    let (made, file) = (format!("{MARK}{made}"), path("src/control/generated.rs"));
    if std::env::var_os("DISTRIBUTE_WRITE_GENERATED").is_some() {
        std::fs::write(&file, &made).unwrap();
    }
    assert!(
        std::fs::read_to_string(&file).unwrap_or_default() == made,
        "{} is not what proto/ says; write it anew with DISTRIBUTE_WRITE_GENERATED=1",
        file.display()
    );
}

#[test]
fn the_service_of_the_data_is_described() {
    let described = protox::compile([path("proto/collectives.proto")], [path("proto")]);
    assert!(described.is_ok(), "{described:?}");
}
