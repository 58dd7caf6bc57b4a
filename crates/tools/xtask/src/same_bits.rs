//! Compares the weights that two builds of the program train: `cargo xtask same-bits OLD [NEW]`.
//!
//! Both run on this machine, one after the other, so that the comparison says nothing of the CPU's
//! kernels. A change of the design must keep every line equal; a change that means to alter trained
//! weights says so in CHANGELOG.md.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long one training may take, also in a debug build on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// What is trained: how processes are launched, and the flags of `train`.
const TRAININGS: [(&str, &str); 20] = [
    ("", "--epochs 2"),
    ("", "--epochs 1 --replicas 1 --optimizer adam"),
    ("", "--epochs 1 --replicas 2 --optimizer adam"),
    ("", "--epochs 1 --replicas 4 --optimizer adam"),
    ("", "--epochs 1 --replicas 1 --optimizer sgd"),
    ("", "--epochs 1 --replicas 2 --optimizer sgd"),
    ("", "--epochs 1 --replicas 4 --optimizer sgd"),
    ("", "--epochs 1 --replicas 1 --optimizer adamw"),
    ("", "--epochs 1 --replicas 2 --optimizer adamw"),
    ("", "--epochs 2 --replicas 2 --model mlp --l2 0.01"),
    ("", "--steps 30 --replicas 3 --seed 7 --batch-size 5"),
    ("", "--epochs 1 --strategy default"),
    ("", "--epochs 1 --strategy one-device"),
    ("", "--epochs 1 --strategy central-storage --replicas 2"),
    ("--workers 2", "--epochs 1 --strategy multi-worker"),
    (
        "--workers 2",
        "--epochs 1 --strategy multi-worker --transport grpc",
    ),
    (
        "--workers 2",
        "--epochs 1 --strategy multi-worker --bytes-per-pack 4096",
    ),
    (
        "--ps 1 --workers 1",
        "--epochs 1 --strategy parameter-server",
    ),
    (
        "--ps 2 --workers 1",
        "--epochs 1 --strategy parameter-server",
    ),
    ("", "--epochs 1 --strategy tpu --replicas 2 --model mlp"),
];

/// Runs all trainings with both programs; the error lists those that differ or fail.
pub fn run(old: &Path, new: &Path) -> Result<String, String> {
    let (mut problems, mut same) = (String::new(), 0);
    for (launched, flags) in TRAININGS {
        let name = format!("{launched} {flags}");
        let name = name.trim();
        let found = [old, new].map(|program| weights(program, launched, flags));
        let problem = match found {
            [Ok(old), Ok(new)] if old == new => {
                say!("same      {old}  {name}");
                same += 1;
                continue;
            }
            [Ok(old), Ok(new)] => format!("DIFFERENT {old} and {new}  {name}"),
            // A build that cannot do it is a difference only if the other can.
            [Err(_), Err(reason)] => {
                say!("SKIPPED   neither program trains it: {reason}  {name}");
                continue;
            }
            [Err(reason), Ok(_)] => format!("only the new program trains it: {reason}  {name}"),
            [Ok(_), Err(reason)] => format!("only the old program trains it: {reason}  {name}"),
        };
        say!("{problem}");
        let _ = writeln!(problems, "{problem}");
    }
    if !problems.is_empty() {
        Err(problems)
    } else if same == 0 {
        Err("neither program has trained anything".to_owned())
    } else {
        Ok(format!("{same} of {} trainings", TRAININGS.len()))
    }
}

/// The `weights_sha256` of a training, the same on all its processes.
fn weights(program: &Path, launched: &str, flags: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    if !launched.is_empty() {
        command.arg("launch").args(launched.split_whitespace());
        command.arg("--").arg(program);
    }
    command.arg("train").args(flags.split_whitespace());
    digest(&output(&mut command)?)
}

/// Reads the one digest in what a program has printed.
fn digest(printed: &str) -> Result<String, String> {
    let words = printed.split(|c: char| !c.is_ascii_alphanumeric());
    let is_digest = |word: &&str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let found: BTreeSet<&str> = words.filter(is_digest).collect();
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one.to_owned()),
        (Some(one), Some(other)) => Err(format!("its processes differ: {one}, {other}")),
        (None, _) => {
            let last = printed.lines().rfind(|line| !line.trim().is_empty());
            Err(last.unwrap_or("it printed nothing").to_owned())
        }
    }
}

/// Runs a program to its end, within [`LIMIT`], and returns what it printed.
fn output(command: &mut Command) -> Result<String, String> {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped
        .spawn()
        .map_err(|error| format!("cannot start {command:?}: {error}"))?;
    let streams = [read(child.stdout.take()), read(child.stderr.take())];
    let printed = streams.map(|stream| stream.recv_timeout(LIMIT));
    if printed.iter().any(Result::is_err) {
        return Err(ended(child, "it did not end in time"));
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let printed = printed.map(Result::unwrap_or_default).concat();
    match (status.success(), digest(&printed)) {
        (true, _) => Ok(printed),
        (false, Ok(_)) => Err(status.to_string()),
        (false, Err(reason)) => Err(reason),
    }
}

/// Reads a stream to its end on a thread of its own, which ends with the stream.
fn read(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// Kills a program that is to end.
fn ended(mut child: Child, reason: &str) -> String {
    let _ = child.kill();
    let _ = child.wait();
    reason.to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::{digest, output, weights};

    const ONE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn the_digest_is_found_in_text_and_json() {
        let text = format!("test accuracy 0.5 after 23 steps; weights {ONE}\n");
        assert_eq!(digest(&text), Ok(ONE.to_owned()));
        let json = format!("{{\"weights_sha256\":\"{ONE}\"}}\n{{\"weights_sha256\":\"{ONE}\"}}");
        assert_eq!(digest(&json), Ok(ONE.to_owned()));
    }

    #[test]
    fn no_digest_or_two_is_an_error_with_the_reason() {
        let other = ONE.replace('0', "f");
        assert!(digest(&format!("{ONE} {other}")).is_err_and(|e| e.contains(&other)));
        let failed = digest("a line\nerror: no such file\n\n");
        assert_eq!(failed, Err("error: no such file".to_owned()));
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_is_an_error() {
        let printed = output(Command::new("sh").args(["-c", "echo wrong >&2; exit 3"]));
        assert_eq!(printed, Err("wrong".to_owned()));
        let missing = weights(Path::new("/nowhere/program"), "--workers 2", "--epochs 1");
        assert!(missing.is_err_and(|error| error.contains("/nowhere/program")));
    }
}
