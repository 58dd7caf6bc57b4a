//! The command that every change must pass: `cargo xtask check`.
#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

/// A line on standard output; a reader that has gone (`cargo xtask modules | head`) is no error.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        // What tests of this program say is not a result of a check that runs them.
        if !cfg!(test) {
            let _ = writeln!(std::io::stdout(), $($text)*);
        }
    }};
}

mod api;
mod book;
mod cargo;
mod check;
mod commits;
mod deny;
mod edges;
mod features;
mod files;
mod fuzz;
mod miri;
mod modules;
mod package;
mod same_bits;
mod suite;
mod tidy;
mod tokens;
mod transports;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::tree::Workspace;

const USAGE: &str = "\
usage: cargo xtask check [--skip-tests | --only-tests | --only STEP]
       cargo xtask api
       cargo xtask book-links [supports RENDERER]
       cargo xtask commit-message FILE
       cargo xtask fuzz TARGET SECONDS
       cargo xtask modules [CRATE]
       cargo xtask same-bits OLD [NEW]

  --skip-tests   every step but `models`, `miri` and `test`
  --only-tests   these three
  --only STEP    one step: tidy, commits, book, edges, modules, features, deny, package, fmt,
                 clippy, transports, doc, models, miri or test
  api            writes the public interfaces that the step `doc` compares anew
  book-links     what mdBook calls: links from pages to other files of the repository
  TARGET         a fuzz target, which is a folder of crates/tools/fuzz/corpus, or `all`
  commit-message what .githooks/commit-msg calls
  CRATE          whose modules are shown: who imports whom, and in which circles
  OLD, NEW       two builds of distribute-cli, whose trained weights are compared; NEW is what
                 `cargo build` has made last unless given";

