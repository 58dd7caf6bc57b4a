//! The configuration file: TOML whose keys are the flags.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use toml::de::{DeTable, DeValue};

use crate::failure::Failure;
use crate::flags::{Cli, check_outputs, instead_of, program};

/// Parses the command line and the file of its `--config`.
///
/// # Errors
/// Clap's errors, in one or two lines; help and version as `Err(Ok(text))`.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Cli, Result<String, Failure>> {
    let matches = matches(&arguments).map_err(|error| match launch_failure(&error) {
        Some(failure) => Err(failure),
        None => clap_failure(error),
    })?;
    let Some((name, given)) = matches.subcommand() else {
        return Err(Err(Failure::usage("a command is needed, see --help")));
    };
    // Commands that measure have no such flag, so its absence is not an error.
    let config: Option<PathBuf> = given.try_get_one("config").ok().flatten().cloned();
    let Some(path) = config else {
        return checked(&matches);
    };
    let merged = with_file(&arguments, &path, name, given).map_err(Err)?;
    let from_file =
        |failure: Result<String, Failure>| failure.map_err(|failure| failure.in_file(&path));
    let merged = self::matches(&merged).map_err(clap_failure);
    merged
        .and_then(|matches| checked(&matches))
        .map_err(from_file)
}

/// The arguments of these matches, after a check of the output paths.
fn checked(matches: &ArgMatches) -> Result<Cli, Result<String, Failure>> {
    let outputs = check_outputs(&program(), matches);
    outputs.map_err(|what| Err(Failure::usage(what)))?;
    Cli::from_arg_matches(matches).map_err(clap_failure)
}

fn matches(arguments: &[OsString]) -> Result<ArgMatches, clap::Error> {
    program().try_get_matches_from(arguments)
}

/// The arguments followed by the flags of the file that were not given already.
fn with_file(
    arguments: &[OsString],
    path: &Path,
    subcommand: &str,
    given: &ArgMatches,
) -> Result<Vec<OsString>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "cannot read the configuration file {} ({error}); check the path",
            path.display()
        ))
    })?;
    let not_toml = |error: toml::de::Error| {
        let line = error.span().map_or(1, |span| line_of(&text, span.start));
        Failure::usage(format!(
            "{}:{line}: not TOML: {}; write lines like `epochs = 5`",
            path.display(),
            error.message().trim()
        ))
    };
    let table = DeTable::parse(&text).map_err(not_toml)?;
    let command = program();
    let flags = flags(&command, subcommand);
    let mut merged = arguments.to_vec();
    for (key, value) in table.get_ref() {
        let place = || format!("{}:{}", path.display(), line_of(&text, key.span().start));
        let name: &str = key.get_ref();
        let Some(flag) = flags.iter().find(|flag| flag.get_long() == Some(name)) else {
            let nearest = nearest(name, &flags);
            return Err(Failure::usage(format!(
                "{}: unknown key `{name}`{nearest}; keys are the flags of `{subcommand} --help`",
                place()
            )));
        };
        if given.value_source(flag.get_id().as_str()) == Some(ValueSource::CommandLine) {
            continue;
        }
        let argument = argument(flag, name, value.get_ref()).ok_or_else(|| {
            let (wanted, found) = (wanted(flag), kind(value.get_ref()));
            Failure::usage(format!("{}: `{name}` needs {wanted}, not {found}", place()))
        })?;
        merged.extend(argument);
    }
    Ok(merged)
}

/// The flags of a command that a file may contain.
fn flags<'a>(command: &'a Command, subcommand: &str) -> Vec<&'a Arg> {
    let global = command.get_arguments();
    let command = command.find_subcommand(subcommand);
    let arguments = command
        .into_iter()
        .flat_map(Command::get_arguments)
        .chain(global.filter(|flag| flag.is_global_set()));
    arguments
        .filter(|flag| {
            flag.get_long()
                .is_some_and(|long| !["config", "help"].contains(&long))
        })
        .collect()
}

fn nearest(name: &str, flags: &[&Arg]) -> String {
    let known = || flags.iter().filter_map(|flag| flag.get_long());
    let has = |flag: &str| known().any(|long| flag.strip_prefix("--") == Some(long));
    if let Some(advice) = instead_of(&format!("--{name}"), has) {
        return format!(", {}", advice.replace("`--", "`"));
    }
    let nearest = distribute_error::nearest(name, known());
    nearest.map_or_else(String::new, |long| format!(", did you mean `{long}`?"))
}

/// The flag as on the command line; empty for `false`.
fn argument(flag: &Arg, name: &str, value: &DeValue<'_>) -> Option<Vec<OsString>> {
    if !flag.get_action().takes_values() {
        let DeValue::Boolean(on) = value else {
            return None;
        };
        return Some(on.then(|| format!("--{name}").into()).into_iter().collect());
    }
    if let (DeValue::Array(items), ArgAction::Append, None) =
        (value, flag.get_action(), flag.get_value_delimiter())
    {
        // A flag that is given several times.
        let items = items.iter().map(|item| scalar(item.get_ref()));
        let items = items.map(|item| Some(format!("--{name}={}", item?).into()));
        return items
            .collect::<Option<Vec<_>>>()
            .filter(|items| !items.is_empty());
    }
    let text = match value {
        // Only flags with a list of values take a list, and not an empty one.
        DeValue::Array(items) => {
            flag.get_value_delimiter().filter(|_| !items.is_empty())?;
            let items: Option<Vec<String>> =
                items.iter().map(|item| scalar(item.get_ref())).collect();
            items?.join(",")
        }
        value => scalar(value)?,
    };
    Some(vec![format!("--{name}={text}").into()])
}

