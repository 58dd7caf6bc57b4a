//! The epochs' values in a file.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use distribute_core::Result;
use serde_json::Value;

use crate::{Callback, Control, EpochRecord, FitError, json_number};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    JsonLines,
    Csv,
}

/// Writes one row per epoch to a file: `epoch` (from 1), `step`, `learning_rate`, then the logs
/// (Keras: `CSVLogger`). Every row is handed to the operating system at once.
///
/// A new run replaces the file. A resumed one keeps the rows of the epochs before it, so that the
/// file ends up as that of a run that was never interrupted. Numbers are written with as many
/// digits as are needed to read the same number back; what is not finite is `NaN`, `Infinity` or
/// `-Infinity`, in JSON as a text ([`json_number`]).
#[derive(Debug)]
#[must_use]
pub struct HistoryFile {
    path: PathBuf,
    format: Format,
    timings: bool,
    file: Option<File>,
    columns: Option<Vec<String>>,
}

impl HistoryFile {
    /// One JSON object per line.
    pub fn json_lines(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            format: Format::JsonLines,
            timings: false,
            file: None,
            columns: None,
        }
    }

    /// Comma-separated values with a header.
    pub fn csv(path: impl Into<PathBuf>) -> Self {
        Self {
            format: Format::Csv,
            ..Self::json_lines(path)
        }
    }

    /// Also writes `training_seconds`, `validation_seconds` and `examples_per_second`. Off by
    /// default: without them two runs with the same seed write the same bytes.
    pub fn timings(mut self, timings: bool) -> Self {
        self.timings = timings;
        self
    }

    fn row(&self, record: &EpochRecord) -> Vec<(String, Value)> {
        let mut row = vec![
            ("epoch".to_string(), Value::from(record.epoch + 1)),
            ("step".to_string(), Value::from(record.step)),
            (
                "learning_rate".to_string(),
                json_number(record.learning_rate),
            ),
        ];
        let logs = record.logs.iter();
        row.extend(logs.map(|(name, value)| (name.to_string(), json_number(value))));
        if self.timings {
            let timings = [
                ("training_seconds", record.training_time.as_secs_f64()),
                ("validation_seconds", record.validation_time.as_secs_f64()),
                ("examples_per_second", record.examples_per_second()),
            ];
            row.extend(timings.map(|(name, value)| (name.to_string(), json_number(value))));
        }
        row
    }

    /// The text of a row, with the header where one is needed.
    fn text(&mut self, row: &[(String, Value)]) -> Result<String> {
        if self.format == Format::JsonLines {
            let fields: Vec<_> = row
                .iter()
                .map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())))
                .collect();
            return Ok(format!("{{{}}}\n", fields.join(",")));
        }
        let names: Vec<String> = row.iter().map(|(name, _)| name.clone()).collect();
        let values = row.iter().map(|(_, value)| match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        });
        let values = csv_line(values)?;
        match &self.columns {
            None => {
                let header = csv_line(names.iter().cloned())?;
                self.columns = Some(names);
                Ok(header + &values)
            }
            Some(columns) if *columns == names => Ok(values),
            Some(columns) => Err(FitError::Resume {
                what: format!(
                    "{} has the columns {}, this run has {}: write to another file",
                    self.path.display(),
                    columns.join(", "),
                    names.join(", ")
                ),
            }
            .into()),
        }
    }

    /// Keeps the rows of the first `epochs` epochs; later ones are run again.
    fn keep_rows(&mut self, epochs: usize) -> Result<String, FitError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(FitError::file(&self.path, "read", error)),
        };
        let mut lines = text.lines();
        let mut kept = String::new();
        if self.format == Format::Csv
            && let Some(header) = lines.next()
        {
            self.columns = Some(csv_fields(header)?);
            kept.push_str(header);
            kept.push('\n');
        }
        for line in lines {
            let epoch = match self.format {
                Format::JsonLines => serde_json::from_str::<Value>(line)
                    .ok()
                    .and_then(|row| row.get("epoch")?.as_u64()),
                Format::Csv => line.split(',').next().and_then(|epoch| epoch.parse().ok()),
            };
            // A last line that was cut off by a crash has no epoch, or is run again anyway.
            if epoch.is_some_and(|epoch| epoch <= epochs as u64) {
                kept.push_str(line);
                kept.push('\n');
            }
        }
        Ok(kept)
    }
}

impl Callback for HistoryFile {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.columns = None;
        let kept = match run.progress().position.epoch {
            0 => String::new(),
            epochs => self.keep_rows(epochs)?,
        };
        self.file = Some(replace(&self.path, &kept)?);
        Ok(())
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, _: &mut Control<'_>) -> Result<()> {
        let row = self.row(record);
        let text = self.text(&row)?;
        if let Some(file) = &mut self.file {
            // One write per row: a crash leaves whole rows.
            file.write_all(text.as_bytes())
                .map_err(|error| FitError::file(&self.path, "write", error))?;
        }
        Ok(())
    }
}

/// Writes a new file next to the old one and renames it: the old rows are never lost. Gives the
/// file out for appending.
fn replace(path: &Path, text: &str) -> Result<File, FitError> {
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        fs::create_dir_all(parent).map_err(|error| FitError::file(parent, "create", error))?;
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        // The error that matters is the first one.
        let _ = fs::remove_file(&temporary);
        FitError::file(path, "write", error)
    })?;
    OpenOptions::new()
        .append(true)
        .open(path)
        .map_err(|error| FitError::file(path, "open", error))
}

/// One line of CSV (RFC 4180).
fn csv_line(fields: impl Iterator<Item = String>) -> Result<String, FitError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let encode = |error: csv::Error| FitError::Csv {
        what: error.to_string(),
    };
    writer
        .write_record(fields.map(String::into_bytes))
        .map_err(encode)?;
    let bytes = writer.into_inner().map_err(|error| FitError::Csv {
        what: error.to_string(),
    })?;
    String::from_utf8(bytes).map_err(|error| FitError::Csv {
        what: error.to_string(),
    })
}

/// The fields of a line of CSV.
fn csv_fields(line: &str) -> Result<Vec<String>, FitError> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(line.as_bytes());
    let mut fields = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| FitError::Csv {
            what: error.to_string(),
        })?;
        fields.extend(record.iter().map(str::to_string));
    }
    Ok(fields)
}
