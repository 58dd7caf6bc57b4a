//! Runs the tests: builds them once, then two lanes of test programs at a time, and counts results.
//!
//! Many tests wait for most of their time (for processes, for deadlines) and others compute for all
//! of it. One after the other they would leave half of a machine with two processors idle.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitStatus};

use serde_json::Value;

use self::results::{Counts, Failure, Failures, Filter, told};
use crate::cargo::{cargo, cargo_command, finish};

mod results;

/// The most tests that run once more, alone, after they have failed beside others. Deadlines of
/// real processes can pass on a busy machine; what breaks more tests is no matter of load.
const MOST_AGAIN: usize = 3;

/// Test programs that compute for most of their time: they are not called `all`, as other
/// crates' programs are. They give way to the others, whose deadlines are shorter, but not without
/// limit: `conformance` makes groups whose ranks have to be heard of every 3 seconds.
const COMPUTING: [&str; 3] = ["conformance", "tpu", "tpu_xla"];

/// Features that are off by default and build on any machine. Their tests run with all others, so
/// that everything is built once; tests with `nccl` need no GPU, or are skipped. All
/// tests are compiled without these features every night.
const FEATURES: [&str; 2] = ["distribute-cli/nccl", "distribute-cli/otlp"];
/// Where there is an MPI to build with.
const MPI: &str = "distribute-collectives/mpi";

/// The program that compiles hundreds of small steps by XLA's CPU client, each of which runs for
/// moments: a third of its time is LLVM's optimizer, which is off for it here, and on in `cargo
/// test` and every night. The large steps of the other programs would run longer than they compile.
const SMALL_STEPS: &str = "tpu_xla";
const XLA_FLAGS: (&str, &str) = ("XLA_FLAGS", "--xla_backend_optimization_level=0");

/// Runs all tests that `cargo test --workspace` runs, with the features `nccl`, `otlp` and `mpi`
/// and their tests.
pub fn run(root: &Path) -> Result<String, String> {
    let mut counts = Counts::default();
    let mut features = FEATURES.to_vec();
    if mpi_builds() && starts("mpirun") {
        features.push(MPI);
    } else {
        let skipped = "SKIPPED: mpi: needs Open MPI and libclang \
                       (openmpi-bin libopenmpi-dev libclang-dev)";
        say!("{skipped}");
        counts.read(skipped);
    }
    let programs = test_programs(root, &features)?;
    // The README's first command, which has none of these features. All its dependencies are
    // built for the tests anyway; the tests' build replaces its program.
    cargo(root, "build -p distribute-cli --no-default-features")?;
    let base = format!("test --workspace --features {}", features.join(","));
    finish(&mut cargo_command(root, &format!("{base} --no-run")))?;
    let lanes = Lanes::of(&base, &programs)?;
    let runs = std::thread::scope(|scope| {
        let computing = scope.spawn(|| run_lane(root, &lanes.computing, true));
        let mut runs = run_lane(root, &lanes.waiting, false)?;
        runs.extend(computing.join().map_err(|_| "a lane of tests panicked")??);
        Ok::<_, String>(runs)
    })?;
    verdict(root, counts, runs)
}

/// Adds the results up. A few tests that failed run once more, with nothing beside them; the
/// verdict names those that pass now, and one that fails again is a failure.
fn verdict(root: &Path, skipped: Counts, runs: Vec<Run>) -> Result<String, String> {
    let failed: usize = runs.iter().map(|run| run.failures.len()).sum();
    let (mut counts, mut bad, mut flaky) = (skipped, Vec::new(), Vec::new());
    for run in runs {
        if run.passed() {
            counts = counts.and(&run.counts);
        } else if failed <= MOST_AGAIN && run.can_run_again() && passes_alone(root, &run)? {
            flaky.extend(run.failures.iter().map(|test| test.name.clone()));
            counts = counts.and(&run.counts.with_passed(&run.failures));
        } else {
            bad.push(run.failure());
        }
    }
    if !bad.is_empty() {
        return Err(bad.join("\n"));
    }
    let note = counts.verdict()?;
    if flaky.is_empty() {
        return Ok(note);
    }
    Ok(format!(
        "{note}; FAILED BESIDE OTHERS, passed alone: {}",
        flaky.join(", ")
    ))
}

