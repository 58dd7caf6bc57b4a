//! The short help: the usual flags of a command come first, and `-h` shows only these.

use clap::builder::Resettable;
use clap::{Arg, Command};

/// The usual flags of the commands that have many, in the order in which they are shown.
const USUAL: [(&str, &[&str]); 4] = [
    (
        "train",
        &[
            "dataset",
            "data_dir",
            "model",
            "epochs",
            "batch_size",
            "optimizer",
            "learning_rate",
            "replicas",
            "strategy",
            "checkpoint_dir",
            "restartable",
            "log_dir",
            "output",
            "dry_run",
        ],
    ),
    (
        "launch",
        &[
            "workers",
            "max_restarts",
            "ps",
            "log_dir",
            "all_output",
            "command",
        ],
    ),
    (
        "evaluate",
        &["checkpoint_dir", "dataset", "split", "report", "output"],
    ),
    (
        "predict",
        &["checkpoint_dir", "dataset", "split", "predictions"],
    ),
];

/// The heading of flags that have no other heading and are not usual.
const OTHERS: &str = "General";

/// The commands with their usual flags first.
pub(super) fn usual_first(mut program: Command) -> Command {
    for command in program.get_subcommands_mut() {
        let name = command.get_name().to_string();
        let Some((_, usual)) = USUAL.iter().find(|(known, _)| *known == name) else {
            continue;
        };
        // Replaced in place: `mut_subcommand` would move it to the end.
        *command = arranged(std::mem::take(command), usual);
    }
    program
}

fn arranged(command: Command, usual: &[&str]) -> Command {
    let name = command.get_name();
    let more = format!("`distribute-cli {name} --help` shows all flags and examples.");
    let examples = command.get_after_help().cloned().unwrap_or_default();
    let arrange = |flag: Arg| {
        let place = usual.iter().position(|usual| flag.get_id() == usual);
        match place {
            Some(place) => flag.help_heading(Resettable::Reset).display_order(place),
            None if flag.get_help_heading().is_none() => {
                flag.help_heading(OTHERS).hide_short_help(true)
            }
            None => flag.hide_short_help(true),
        }
    };
    command
        .mut_args(arrange)
        .after_help(more)
        .after_long_help(examples)
}

#[cfg(test)]
mod tests {
    use super::USUAL;
    use crate::flags::program;

    #[test]
    fn the_usual_flags_are_there_and_few() {
        let program = program();
        for (name, usual) in USUAL {
            let command = program.find_subcommand(name).unwrap();
            for id in usual {
                let flag = command.get_arguments().find(|flag| flag.get_id() == id);
                assert!(flag.is_some(), "`{name}` has no `{id}`");
            }
        }
    }

    #[test]
    fn the_short_help_is_one_page() {
        for (name, _) in USUAL {
            let mut program = program();
            let command = program.find_subcommand_mut(name).unwrap();
            let lines = command.render_help().to_string().lines().count();
            assert!(lines <= 45, "`{name} -h` has {lines} lines");
        }
    }
}
