//! The TPU compiler takes the programs of whole steps and of everything between replicas.

use std::env;
use std::path::Path;
use std::process::{Command, Output};

use distribute_tpu_xla::pjrt::{CompileOptions, LibtpuEnvironment, Plugin};

use crate::lower::harness::{SAVE_PROGRAMS, client};
use crate::plugins::libtpu;

/// The folder of programs, in the process that compiles them.
const INSIDE: &str = "DISTRIBUTE_TEST_COMPILE_PROGRAMS";

/// Which tests' programs are compiled.
const WHOSE: &str = "DISTRIBUTE_TEST_TPU_FILTER";

/// This program again, with an environment variable.
fn again(arguments: &[&str], variable: &str, value: &Path) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    command.args(arguments).env(variable, value);
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn programs_compile_for_a_tpu() {
    let Some(library) = libtpu() else { return };
    if let Some(folder) = env::var_os(INSIDE) {
        LibtpuEnvironment::compile_only()
            .check()
            .expect("the variables are set");
        return compile_all(&library, Path::new(&folder));
    }
    if client().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let filter = env::var(WHOSE).unwrap_or("lower::steps::".into());
    let arguments = [&filter, "--skip", "lower::tpu::"];
    let run = again(&arguments, SAVE_PROGRAMS, folder.path()).output();
    let run = run.expect("the tests start");
    assert!(run.status.success(), "{}", text(&run));
    let own = "lower::tpu::programs_compile_for_a_tpu";
    let mut command = again(&["--exact", own, "--nocapture"], INSIDE, folder.path());
    LibtpuEnvironment::compile_only().apply_to(&mut command);
    let run = command.output().expect("the compiler starts");
    assert!(
        run.status.success() && text(&run).contains("1 passed"),
        "{}",
        text(&run)
    );
}

fn compile_all(library: &Path, folder: &Path) {
    let plugin = Plugin::load(library).expect("libtpu loads");
    let topology = plugin
        .topology("v5e:2x4", &[])
        .expect("libtpu knows the topology");
    let mut failed = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let program = std::fs::read_to_string(entry.expect("a file").path()).expect("a text");
        let options = CompileOptions::replicas(replicas(&program));
        if let Err(error) = topology.compile(&program, &options) {
            failed.push(format!("{error}\n{program}"));
        }
        count += 1;
    }
    assert!(count > 0, "no program was saved");
    assert!(
        failed.is_empty(),
        "{} of {count}:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

/// From the module's attributes.
fn replicas(program: &str) -> usize {
    let (_, rest) = program
        .split_once("mhlo.num_replicas = ")
        .expect("the module says how many");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}