/// Runs the tests that failed once more, one after the other.
fn passes_alone(root: &Path, run: &Run) -> Result<bool, String> {
    say!("\ncheck: once more, alone:\n{}", told(&run.failures));
    let mut command = test_command(root, &run.arguments);
    command.env("RUST_TEST_THREADS", "1").arg("--exact");
    command.args(run.failures.iter().map(|test| &test.name));
    let again = run_tests(command, &run.arguments)?;
    Ok(again.passed() && again.counts.all_passed(run.failures.len()))
}

/// Whether programs can be built with the system's MPI: a package that only starts them brings
/// `mpicc` as well, without the header.
fn mpi_builds() -> bool {
    let arguments = ["-include", "mpi.h", "-x", "c", "-fsyntax-only", "/dev/null"];
    let output = Command::new("mpicc").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// Whether there is such a program.
fn starts(program: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// The commands of cargo that together do what one `cargo test` does.
#[derive(Debug, PartialEq, Eq)]
struct Lanes {
    waiting: Vec<String>,
    computing: Vec<String>,
}

impl Lanes {
    fn of(base: &str, programs: &BTreeSet<String>) -> Result<Self, String> {
        if let Some(gone) = COMPUTING.iter().find(|name| !programs.contains(**name)) {
            return Err(format!(
                "COMPUTING in suite.rs: `{gone}` is no test program"
            ));
        }
        let names = programs.iter().map(String::as_str);
        let waiting = names.filter(|name| !COMPUTING.contains(name));
        let waiting: String = waiting.map(|name| format!(" --test {name}")).collect();
        let alone = COMPUTING.map(|name| format!("{base} --test {name}"));
        Ok(Self {
            waiting: vec![format!("{base} --lib --bins{waiting}")],
            computing: [&alone[..], &[format!("{base} --doc")]].concat(),
        })
    }
}

/// The names of the workspace's test programs that its default features and these build.
fn test_programs(root: &Path, features: &[&str]) -> Result<BTreeSet<String>, String> {
    let mut command = cargo_command(root, "metadata --no-deps --format-version 1");
    let output = command
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    let metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(programs_of(&metadata, features))
}

/// A feature of one package turns on the features of the same name below it.
fn programs_of(metadata: &Value, features: &[&str]) -> BTreeSet<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let more: Vec<&str> = features
        .iter()
        .filter_map(|it| Some(it.split_once('/')?.1))
        .collect();
    let mut programs = BTreeSet::new();
    for package in packages {
        let enabled = enabled_features(package, &more);
        for target in package["targets"].as_array().into_iter().flatten() {
            let is_test = words(&target["kind"]).any(|kind| kind == "test");
            let is_built = words(&target["required-features"]).all(|need| enabled.contains(need));
            if let Some(name) = target["name"].as_str().filter(|_| is_test && is_built) {
                programs.insert(name.to_owned());
            }
        }
    }
    programs
}

/// The features that a build of a package has by default and with these, those that they bring
/// included.
fn enabled_features<'a>(package: &'a Value, more: &[&'a str]) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec!["default"];
    open.extend(more);
    while let Some(feature) = open.pop() {
        if found.insert(feature) {
            open.extend(words(&package["features"][feature]));
        }
    }
    found
}

fn words(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// Runs commands one after the other, also after one that failed.
fn run_lane(root: &Path, commands: &[String], gives_way: bool) -> Result<Vec<Run>, String> {
    let mut runs = Vec::new();
    for arguments in commands {
        let mut command = test_command(root, arguments);
        // Half of what `cargo test` runs at once, which has one lane.
        command.env("RUST_TEST_THREADS", "4");
        if gives_way {
            command = niced(command);
        }
        runs.push(run_tests(command, arguments)?);
    }
    Ok(runs)
}

/// The command that runs tests and shows what they print.
fn test_command(root: &Path, arguments: &str) -> Command {
    let all = format!("{arguments} --no-fail-fast -- --show-output");
    let mut command = cargo_command(root, &all);
    if arguments.ends_with(SMALL_STEPS) && std::env::var_os(XLA_FLAGS.0).is_none() {
        command.env(XLA_FLAGS.0, XLA_FLAGS.1);
    }
    command
}

/// The same command with a third of the weight when processors are wanted by more than there are,
/// where there is a `nice`. (With the lowest priority it would have a hundredth.)
fn niced(command: Command) -> Command {
    if !starts("nice") {
        return command;
    }
    let mut nice = Command::new("nice");
    nice.args(["-n", "5"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        nice.current_dir(directory);
    }
    nice
}

/// What one command of cargo has said about its tests.
struct Run {
    arguments: String,
    status: ExitStatus,
    counts: Counts,
    failures: Vec<Failure>,
}

impl Run {
    fn passed(&self) -> bool {
        self.status.success() && self.counts.verdict().is_ok()
    }

    /// Whether it is known which tests have failed, so that nothing else has.
    fn can_run_again(&self) -> bool {
        !self.failures.is_empty() && self.counts.failed_are(&self.failures)
    }

    fn failure(&self) -> String {
        let (Ok(note) | Err(note)) = self.counts.verdict();
        let told = told(&self.failures);
        format!("cargo {}: {}; {note}\n{told}", self.arguments, self.status)
    }
}

/// Runs tests, shows what each program prints when it has ended and counts the results. A test
/// that passes keeps what it prints to itself, so that is asked for, and of it only what was
/// skipped is shown.
fn run_tests(mut command: Command, arguments: &str) -> Result<Run, String> {
    let failed = |error: io::Error| format!("cannot run `cargo {arguments}`: {error}");
    let (reader, writer) = io::pipe().map_err(failed)?;
    // One stream, so that the name of a program stands above its results.
    let errors = writer.try_clone().map_err(failed)?;
    let mut child = command
        .stdout(writer)
        .stderr(errors)
        .spawn()
        .map_err(failed)?;
    // The writing ends that are left belong to the child.
    drop(command);
    let (mut counts, mut failures) = (Counts::default(), Failures::default());
    let (mut filter, mut block) = (Filter::default(), Vec::new());
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(failed)?;
        let text = String::from_utf8_lossy(&line);
        counts.read(&text);
        failures.read(&text);
        if let Some(program) = text.strip_prefix("     Running ") {
            // At once: a reader wants to know it when the program hangs. The line is told again
            // above the program's results, which the other lane's may come before.
            say!("check: started {program}");
        }
        if filter.shows(&text) {
            block.extend_from_slice(&line);
            block.push(b'\n');
        }
        if text.starts_with("test result: ") {
            print(&mut block).map_err(failed)?;
        }
    }
    print(&mut block).map_err(failed)?;
    Ok(Run {
        arguments: arguments.to_owned(),
        status: child.wait().map_err(failed)?,
        counts,
        failures: failures.into_tests(),
    })
}

/// Prints what was held back, in one piece; in tests of this program nothing, as a check that runs
/// them would count what it reads.
fn print(block: &mut Vec<u8>) -> io::Result<()> {
    if !cfg!(test) {
        let mut shown = io::stdout().lock();
        shown.write_all(block)?;
        shown.flush()?;
    }
    block.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Counts, Lanes, programs_of, run_lane, verdict};

    /// Runs the tests of a crate with this library, as a lane.
    fn verdict_of(library: &str) -> Result<String, String> {
        let root = tempfile::tempdir().expect("a directory");
        let manifest = "[package]\nname = \"tried\"\nedition = \"2024\"\n[workspace]\n";
        let source = root.path().join("src");
        std::fs::create_dir(&source).expect("a directory");
        std::fs::write(root.path().join("Cargo.toml"), manifest).expect("a file");
        std::fs::write(source.join("lib.rs"), library).expect("a file");
        let runs = run_lane(root.path(), &["test --offline --lib".to_owned()], false)?;
        verdict(root.path(), Counts::default(), runs)
    }

    /// Fails when it runs for the first time, in the crate's directory.
    const FLAKY: &str = "#[test] fn flaky() {
        if !std::path::Path::new(\"ran\").exists() {
            std::fs::write(\"ran\", \"\").unwrap();
            panic!(\"too late\");
        }
    }";
    const BAD: &str = "#[test] fn bad() { println!(\"a detail\"); panic!(\"wrong\"); }";

    #[test]
    fn a_test_that_passes_alone_is_named_and_one_that_fails_again_is_a_failure() {
        let note = verdict_of(&format!("{FLAKY} #[test] fn good() {{}}"));
        let expected = "2 passed, 0 failed, 0 ignored, 0 skipped with a reason; \
                        FAILED BESIDE OTHERS, passed alone: flaky";
        assert_eq!(note, Ok(expected.to_owned()));
        let failed = verdict_of(&format!("{FLAKY} {BAD}")).expect_err("`bad` has failed");
        assert!(failed.contains("0 passed, 2 failed"), "{failed}");
        assert!(failed.contains("failed: bad\na detail"), "{failed}");
    }

    #[test]
    fn a_program_that_ends_amid_its_tests_does_not_run_again() {
        let ends = "#[test] fn ends() {
            if !std::path::Path::new(\"ran\").exists() {
                std::fs::write(\"ran\", \"\").unwrap();
                std::process::abort();
            }
        }";
        assert!(verdict_of(ends).is_err());
    }

    #[test]
    fn many_tests_that_fail_do_not_run_again() {
        let tests: Vec<String> = (0..4)
            .map(|index| {
                FLAKY
                    .replace("flaky", &format!("flaky_{index}"))
                    .replace("ran", &format!("ran_{index}"))
            })
            .collect();
        assert!(verdict_of(&tests.concat()).is_err());
    }

    #[test]
    fn every_test_program_of_the_features_is_in_one_lane() {
        let metadata = json!({"packages": [
            {"targets": [
                {"name": "one", "kind": ["lib"]},
                {"name": "conformance", "kind": ["test"]},
                {"name": "nccl", "kind": ["test"], "required-features": ["nccl"]},
            ]},
            {"targets": [
                {"name": "all", "kind": ["test"], "required-features": []},
                {"name": "tpu", "kind": ["test"]},
                {"name": "tpu_xla", "kind": ["test"]},
                {"name": "bench", "kind": ["example"]},
            ]},
            {
                "features": {"default": ["shm"], "shm": ["sockets"], "sockets": [], "mpi": []},
                "targets": [
                    {"name": "processes", "kind": ["test"], "required-features": ["sockets"]},
                    {"name": "mpi", "kind": ["test"], "required-features": ["shm", "mpi"]},
                ],
            },
        ]});
        let computing = [
            "test -q --test conformance",
            "test -q --test tpu",
            "test -q --test tpu_xla",
            "test -q --doc",
        ]
        .map(str::to_owned);
        let by_default = programs_of(&metadata, &[]);
        let waiting = "test -q --lib --bins --test all --test processes";
        let expected = Lanes {
            waiting: vec![waiting.to_owned()],
            computing: computing.to_vec(),
        };
        assert_eq!(Lanes::of("test -q", &by_default), Ok(expected));
        let mut programs = programs_of(&metadata, &["cli/nccl", "of-mpi/mpi"]);
        let waiting = "test -q --lib --bins --test all --test mpi --test nccl --test processes";
        let expected = Lanes {
            waiting: vec![waiting.to_owned()],
            computing: computing.to_vec(),
        };
        assert_eq!(Lanes::of("test -q", &programs), Ok(expected));
        programs.remove("tpu");
        let refused = Lanes::of("test -q", &programs);
        assert!(refused.is_err_and(|error| error.contains("`tpu`")));
    }
}
