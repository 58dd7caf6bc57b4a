//! `completions` and `man`: descriptions of the command line for shells and manuals.

use std::fs;

use crate::events;
use crate::failure::Failure;
use crate::flags::{CompletionsArgs, ManArgs, program};
use crate::output_file::cannot_write;

/// Prints the script for a shell.
pub(super) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let (mut program, mut script) = (program(), Vec::new());
    clap_complete::generate(args.shell, &mut program, "distribute-cli", &mut script);
    let script = String::from_utf8_lossy(&script);
    // clap_complete 4.6 spells the program's hyphen in two ways, so that bash would complete
    // commands, but not their flags.
    let script = script.replace("distribute__subcmd__cli", "distribute__cli");
    events::line(script.trim_end())
}

/// Writes a page for the program and one for each of its commands.
pub(super) fn pages(args: &ManArgs) -> Result<(), Failure> {
    let directory = &args.out;
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(program(), directory))
        .map_err(|error| cannot_write(directory, &error))?;
    events::line(&format!("manual pages are in {}", directory.display()))
}
