//! Running cargo.

use std::path::Path;
use std::process::Command;

/// The cargo that runs this program, without the variables that it set for this program alone:
/// build scripts that watch them would run again at every change between the two.
pub fn cargo_command(root: &Path, arguments: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments.split_whitespace()).current_dir(root);
    for (name, _) in std::env::vars_os() {
        let is_ours =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIF");
        if name.to_str().is_some_and(is_ours) {
            command.env_remove(name);
        }
    }
    command
}

/// Features of the program with which all code is compiled that needs no system's MPI, burn's CUDA
/// backend with fusion (as users have it) included.
const EVERYTHING: &str = "--features distribute-cli/fusion,distribute-cli/otlp";

/// Features with which the libraries have all their programs: benchmarks, and what runs on GPUs.
pub const PROGRAMS: &str = "--features distribute-bench/bench,distribute-models/bench,\
                            distribute-models/cuda";

/// A command that only reads code, with all of it: the steps that do so read the dependencies with
/// one set of features, and so only once. It needs neither CUDA nor a GPU, and downloads no
/// compiler for the kernels (`DOCS_RS`).
pub fn reading_everything(root: &Path, arguments: &str) -> Command {
    let (verb, rest) = arguments.split_once(' ').unwrap_or((arguments, ""));
    let mut command = cargo_command(root, &format!("{verb} {EVERYTHING} {rest}"));
    command.env("DOCS_RS", "1");
    if std::env::var_os("CUDARC_CUDA_VERSION").is_none() {
        command.env("CUDARC_CUDA_VERSION", "13000");
    }
    command
}

/// Runs cargo with these arguments to its end.
pub fn cargo(root: &Path, arguments: &str) -> Result<String, String> {
    finish(&mut cargo_command(root, arguments))
}

/// Runs cargo with these arguments and returns what it prints.
pub fn output(root: &Path, arguments: &str) -> Result<String, String> {
    let output = cargo_command(root, arguments)
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("cargo {arguments}: {}\n{errors}", output.status))
}

/// The same from what is on this machine, or, where something of it is missing, with downloads.
pub fn output_offline(root: &Path, arguments: &str) -> Result<String, String> {
    output(root, &format!("{arguments} --offline")).or_else(|_| output(root, arguments))
}

/// Runs a command of cargo to its end.
pub fn finish(command: &mut Command) -> Result<String, String> {
    let status = command
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() {
        Ok(String::new())
    } else {
        Err(format!("cargo: {status}"))
    }
}
