//! `certs`, `blame` and `bench all-reduce` between processes, as a user runs them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;

fn program() -> Command {
    let mut command = Command::cargo_bin("distribute-cli").expect("built");
    command.timeout(Duration::from_secs(100));
    command
}

fn mode(path: &Path) -> u32 {
    let metadata = std::fs::metadata(path).expect("written");
    metadata.permissions().mode() & 0o777
}

#[test]
fn certs_writes_a_directory_per_host_and_keeps_secrets_private() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("certs");
    let certs = |program: &mut Command| {
        program
            .args(["certs", "--hosts", "127.0.0.1,node1.example", "--out"])
            .arg(&out)
            .output()
            .expect("runs")
    };
    let first = certs(&mut program());
    assert!(first.status.success(), "{first:?}");
    for host in ["127.0.0.1", "node1.example"] {
        assert_eq!(mode(&out.join(host).join("key.pem")), 0o600);
        assert_eq!(mode(&out.join(host).join("certificate.pem")), 0o644);
    }
    assert_eq!(mode(&out.join("token")), 0o600);
    let token = std::fs::read_to_string(out.join("token")).expect("written");
    assert_eq!(token.len(), 64);
    let printed = String::from_utf8_lossy(&first.stdout).to_string();
    assert!(!printed.contains(&token), "the token is never printed");
    let second = certs(&mut program());
    assert_eq!(second.status.code(), Some(2), "nothing is overwritten");
    let unchanged = std::fs::read_to_string(out.join("token")).expect("written");
    assert_eq!(token, unchanged);
}

#[test]
fn doctor_shows_whom_certificates_are_for_and_their_dates() {
    let folder = tempfile::tempdir().expect("a directory");
    let run = |line: &str| {
        let mut program = program();
        let program = program.current_dir(folder.path()).env("NO_COLOR", "1");
        let output = program.args(line.split(' ')).output().expect("runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let made = run("certs --out certs --hosts 127.0.0.1,node1.example --days 12");
    let dates = made.lines().nth(2).expect("the dates").to_string();
    let all = one_line(run("doctor --certs certs"));
    for (file, whom) in [
        ("127.0.0.1/certificate.pem", "for 127.0.0.1"),
        ("node1.example/certificate.pem", "for node1.example"),
        ("ca.pem", "distribute certificate authority"),
    ] {
        let line = format!("certificates certs/{file}: {whom}, {dates}; it ends in 1");
        assert!(all.contains(&line), "{line}: {all}");
    }
    let own = one_line(run("doctor --certs certs/node1.example"));
    assert_eq!(own.matches("certificates certs/").count(), 2, "{own}");
    assert!(!own.contains("cannot be used"), "{own}");
    // The key of another host does not fit, which `train` says at its start too.
    let key = |host: &str| folder.path().join("certs").join(host).join("key.pem");
    std::fs::copy(key("127.0.0.1"), key("node1.example")).expect("copied");
    let mixed = one_line(run("doctor --certs certs/node1.example"));
    assert!(
        mixed.contains("cannot be used: cannot use the certificate and its key"),
        "{mixed}"
    );
    let none = one_line(run("doctor --certs nowhere"));
    assert!(none.contains("nowhere has no certificate.pem"), "{none}");
    let json = run("doctor --certs certs --output json");
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(report["certificates"][1]["names"][0], "node1.example");
    assert_eq!(report["certificates"][1]["standing"], "ends-soon");
}

/// The output of `certs` with these flags, in a folder of its own, which is empty after a refusal.
fn certs_with(flags: &[&str]) -> (Option<i32>, String, usize) {
    let folder = tempfile::tempdir().expect("a directory");
    let mut program = program();
    program.current_dir(folder.path());
    let output = program
        .args(["certs", "--out", "certs"])
        .args(flags)
        .output();
    let output = output.expect("runs");
    let said = [output.stdout, output.stderr].concat();
    let left = std::fs::read_dir(folder.path()).expect("exists").count();
    let said = String::from_utf8(said).expect("text");
    (output.status.code(), said, left)
}

#[test]
fn certs_refuses_what_no_certificate_can_be_for_and_leaves_nothing() {
    for days in ["0", "36501", "3000000", "4294967295"] {
        let (code, said, left) = certs_with(&["--hosts", "node1", "--days", days]);
        assert_eq!((code, left), (Some(2), 0), "{said}");
        assert!(said.contains("--days must be 1 to 36500"), "{said}");
    }
    for hosts in [
        "",
        "node1,",
        "node1,node2:9000",
        "node1,node 2",
        "node1,token",
        "node1,a/b",
    ] {
        let (code, said, left) = certs_with(&["--hosts", hosts]);
        assert_eq!((code, left), (Some(2), 0), "{hosts}: {said}");
        assert!(said.contains("--hosts"), "{hosts}: {said}");
    }
}

#[test]
fn certs_shows_the_dates() {
    let flags = ["--hosts", "node1, node2,[::1]", "--days", "36500"];
    let (code, said, left) = certs_with(&flags);
    assert_eq!((code, left), (Some(0), 1), "{said}");
    assert!(
        said.contains("valid for 36500 days: node1, node2, ::1"),
        "{said}"
    );
    let dates = said.lines().last().expect("three lines");
    assert!(
        dates.starts_with("from 20") && dates.ends_with(" UTC"),
        "{dates}"
    );
    assert!(dates.contains(" UTC to 21"), "{dates}");
}

#[test]
fn blame_needs_records() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = program()
        .arg("blame")
        .arg(directory.path())
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(
        text.starts_with("error: ") && text.contains("no flight record that can be read"),
        "{text}"
    );
}

fn bench(transport: &str, world: &str) -> Vec<serde_json::Value> {
    let output = program()
        .args([
            "bench",
            "all-reduce",
            "--transport",
            transport,
            "--world",
            world,
        ])
        .args(["--bytes", "4K,1M", "--iterations", "5", "--output", "json"])
        .output()
        .expect("runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let parse = |line| serde_json::from_str(line).expect("a JSON object a line");
    text.lines().map(parse).collect()
}

#[test]
fn the_bench_starts_its_ranks_and_prints_the_keys_of_nccl_tests() {
    for (transport, world) in [("shm", "2"), ("grpc", "3"), ("auto", "2")] {
        let lines = bench(transport, world);
        let sizes: Vec<_> = lines.iter().map(|line| line["bytes"].as_u64()).collect();
        assert_eq!(sizes, [Some(4096), Some(1 << 20)], "{transport}");
        for line in &lines {
            assert_eq!(line["impl"], format!("ours-{transport}"));
            assert_eq!(line["n"].to_string(), world);
            assert_eq!(line["iters"], 5);
            for key in ["us", "min_us", "max_us", "algbw", "busbw", "cpu_us"] {
                assert!(line[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {line}");
            }
        }
    }
}
