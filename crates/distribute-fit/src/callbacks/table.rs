//! The table of epochs that people read.

use std::time::Duration;

use crate::{EpochRecord, Logs};

const EPOCH_WIDTH: usize = 9;
const MIN_WIDTH: usize = 10;

/// Formats one line per epoch under a header; the first epoch decides about the columns.
#[derive(Debug, Default)]
pub(super) struct Table {
    columns: Vec<String>,
}

impl Table {
    /// The lines to print for an epoch: the header comes with the first one, and again when the
    /// columns change.
    pub(super) fn lines(&mut self, record: &EpochRecord, epochs: usize) -> Vec<String> {
        let names = record.logs.iter().map(|(name, _)| name.to_string());
        let columns: Vec<String> = names.collect();
        let mut lines = Vec::new();
        if self.columns != columns {
            self.columns = columns;
            lines.push(self.header());
        }
        lines.push(self.row(record, epochs));
        lines
    }

    fn header(&self) -> String {
        let mut line = format!("{:>EPOCH_WIDTH$}", "epoch");
        for name in &self.columns {
            line += &format!("  {name:>width$}", width = width(name));
        }
        line + &format!("  {:>12}  {:>8}", "examples/s", "time")
    }

    fn row(&self, record: &EpochRecord, epochs: usize) -> String {
        let epoch = format!("{}/{epochs}", record.epoch + 1);
        let mut line = format!("{epoch:>EPOCH_WIDTH$}");
        for (name, value) in record.logs.iter() {
            line += &format!("  {:>width$}", number(value), width = width(name));
        }
        let rate = match record.examples_per_second() {
            rate if rate.is_finite() => format!("{rate:.0}"),
            _ => "-".to_string(),
        };
        let time = duration(record.training_time + record.validation_time);
        line + &format!("  {rate:>12}  {time:>8}")
    }
}

fn width(name: &str) -> usize {
    name.chars().count().max(MIN_WIDTH)
}

/// Four digits behind the point, or an exponent where they would not show the value.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() || (1e-3..1e5).contains(&size) {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}

/// Short logs for one line.
pub(super) fn short(logs: &Logs) -> String {
    let parts = logs.iter();
    let parts = parts.map(|(name, value)| format!("{name} {}", number(value)));
    parts.collect::<Vec<_>>().join("  ")
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
}