/// The possible values of a key.
fn wanted(flag: &Arg) -> &'static str {
    let names = flag.get_value_names().unwrap_or_default();
    let name = names.first().map_or("", |name| name.as_str());
    match (flag.get_action().takes_values(), name) {
        (false, _) => "true or false",
        (true, "N") => "a whole number",
        (true, "F") => "a number",
        (true, "LIST") => "a text or a list of texts",
        (true, _) => "a text",
    }
}

/// The value of a key.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(items) if items.is_empty() => "an empty list",
        DeValue::Array(_) => "this list",
        DeValue::Table(_) => "a table",
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            let value = i128::from_str_radix(&digits, number.radix()).ok()?;
            Some(value.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().replace('_', "")),
        _ => None,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text
        .bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count()
}

/// The program and command in a usage line.
fn usage(text: &str) -> &str {
    let usage = text
        .lines()
        .find_map(|line| line.strip_prefix("Usage: "))
        .unwrap_or_default();
    let usage = usage.split_once(" <").map_or(usage, |(program, _)| program);
    usage.split_once(" [").map_or(usage, |(program, _)| program)
}

/// The command that an error is about.
fn command_of(error: &str) -> Command {
    program_command(usage(error))
}

/// The commands of the program, or of a command with subcommands, as in its help.
fn no_command(help: &str) -> Failure {
    let program = usage(help);
    let mut command = program_command(program);
    let names: Vec<String> = command
        .get_subcommands_mut()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
        .map(|command| command.get_name().to_string())
        .collect();
    let after = match program.split_once(' ') {
        Some((_, command)) => format!(" after `{command}`"),
        None => String::new(),
    };
    Failure::usage(format!(
        "a command is needed{after}: {}; see --help",
        names.join(", ")
    ))
}

/// The command of `distribute-cli bench`, or the program itself.
fn program_command(usage: &str) -> Command {
    let names = usage.split_whitespace().skip(1);
    names.fold(program(), |command, name| {
        command.find_subcommand(name).cloned().unwrap_or(command)
    })
}

/// Advice for a `launch` without a command, or without `--` before the command.
fn launch_failure(error: &clap::Error) -> Option<Failure> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    if !error.to_string().contains("Usage: distribute-cli launch ") {
        return None;
    }
    let command = match (error.kind(), error.get(ContextKind::InvalidArg)?) {
        (ErrorKind::UnknownArgument, ContextValue::String(word)) if !word.starts_with('-') => {
            match program().find_subcommand(word) {
                Some(_) => format!("distribute-cli {word}"),
                None => word.clone(),
            }
        }
        (ErrorKind::MissingRequiredArgument, ContextValue::Strings(missing))
            if missing.iter().any(|missing| missing.contains("COMMAND")) =>
        {
            "distribute-cli train --strategy multi-worker".to_string()
        }
        _ => return None,
    };
    Some(Failure::usage(format!(
        "launch needs the command that every process runs, after `--`: launch --workers 2 -- \
         {command}; see --help"
    )))
}

/// Whether this value of `NO_COLOR` permits colours (<https://no-color.org>).
fn wants_colors(no_color: Option<OsString>) -> bool {
    no_color.is_none_or(|value| value.is_empty())
}

/// Advice for an unknown flag that has another name here.
fn instead(error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let command = command_of(&error.to_string());
    let program = program();
    instead_of(flag, |flag| {
        let all = command.get_arguments().chain(program.get_arguments());
        all.filter_map(Arg::get_long)
            .any(|long| flag.strip_prefix("--") == Some(long))
    })
}

/// Clap's error in at most two lines; help and version are not errors.
fn clap_failure(error: clap::Error) -> Result<String, Failure> {
    use clap::error::ErrorKind;
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        let text = error.render();
        return Ok(
            if std::io::stdout().is_terminal() && wants_colors(std::env::var_os("NO_COLOR")) {
                text.ansi().to_string()
            } else {
                text.to_string()
            },
        );
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Err(no_command(&error.to_string()));
    }
    let text = error.to_string();
    let lines = text.lines().map(str::trim);
    let kept: Vec<&str> = lines
        .filter(|line| !line.is_empty())
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .collect();
    let message = match instead(&error) {
        Some(advice) => format!("{}; {advice}", kept.first().copied().unwrap_or_default()),
        None => kept.join("; ").replace(":; ", ": "),
    };
    let message = message.trim_start_matches("error: ");
    let left_out = |name: &&str| message.contains(&format!("subcommand '{name}'"));
    if cfg!(not(feature = "full")) && ["bench", "conformance"].iter().any(left_out) {
        return Err(Failure::usage(format!(
            "{message}; this program was built with --no-default-features, build it without"
        )));
    }
    Err(Failure::usage(format!("{message}; see --help")))
}

#[cfg(test)]
mod tests {
    use super::wants_colors;

    #[test]
    fn any_value_of_no_color_turns_colours_off() {
        let wanted =
            [None, Some(""), Some("0"), Some("1")].map(|value| wants_colors(value.map(Into::into)));
        assert_eq!(wanted, [true, true, false, false]);
    }
}
