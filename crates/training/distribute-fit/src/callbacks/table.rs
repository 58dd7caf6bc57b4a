//! The table of epochs for a terminal. With loss and accuracy of training and validation it is 80
//! columns wide.

use std::time::Duration;

use crate::{EpochRecord, Logs};

/// Formats one line per epoch under a header.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The header that was printed last.
    header: String,
}

impl Table {
    /// The lines to print for an epoch: the header comes with the first one, and again when the
    /// columns change.
    pub(super) fn lines(&mut self, record: &EpochRecord, epochs: usize) -> Vec<String> {
        let rate = match record.examples_per_second() {
            rate if rate.is_finite() => format!("{rate:.0}"),
            _ => "-".to_string(),
        };
        let time = duration(record.training_time + record.validation_time);
        let epoch = format!("{}/{epochs}", record.epoch + 1);
        let widest = format!("{epochs}/{epochs}").len();
        let mut columns = vec![("epoch", widest.max(5), epoch)];
        let logs = record.logs.iter();
        columns.extend(logs.map(|(name, value)| (name, width(name), number(value))));
        columns.extend([("examples/s", 10, rate), ("time", 9, time)]);
        let names = columns.iter().map(|(name, width, _)| (*name, *width));
        let values = columns
            .iter()
            .map(|(_, width, value)| (value.as_str(), *width));
        let header = line(names);
        let mut lines = Vec::new();
        if self.header != header {
            self.header.clone_from(&header);
            lines.push(header);
        }
        lines.push(line(values));
        lines
    }
}

fn line<'a>(cells: impl Iterator<Item = (&'a str, usize)>) -> String {
    let cells = cells.map(|(text, width)| format!("{text:>width$}"));
    cells.collect::<Vec<_>>().join("  ")
}

fn width(name: &str) -> usize {
    name.chars().count().max(9)
}

/// A number with four digits after the decimal point, or with an exponent if it is too small or too
/// large for that.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() || (1e-3..1e4).contains(&size) {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}

/// Short logs for one line.
pub(super) fn short(logs: &Logs) -> String {
    let parts = logs.iter();
    let parts = parts.map(|(name, value)| format!("{name} {}", number(value)));
    parts.collect::<Vec<_>>().join(" ")
}

fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 100.0 {
        format!("{seconds:.1} s")
    } else {
        let seconds = time.as_secs();
        format!("{}:{:02} min", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(epoch: usize, values: &[(&str, f64)], time: f64) -> EpochRecord {
        let logs = values
            .iter()
            .map(|(name, value)| ((*name).to_string(), *value));
        EpochRecord {
            epoch,
            complete: true,
            step: 10,
            learning_rate: 0.01,
            logs: logs.collect(),
            examples: 12_345,
            training_time: Duration::from_secs_f64(time),
            validation_time: Duration::from_millis(500),
        }
    }

    #[test]
    fn the_header_comes_once_and_numbers_stay_readable() {
        let mut table = Table::default();
        let first = [
            ("loss", std::f64::consts::LN_10),
            ("accuracy", 0.1),
            ("val_loss", 1.5e-7),
        ];
        let second = [
            ("loss", 123_456.7),
            ("accuracy", 0.25),
            ("val_loss", f64::NAN),
        ];
        let mut lines = table.lines(&record(0, &first, 1.5), 10);
        lines.extend(table.lines(&record(9, &second, 600.0), 10));
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn a_row_of_training_and_validation_fits_80_columns() {
        let names = ["loss", "accuracy", "val_loss", "val_accuracy"];
        for value in [9_999.0, 123_456.7, 1.5e-7, -0.5] {
            let mut table = Table::default();
            let record = record(999, &names.map(|name| (name, value)), 5_999.0);
            for line in table.lines(&record, 1_000) {
                assert!(line.len() <= 80, "{} columns: {line}", line.len());
            }
        }
    }

    #[test]
    fn other_columns_get_a_header_of_their_own() {
        let mut table = Table::default();
        let (few, more) = ([("loss", 1.0)], [("loss", 1.0), ("val_loss", 2.0)]);
        let mut lines = |values: &[(&str, f64)]| table.lines(&record(0, values, 1.0), 2).len();
        assert_eq!([lines(&few), lines(&few), lines(&more)], [2, 1, 2]);
    }
}
