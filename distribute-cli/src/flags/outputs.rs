//! Refuses outputs inside a checkpoint: they would be removed together with it.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command};
use distribute_core::checkpoint::claimed;

/// The ids of flags whose paths are read or have other rules. Every other flag with a path names an
/// output.
const READ: [&str; 11] = [
    "certs",
    "checkpoint",
    "checkpoint_dir",
    "config",
    "data_dir",
    "directory",
    "first",
    "golden",
    "pjrt_plugin",
    "second",
    "weights",
];
const CHECKPOINTS: &str = "--checkpoint-dir";

/// Refuses outputs inside a checkpoint, or at a path where a checkpoint may be created.
///
/// # Errors
/// For the first such output, with its flag.
pub(crate) fn check(program: &Command, matches: &ArgMatches) -> Result<(), String> {
    let Some((name, given)) = matches.subcommand() else {
        return Ok(());
    };
    let Some(command) = program.find_subcommand(name) else {
        return Ok(());
    };
    let directory = directory(given);
    for flag in outputs(command) {
        let path = given.try_get_one::<PathBuf>(flag.get_id().as_str());
        let Some(path) = path.ok().flatten() else {
            continue;
        };
        if let Some(checkpoint) = claimed(path, directory.as_deref()) {
            let flag = flag.get_long().unwrap_or_default();
            return Err(format!(
                "--{flag}: {} is in {}, which belongs to the checkpoints: it is removed with older \
                 ones, and all that is in it; choose a path beside it",
                path.display(),
                checkpoint.display()
            ));
        }
    }
    check(command, given)
}

fn outputs(command: &Command) -> impl Iterator<Item = &clap::Arg> {
    let flags = command.get_arguments();
    let paths = flags.filter(|flag| flag.get_value_parser().type_id() == TypeId::of::<PathBuf>());
    paths.filter(|flag| !READ.contains(&flag.get_id().as_str()))
}

/// The `--checkpoint-dir` of this command, or of the command that `launch` starts.
fn directory(given: &ArgMatches) -> Option<PathBuf> {
    let own = given
        .try_get_one::<PathBuf>("checkpoint_dir")
        .ok()
        .flatten();
    own.cloned().or_else(|| {
        let command = given.try_get_many::<OsString>("command").ok().flatten();
        let words: Vec<_> = command?.map(|word| word.to_string_lossy()).collect();
        let joined = format!("{CHECKPOINTS}=");
        let value = words.iter().enumerate().find_map(|(at, word)| {
            let next = words.get(at + 1).filter(|_| word == CHECKPOINTS);
            word.strip_prefix(&joined)
                .or(next.map(|next| next.as_ref()))
        });
        value.map(|value| Path::new(value).to_path_buf())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::program;
    use super::*;

    fn ids<'a>(command: &'a Command, all: &mut BTreeSet<(&'a str, bool)>) {
        let of_paths = command
            .get_arguments()
            .filter(|flag| flag.get_value_parser().type_id() == TypeId::of::<PathBuf>());
        let written: Vec<_> = outputs(command).map(clap::Arg::get_id).collect();
        all.extend(of_paths.map(|flag| {
            let id = flag.get_id();
            (id.as_str(), written.contains(&id))
        }));
        command
            .get_subcommands()
            .for_each(|command| ids(command, all));
    }

    #[test]
    fn every_path_is_read_or_written() {
        let program = program();
        let mut all = BTreeSet::new();
        ids(&program, &mut all);
        let written: Vec<_> = all
            .iter()
            .filter(|(_, is_written)| *is_written)
            .map(|(id, _)| *id)
            .collect();
        let known = [
            "dump_stablehlo",
            "flight_records",
            "log_bits",
            "log_dir",
            "out",
            "picture",
            "predictions",
            "to",
            "trace",
        ];
        assert_eq!(written, known);
        let read: BTreeSet<_> = all.iter().filter(|it| !it.1).map(|it| it.0).collect();
        assert_eq!(read, BTreeSet::from(READ));
    }
}
