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
