//! What goes to standard output: JSON lines, or text.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use distribute_core::{Error, Result};
use distribute_data::fit::{Callback, Control, EpochRecord, json_number};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::flags::OutputFormat;

/// Writes a line. That nobody reads it any more (`| head`) is not an error.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(format!(
            "cannot write to standard output ({error}); free some space or write elsewhere"
        ))),
        _ => Ok(()),
    }
}

/// Standard output for the lines of a table: that nobody reads them any more ends nothing.
#[derive(Debug)]
pub(crate) struct Rows;

impl Write for Rows {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_unread(io::stdout().write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_unread(io::stdout().flush(), ())
    }
}

fn unless_unread<T>(result: io::Result<T>, done: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(done),
        result => result,
    }
}

/// A JSON object on one line, its keys in this order.
pub(crate) fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> String {
    let fields = fields.into_iter();
    let fields: Vec<String> = fields
        .map(|(name, value)| format!("{}:{value}", json!(name)))
        .collect();
    format!("{{{}}}", fields.join(","))
}

/// Removes the curves that an earlier run has left in a log directory: a new run replaces its
/// history files, so they would belong to nothing. Where no run of this program has left a history
/// nothing is touched.
pub(crate) fn remove_curves(directory: &Path) -> Result<(), Failure> {
    if !directory.join("history.jsonl").exists() {
        return Ok(());
    }
    for part in ["train", "validation"] {
        for entry in fs::read_dir(directory.join(part))
            .into_iter()
            .flatten()
            .flatten()
        {
            let is_ours = entry
                .file_name()
                .to_string_lossy()
                .starts_with("events.out.tfevents.");
            if !is_ours {
                continue;
            }
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::failed(format!(
                        "cannot remove {}, a curve of an earlier run ({error}); choose another \
                         --log-dir",
                        entry.path().display()
                    )));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Prints one JSON object per epoch:
/// `{"event":"epoch","epoch":1,"loss":..,"accuracy":..,"val_loss":..,"val_accuracy":..,
/// "examples_per_second":..}`.
#[derive(Debug)]
pub(crate) struct JsonEpochs;

impl Callback for JsonEpochs {
    fn on_epoch_end(&mut self, record: &EpochRecord, _: &mut Control<'_>) -> Result<()> {
        let head = [
            ("event", json!("epoch")),
            ("epoch", json!(record.epoch + 1)),
        ];
        let logs = record
            .logs
            .iter()
            .map(|(name, value)| (name, json_number(value)));
        let rate = (
            "examples_per_second",
            json_number(record.examples_per_second()),
        );
        print(&object(head.into_iter().chain(logs).chain([rate])))
    }
}

/// Says after every so many updates how the epoch goes, over all workers:
/// `{"event":"step","step":20,"epoch":1,"loss":..,"accuracy":..}`.
#[derive(Debug)]
pub(crate) struct StepLines {
    /// All workers have the same, which they have compared: one that takes no part would let the
    /// others wait for it.
    pub(crate) every: Option<u64>,
    /// Of several workers one prints; all take part in the averages.
    pub(crate) reports: bool,
    pub(crate) output: OutputFormat,
}

impl Callback for StepLines {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let progress = run.progress();
        if !self
            .every
            .is_some_and(|every| run.reached_multiple_of(every))
        {
            return Ok(());
        }
        let logs = run.logs_of_all_workers()?;
        if !self.reports {
            return Ok(());
        }
        if self.output == OutputFormat::Text {
            return print(&format!("step {}: {logs}", progress.step));
        }
        let head = [
            ("event", json!("step")),
            ("step", json!(progress.step)),
            ("epoch", json!(progress.position.epoch + 1)),
        ];
        let logs = logs.iter().map(|(name, value)| (name, json_number(value)));
        print(&object(head.into_iter().chain(logs)))
    }
}

fn print(text: &str) -> Result<()> {
    line(text).map_err(|failure| Error::step(failure.to_string()))
}
