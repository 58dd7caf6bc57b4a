//! What happened is said once, and nothing is left on a terminal that others write to as well.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use rstest::rstest;

use crate::common::{self, run};
use crate::observing::terminal;

#[rstest]
fn training_that_stops_early_says_so_once(#[values("text", "json")] output: &str) {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--early-stopping 1 --min-delta 1000 --epochs 9";
    let command = format!("train --model mlp --replicas 1 {flags} --output {output}");
    let finished = run(folder.path(), &command);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let said = finished.stderr.matches("stopped early").count();
    assert_eq!(said, 1, "{}", finished.stderr);
}

/// What the terminal of a run got, whose standard output leads elsewhere.
fn seen(stdout: Stdio) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (mut seen, terminal) = terminal();
    let mut command = common::plain(folder.path());
    let line = "train --model mlp --replicas 1 --epochs 3";
    command.args(line.split_whitespace());
    command.env("TERM", "xterm").stdout(stdout).stderr(terminal);
    let mut run = command.spawn().unwrap();
    let watchdog = common::watchdog(run.id());
    drop(command);
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    // A terminal that no process has open any more is an error to read.
    while let Ok(read @ 1..) = seen.read(&mut buffer) {
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert!(run.wait().unwrap().success());
    drop(watchdog);
    text
}

/// `train | cat`: the table comes to the terminal from another process, at any time.
#[test]
fn a_bar_is_drawn_only_where_the_table_is_not_piped_to_the_same_terminal() {
    let piped = seen(Stdio::piped());
    assert!(!piped.contains("epoch 1/3 ["), "{piped}");
    let file = tempfile::tempfile().unwrap();
    let alone = seen(fs::File::into(file));
    assert!(alone.contains("epoch 1/3 ["), "{alone}");
}
