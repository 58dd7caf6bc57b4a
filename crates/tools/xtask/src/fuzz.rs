//! Runs the fuzz targets of `crates/tools/fuzz/` with libFuzzer, on the stable compiler.
//!
//! The compiler's coverage pass is switched on by flags that cargo-fuzz also uses; sanitizers,
//! which need a nightly compiler, are left out: a panic, an arithmetic overflow, memory beyond the
//! limit or a hang is what a target can fail with. All targets are one program, as most of the time
//! of a build is linking.

use std::path::Path;
use std::process::Command;

use crate::cargo::{cargo_command, finish};

const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";

const CORPUS: &str = "crates/tools/fuzz/corpus";

/// Names the target to the program.
const TARGET_VARIABLE: &str = "DISTRIBUTE_FUZZ_TARGET";

/// The most memory of a target that keeps some of each input. What one input costs, the program
/// itself looks at. The system counts here what this process has used before it started a target,
/// which is half a gibibyte after the other checks.
const MEMORY_LIMIT_MIB: u64 = 2048;

/// The names of all targets: each has a folder in the corpus.
pub fn targets(root: &Path) -> Result<Vec<String>, String> {
    let corpus = root.join(CORPUS);
    let entries = std::fs::read_dir(&corpus).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(|error| format!("{}: {error}", corpus.display()))?;
    let names = entries.iter().map(std::fs::DirEntry::file_name);
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// Builds all targets and runs these for some seconds each, as many at a time as there are
/// processors.
pub fn run(root: &Path, targets: &[String], seconds: u64) -> Result<String, String> {
    if !has_cpp_compiler() {
        return Ok("SKIPPED: libFuzzer needs a C++ compiler (g++ or clang++)".to_owned());
    }
    let host = host_triple()?;
    let directory = root.join("target/fuzz");
    let mut build = cargo_command(
        root,
        "build --release --locked --manifest-path crates/tools/fuzz/Cargo.toml",
    );
    build
        .args(["--target", &host])
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", &directory);
    finish(&mut build)?;
    let program = directory.join(&host).join("release/distribute-fuzz");
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    for some in targets.chunks(at_once) {
        run_at_once(root, some, &program, seconds)?;
    }
    Ok(format!("{} targets, {seconds} s each", targets.len()))
}

/// Runs targets beside each other; the error is that of the first that failed.
fn run_at_once(
    root: &Path,
    targets: &[String],
    program: &Path,
    seconds: u64,
) -> Result<(), String> {
    std::thread::scope(|scope| {
        let start = |target| scope.spawn(move || run_target(root, target, program, seconds));
        let running: Vec<_> = targets.iter().map(|target| start(target)).collect();
        // The scope waits for all of them, also after a failure.
        running.into_iter().try_for_each(|one| {
            let panicked = |_| Err("a fuzz target panicked".to_owned());
            one.join().unwrap_or_else(panicked)
        })
    })
}

fn run_target(root: &Path, target: &str, program: &Path, seconds: u64) -> Result<(), String> {
    // New inputs go to the first directory, the repository's are only read.
    let found = root.join("target/fuzz/corpus").join(target);
    let findings = root.join("target/fuzz/findings").join(target);
    for directory in [&found, &findings] {
        std::fs::create_dir_all(directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    let output = Command::new(program)
        .env(TARGET_VARIABLE, target)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_LIMIT_MIB}"))
        .arg("-timeout=10")
        .arg("-print_final_stats=1")
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg(&found)
        .arg(root.join(CORPUS).join(target))
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!(
            "{text}\nfuzz target {target} failed; the input is in {}",
            findings.display()
        ));
    }
    let runs = text
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    say!("fuzz: {target}: {} inputs", runs.unwrap_or(" ?").trim());
    Ok(())
}

fn has_cpp_compiler() -> bool {
    let name = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    Command::new(name)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Building for a named target keeps the flags away from build scripts.
fn host_triple() -> Result<String, String> {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .arg("-vV")
        .output()
        .map_err(|error| format!("cannot start rustc: {error}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .ok_or_else(|| "rustc -vV names no host".to_owned())
}