/// What the command line asks for.
#[derive(Debug, PartialEq)]
enum Task {
    Api,
    Check(check::Selection),
    BookLinks(Vec<String>),
    Fuzz(Vec<String>, u64),
    CommitMessage(PathBuf),
    Modules(Option<String>),
    SameBits(PathBuf, PathBuf),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments) {
        Ok(Task::Check(selection)) => check::run(&workspace_root(), &selection),
        Ok(Task::Api) => verdict("api", api::write(&Workspace::at(&workspace_root()))),
        Ok(Task::BookLinks(arguments)) => book_links(&arguments),
        Ok(Task::Fuzz(targets, seconds)) => {
            verdict("fuzz", fuzz::run(&workspace_root(), &targets, seconds))
        }
        Ok(Task::CommitMessage(file)) => verdict("commit-message", commits::check_file(&file)),
        Ok(Task::Modules(name)) => verdict("modules", show_modules(name.as_deref())),
        Ok(Task::SameBits(old, new)) => verdict("same-bits", same_bits::run(&old, &new)),
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Silent where it succeeds: standard output is mdBook's.
fn book_links(arguments: &[String]) -> ExitCode {
    match book::preprocess(&workspace_root(), arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("book-links: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn show_modules(name: Option<&str>) -> Result<String, String> {
    modules::print(Workspace::at(&workspace_root()).tree()?, name)
}

fn verdict(task: &str, outcome: Result<String, String>) -> ExitCode {
    match outcome {
        Ok(note) => {
            say!("{task}: passed: {note}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{task}: FAILED\n{reason}");
            ExitCode::FAILURE
        }
    }
}

/// Reads the command line into the steps to run.
fn parse(arguments: &[String]) -> Result<Task, String> {
    let mut words = arguments.iter().map(String::as_str);
    match words.next() {
        Some("check") => {}
        Some("api") => return Ok(Task::Api),
        Some("book-links") => return Ok(Task::BookLinks(words.map(str::to_owned).collect())),
        Some("fuzz") => return parse_fuzz(words),
        Some("commit-message") => {
            return Ok(Task::CommitMessage(words.next().unwrap_or_default().into()));
        }
        Some("modules") => return Ok(Task::Modules(words.next().map(str::to_owned))),
        Some("same-bits") => return parse_same_bits(words),
        Some(other) => return Err(format!("unknown command `{other}`")),
        None => return Err("no command given".to_owned()),
    }
    let mut selection = check::Selection::All;
    while let Some(word) = words.next() {
        if selection != check::Selection::All {
            return Err(
                "`--skip-tests`, `--only-tests` and `--only` exclude each other".to_owned(),
            );
        }
        selection = match word {
            "--skip-tests" => check::Selection::AllButTests,
            "--only-tests" => check::Selection::Tests,
            "--only" => check::Selection::only(words.next().unwrap_or_default())?,
            other => return Err(format!("unknown option `{other}`")),
        };
    }
    Ok(Task::Check(selection))
}

/// Reads what follows `fuzz`: a target or `all`, and a number of seconds for each.
fn parse_fuzz<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Task, String> {
    let name = words.next().unwrap_or_default();
    let mut targets = fuzz::targets(&workspace_root())?;
    targets.retain(|target| name == "all" || name == target);
    let seconds = words.next().and_then(|word| word.parse().ok());
    match (seconds, words.next()) {
        (Some(seconds), None) if !targets.is_empty() => Ok(Task::Fuzz(targets, seconds)),
        _ => Err("`fuzz` takes a target and a number of seconds".to_owned()),
    }
}

/// Reads what follows `same-bits`: one program or two.
fn parse_same_bits<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Task, String> {
    let built = || workspace_root().join("target/debug/distribute-cli");
    match (words.next(), words.next(), words.next()) {
        (Some(old), new, None) => {
            let new = new.map_or_else(built, PathBuf::from);
            Ok(Task::SameBits(PathBuf::from(old), new))
        }
        _ => Err("`same-bits` takes one program or two".to_owned()),
    }
}

/// The directory of the workspace: cargo says where this crate is, wherever it is called from.
fn workspace_root() -> PathBuf {
    let crate_directory = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    crate_directory
        .ancestors()
        .nth(3)
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::{Task, check::Selection, parse};

    fn parse_words(line: &str) -> Result<Task, String> {
        parse(
            &line
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn known_options_select_steps() {
        assert_eq!(parse_words("check"), Ok(Task::Check(Selection::All)));
        assert_eq!(
            parse_words("check --only-tests"),
            Ok(Task::Check(Selection::Tests))
        );
        assert_eq!(
            parse_words("check --skip-tests"),
            Ok(Task::Check(Selection::AllButTests))
        );
        assert_eq!(
            parse_words("check --only fmt"),
            Ok(Task::Check(Selection::Only("fmt")))
        );
        assert_eq!(
            parse_words("book-links supports html"),
            Ok(Task::BookLinks(vec!["supports".into(), "html".into()]))
        );
        assert_eq!(
            parse_words("same-bits old new"),
            Ok(Task::SameBits("old".into(), "new".into()))
        );
        assert_eq!(
            parse_words("fuzz data_frames 60"),
            Ok(Task::Fuzz(vec!["data_frames".to_owned()], 60))
        );
    }

    #[test]
    fn all_fuzz_targets_run_one_after_the_other() {
        let Ok(Task::Fuzz(targets, 1)) = parse_words("fuzz all 1") else {
            panic!("there are targets");
        };
        assert!(targets.len() > 10, "{targets:?}");
        assert!(targets.contains(&"flight_record".to_owned()));
    }

    #[test]
    fn a_wrong_command_line_says_what_is_wrong() {
        assert_eq!(parse_words(""), Err("no command given".to_owned()));
        assert_eq!(
            parse_words("test"),
            Err("unknown command `test`".to_owned())
        );
        assert_eq!(
            parse_words("check --fast"),
            Err("unknown option `--fast`".to_owned())
        );
        assert!(
            parse_words("check --only nothing")
                .unwrap_err()
                .contains("tidy")
        );
        assert!(parse_words("check --only").unwrap_err().contains("tidy"));
        assert!(parse_words("fuzz nothing 1").is_err());
        assert!(parse_words("same-bits").is_err());
        assert!(parse_words("same-bits one two three").is_err());
        assert!(parse_words("fuzz data_frames").is_err());
        assert!(
            parse_words("check --skip-tests --only fmt")
                .unwrap_err()
                .contains("exclude")
        );
    }
}
