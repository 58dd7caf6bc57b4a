//! The all-reduce of GPUs is measured, with a driver and an NCCL in host memory in their places.

#[path = "../../../../distribute-collectives/tests/nccl/built.rs"]
mod built;

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use distribute_bench::all_reduce::nccl::{NcclBench, run};
use distribute_collectives::DType;
use distribute_collectives::nccl::NcclOptions;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn the_bench_measures_every_size() {
    let folder = tempfile::tempdir().expect("a directory");
    let collectives = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../distribute-collectives");
    let library = folder.path().join("libfake.so");
    std::fs::copy(built::library(&collectives), &library).expect("a copy");
    std::fs::write(folder.path().join("fake.conf"), "").expect("settings");
    let options = NcclOptions::new(0)
        .nccl_library(&library)
        .cuda_library(&library);
    let bench = NcclBench {
        devices: vec![3, 1],
        dtype: DType::F32,
        sizes_bytes: vec![4, 4096],
        iterations: 3,
        options,
    };
    let (sender, result) = channel();
    let thread = std::thread::spawn(move || sender.send(run(&bench)));
    let reports = result.recv_timeout(LIMIT).expect("an end");
    let reports = reports.expect("figures");
    let ended = thread.join().expect("no panic");
    assert!(ended.is_ok());
    let found: Vec<_> = reports
        .iter()
        .map(|r| (r.size_bytes, r.iterations))
        .collect();
    assert_eq!(found, [(4, 3), (4096, 3)]);
    for report in reports {
        assert!(report.min_us > 0.0 && report.min_us <= report.median_us);
        assert!(
            report.selection.contains("over NCCL 2.27.3"),
            "{}",
            report.selection
        );
    }
    // What exists in this process by the fake's count: nothing is left.
    let stats = folder.path().join(format!("stats-{}", std::process::id()));
    let stats = std::fs::read_to_string(stats).expect("the fake counts");
    let counted = [
        "memory",
        "host_memory",
        "streams",
        "events",
        "contexts",
        "comms",
        "misuse",
    ];
    for (name, left) in stats.lines().filter_map(|line| line.split_once('=')) {
        assert!(!counted.contains(&name) || left == "0", "{stats}");
    }
}
