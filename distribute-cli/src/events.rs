//! Standard output: JSON lines, or text.

use std::io::{self, Write};

use distribute_core::Result;
use distribute_fit::{Callback, Control, EpochRecord, json_number};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::flags::OutputFormat;
use crate::notes::note;

/// Writes a line. A closed pipe (`| head`) is not an error.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(format!(
            "cannot write to standard output ({error}); free some space or write elsewhere"
        ))),
        _ => Ok(()),
    }
}

/// Standard output for the lines of a table. Neither a closed pipe nor a full disk ends the run;
/// the first error on a full disk is reported.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    failed: bool,
}

impl Rows {
    fn tell(&mut self, result: io::Result<()>) {
        match result {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe && !self.failed => {
                self.failed = true;
                note(&format!(
                    "warning: cannot write to standard output ({error}); training goes on"
                ));
            }
            _ => {}
        }
    }
}

impl Write for Rows {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tell(io::stdout().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tell(io::stdout().flush());
        Ok(())
    }
}

/// The events of `--output json` by their names. docs/observing.md lists them with their fields.
macro_rules! event_names {
    ($($(#[$attribute:meta])* $variant:ident = $name:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum EventName {
            $($(#[$attribute])* $variant,)*
        }

        impl EventName {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$variant),*];

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

event_names! {
    Start = "start",
    Step = "step",
    Epoch = "epoch",
    Done = "done",
    DryRun = "dry-run",
    Evaluation = "evaluation",
    Report = "report",
    Doctor = "doctor",
    Peers = "peers",
    #[cfg_attr(all(not(feature = "full"), not(test)), expect(dead_code, reason = "compiles nothing"))]
    Compiled = "compiled",
    Log = "log",
}

/// An event as a JSON object on one line: its name, then its fields in this order.
pub(crate) fn event<'a>(
    name: EventName,
    fields: impl IntoIterator<Item = (&'a str, Value)>,
) -> String {
    object([("event", json!(name.name()))].into_iter().chain(fields))
}

/// A JSON object on one line, its keys in this order.
fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> String {
    let fields: Vec<String> = fields
        .into_iter()
        .map(|(name, value)| format!("{}:{value}", json!(name)))
        .collect();
    format!("{{{}}}", fields.join(","))
}

/// Lines about training on standard output. A line that cannot be written is lost; the first such
/// error gives a warning. The exit code and the last lines say how training ended.
#[derive(Debug)]
pub(crate) struct Told {
    failed: bool,
    who: &'static str,
}

impl Default for Told {
    fn default() -> Self {
        Self::of("training")
    }
}

impl Told {
    /// The activity that continues if lines cannot be written.
    pub(crate) fn of(who: &'static str) -> Self {
        Self { failed: false, who }
    }

    pub(crate) fn line(&mut self, text: &str) {
        if let Err(failure) = line(text) {
            if !self.failed {
                note(&format!("warning: {failure}; {} goes on", self.who));
            }
            self.failed = true;
        }
    }
}

/// Prints one JSON object per epoch:
/// `{"event":"epoch","epoch":1,"loss":..,"accuracy":..,"val_loss":..,"val_accuracy":..,
/// "examples_per_second":..}`.
#[derive(Debug, Default)]
pub(crate) struct JsonEpochs {
    told: Told,
}

impl Callback for JsonEpochs {
    fn on_epoch_end(&mut self, record: &EpochRecord, _: &mut Control<'_>) -> Result<()> {
        let head = [("epoch", json!(record.epoch + 1))];
        let logs = record
            .logs
            .iter()
            .map(|(name, value)| (name, json_number(value)));
        let rate = (
            "examples_per_second",
            json_number(record.examples_per_second()),
        );
        let fields = head.into_iter().chain(logs).chain([rate]);
        self.told.line(&event(EventName::Epoch, fields));
        Ok(())
    }
}

/// Prints the averages of the epoch every N updates, over all workers:
/// `{"event":"step","step":20,"epoch":1,"loss":..,"accuracy":..}`.
#[derive(Debug)]
pub(crate) struct StepLines {
    /// Equal on all workers, which has been checked: otherwise some would wait for the others.
    pub(crate) every: Option<u64>,
    /// Only one of several workers prints; all take part in the averages.
    pub(crate) reports: bool,
    pub(crate) output: OutputFormat,
    pub(crate) told: Told,
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
            self.told.line(&format!("step {}: {logs}", progress.step));
            return Ok(());
        }
        let head = [
            ("step", json!(progress.step)),
            ("epoch", json!(progress.position.epoch + 1)),
        ];
        let logs = logs.iter().map(|(name, value)| (name, json_number(value)));
        let fields = head.into_iter().chain(logs);
        self.told.line(&event(EventName::Step, fields));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::EventName;

    #[test]
    fn every_event_is_in_the_documents() {
        let text = include_str!("../../docs/observing.md");
        let (_, table) = text.split_once("| event | when | fields |").unwrap();
        let rows = table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with("| `"));
        let mut documented: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        let mut all: Vec<&str> = EventName::ALL.iter().map(|name| name.name()).collect();
        documented.sort_unstable();
        all.sort_unstable();
        assert_eq!(documented, all);
    }
}
