//! Paths of files of this machine: addresses are none, and `~` is the home folder wherever
//! it stands.

use std::any::TypeId;
use std::env;
use std::path::{Path, PathBuf};

use clap::Command;
use clap::builder::{PathBufValueParser, TypedValueParser};

/// Has every flag of a command and its subcommands that takes a path check it.
pub(super) fn in_all_flags(command: &mut Command) {
    // All at once, which leaves them in their order.
    *command = std::mem::take(command).mut_args(|flag| {
        match flag.get_value_parser().type_id() == TypeId::of::<PathBuf>() {
            true => flag.value_parser(PathBufValueParser::new().try_map(local)),
            false => flag,
        }
    });
    command.get_subcommands_mut().for_each(in_all_flags);
}

/// The path of a file or folder of this machine, with the home folder in the place of `~`: a shell
/// does that only where a word begins, and never in a file.
pub(super) fn local(path: PathBuf) -> Result<PathBuf, String> {
    let Some(text) = path.to_str() else {
        return Ok(path);
    };
    if let Some(scheme) = scheme(text) {
        return Err(match (scheme, text.split_once("///")) {
            ("file", Some((_, rest))) => {
                format!("that is an address; give the path alone: /{rest}")
            }
            ("file", None) => "that is an address; give the path alone".to_string(),
            _ => format!(
                "{scheme}:// is an address, and files of this machine are read and written: copy \
                 it here, or mount it and give the path of that"
            ),
        });
    }
    let Some(after) = text.strip_prefix('~') else {
        return Ok(path);
    };
    match after.strip_prefix('/') {
        Some(rest) => Ok(home()?.join(rest.trim_start_matches('/'))),
        None if after.is_empty() => home(),
        None if path.exists() => Ok(path),
        None => Err(format!(
            "the home folder of another user is not looked up; write the whole path, or ./{text} \
             for a file of this name"
        )),
    }
}

/// [`local`] of a text that may also be a name of something else.
pub(super) fn name_or_file(text: &str) -> Result<String, String> {
    let path = local(PathBuf::from(text))?;
    Ok(path.to_string_lossy().into_owned())
}

fn home() -> Result<PathBuf, String> {
    let home = env::home_dir().filter(|home| home.is_absolute());
    home.filter(|home| home != Path::new("")).ok_or_else(|| {
        "~ is the home folder, and HOME does not name any; write the whole path".to_string()
    })
}

/// The scheme of an address, such as s3 in `s3://bucket`.
fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter));
    is_scheme.then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_no_path() {
        for address in [
            "s3://b/x",
            "gs://b",
            "hdfs://n:1/x",
            "http://h/a.csv",
            "abfss://c@a/x",
        ] {
            let said = local(address.into()).unwrap_err();
            assert!(
                said.contains("is an address") && said.contains("mount it"),
                "{said}"
            );
        }
        let said = local("file:///data/a.csv".into()).unwrap_err();
        assert!(said.ends_with("give the path alone: /data/a.csv"), "{said}");
        local("file://data".into()).unwrap_err();
        for path in [
            "./s3://b", "a/b", "s3:/b", "://x", "1s://x", "a b://c", "", "/x//y",
        ] {
            assert_eq!(local(path.into()).unwrap(), PathBuf::from(path));
        }
    }

    #[test]
    fn home_is_where_a_shell_finds_it() {
        let home = home().unwrap();
        assert_eq!(local("~".into()).unwrap(), home);
        assert_eq!(local("~/a/b".into()).unwrap(), home.join("a/b"));
        assert_eq!(local("~//a".into()).unwrap(), home.join("a"));
        assert_eq!(local("a/~".into()).unwrap(), PathBuf::from("a/~"));
        assert_eq!(local("./~/a".into()).unwrap(), PathBuf::from("./~/a"));
        let said = local("~somebody/a".into()).unwrap_err();
        assert!(said.contains("./~somebody/a"), "{said}");
    }

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
