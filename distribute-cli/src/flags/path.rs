//! Flags for paths of files of this machine.

use std::any::TypeId;
use std::path::PathBuf;

use clap::Command;
use clap::builder::{PathBufValueParser, TypedValueParser};
use distribute_classifier::local_path;

/// Adds the check of paths to every flag of a command and its subcommands that takes a path.
pub(super) fn in_all_flags(command: &mut Command) {
    // All at once, which keeps their order.
    *command = std::mem::take(command).mut_args(|flag| {
        if flag.get_value_parser().type_id() == TypeId::of::<PathBuf>() {
            flag.value_parser(PathBufValueParser::new().try_map(local_path))
        } else {
            flag
        }
    });
    command.get_subcommands_mut().for_each(in_all_flags);
}

/// [`local_path`] of a text that may also be a name.
pub(super) fn name_or_file(text: &str) -> Result<String, String> {
    let path = local_path(PathBuf::from(text))?;
    Ok(path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_for_a_path_checks_it() {
        fn check(command: &Command, found: &mut usize) {
            for flag in command.get_arguments() {
                let names = flag.get_value_names().unwrap_or_default();
                let is_path = names.iter().any(|name| {
                    ["DIR", "FILE", "PATH"]
                        .iter()
                        .any(|part| name.contains(part))
                });
                let parser = flag.get_value_parser();
                if !is_path && parser.type_id() != TypeId::of::<PathBuf>() {
                    continue;
                }
                *found += 1;
                let alone = clap::Arg::new("path")
                    .long("path")
                    .value_parser(parser.clone());
                let alone = Command::new("alone").arg(alone);
                let refused = alone.try_get_matches_from(["alone", "--path=s3://bucket/x"]);
                let said = refused.unwrap_err().to_string();
                assert!(said.contains("is an address"), "{flag}: {said}");
            }
            command
                .get_subcommands()
                .for_each(|command| check(command, found));
        }
        let mut found = 0;
        check(&super::super::program(), &mut found);
        assert!(found >= 20, "{found}");
    }
}
