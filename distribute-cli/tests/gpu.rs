//! What the program does with NCCL and the driver, with the fake in their places (feature `nccl`).

#[path = "../../distribute-collectives/tests/nccl/built.rs"]
mod built;
mod common;

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

/// A folder with the fake and its settings.
fn fake(settings: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let collectives = Path::new(env!("CARGO_MANIFEST_DIR")).join("../distribute-collectives");
    std::fs::copy(
        built::library(&collectives),
        folder.path().join("libfake.so"),
    )
    .unwrap();
    std::fs::write(folder.path().join("fake.conf"), settings).unwrap();
    folder
}

/// Runs the program with these files as driver and NCCL.
fn run(folder: &Path, arguments: &str, cuda: &Path, nccl: &Path) -> (bool, String, String) {
    let mut command = common::program(folder);
    command.args(arguments.split_whitespace());
    command.env("DISTRIBUTE_CUDA_LIBRARY", cuda);
    let output = command
        .env("DISTRIBUTE_NCCL_LIBRARY", nccl)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn run_faked(settings: &str, arguments: &str) -> (bool, String, String) {
    let folder = fake(settings);
    let library = folder.path().join("libfake.so");
    run(folder.path(), arguments, &library, &library)
}

#[test]
fn the_all_reduce_of_nccl_is_measured() {
    let arguments = "bench all-reduce --transport nccl --world 3 --bytes 4K,1M --iterations 5";
    let (worked, out, err) = run_faked("", &format!("{arguments} --output json"));
    assert!(worked, "{err}");
    let lines: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "{out}");
    for (line, bytes) in lines.iter().zip([4096, 1 << 20]) {
        assert_eq!(
            (&line["impl"], &line["n"]),
            (&"ours-nccl".into(), &3.into())
        );
        assert_eq!((&line["bytes"], &line["iters"]), (&bytes.into(), &5.into()));
        assert!(line["us"].as_f64().unwrap() > 0.0);
    }
    let (worked, out, _) = run_faked("", arguments);
    // The last line is broken to fit into a terminal.
    let out = out.replace("\n    ", " ");
    assert!(worked && out.lines().count() == 4, "{out}");
    assert!(out.contains("NCCL picks algorithm and order"), "{out}");
}

#[test]
fn what_nccl_cannot_do_is_one_line() {
    for (settings, arguments, reason) in [
        (
            "devices=1",
            "--world 2",
            "there is no GPU 1: the CUDA driver shows 1",
        ),
        (
            "one_uuid=1",
            "--world 2",
            "rank 0 and rank 1 are on one GPU",
        ),
        ("nccl=2804", "--world 1", "is too old: it has version 2.8.4"),
        ("", "--algorithm ring", "NCCL picks the algorithm"),
    ] {
        let arguments = format!("bench all-reduce --transport nccl {arguments}");
        let (worked, _, err) = run_faked(settings, &arguments);
        assert!(!worked && err.contains(reason), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    let folder = fake("");
    let nowhere = Path::new("/nowhere/lib.so");
    let library = folder.path().join("libfake.so");
    let arguments = "bench all-reduce --transport nccl --world 1";
    let (worked, _, err) = run(folder.path(), arguments, &library, nowhere);
    assert!(
        !worked && err.contains("NCCL was not found; searched: /nowhere/lib.so"),
        "{err}"
    );
}

/// What doctor says, wherever its lines end.
fn in_one_line(out: &str) -> String {
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn doctor_tells_what_the_driver_and_nccl_say() {
    let (worked, out, err) = run_faked("devices=3", "doctor");
    assert!(worked, "{err}");
    let out = in_one_line(&out);
    for part in [
        "CUDA 12.8.0",
        "NCCL 2.27.3",
        "GPU 1: Host memory (8.0 GiB) at 0000:01:00.0",
        "reaches GPU 0 directly, with atomics (NVLink)",
        "build with --features cuda",
    ] {
        assert!(out.contains(part), "no {part} in {out}");
    }
    // The files that the variables name are found, too.
    for missing in [
        "not found (NVIDIA GPUs)",
        "not found (collectives between GPUs)",
    ] {
        assert!(!out.contains(missing), "{out}");
    }
    let (_, out, _) = run_faked("devices=3", "doctor --output json");
    let report: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let devices = report["gpus"]["probe"]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 3);
    assert_eq!(devices[0]["peers"], serde_json::json!([1, 2]));
}

/// A file that is no library, and a machine without a GPU.
#[test]
fn doctor_survives_a_driver_that_does_not_work() {
    let folder = fake("");
    let broken = folder.path().join("broken.so");
    std::fs::write(&broken, "no library").unwrap();
    let (worked, out, err) = run(folder.path(), "doctor", &broken, &broken);
    assert!(worked, "{err}");
    let expected = "CUDA: the CUDA driver was not found; searched: ";
    assert!(in_one_line(&out).contains(expected), "{out}");
    let (worked, out, _) = run_faked("devices=0", "doctor");
    assert!(worked, "{out}");
    assert!(in_one_line(&out).contains("no GPU was found"), "{out}");
}
