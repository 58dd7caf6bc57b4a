//! The epochs' values in a file.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use distribute_core::{Error, Result};
use serde::Serializer;
use serde_json::Value;

use crate::side_output::{self, SideOutput};
use crate::{Callback, Control, EpochRecord, FitError, WholeFile, json_number};

/// Writes one row per epoch to a file: `epoch` (from 1), `step`, `learning_rate`, then the logs
/// (Keras: `CSVLogger`). Every row is handed to the operating system at once.
///
/// A new run replaces the file. A resumed run keeps the rows of the epochs before its checkpoint,
/// so that the file becomes the same as that of a run that was never interrupted. Numbers are
/// written with as many digits as are needed to read the same number back; numbers that are not
/// finite are `NaN`, `Infinity` or `-Infinity`, in JSON as a text ([`json_number`]).
///
/// An error while training goes on never ends the training: a file that can no longer be written,
/// or that has the columns of other logs, is left as it is, with a warning. A new run whose file
/// cannot be created is refused.
#[derive(Debug)]
#[must_use]
pub struct HistoryFile {
    path: PathBuf,
    is_csv: bool,
    file: SideOutput<File>,
    columns: Option<Vec<String>>,
}

impl HistoryFile {
    /// One JSON object per line.
    pub fn json_lines(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            is_csv: false,
            file: SideOutput::none(),
            columns: None,
        }
    }

    /// Comma-separated values with a header.
    pub fn csv(path: impl Into<PathBuf>) -> Self {
        Self {
            is_csv: true,
            ..Self::json_lines(path)
        }
    }

    fn row(record: &EpochRecord) -> Vec<(&str, Value)> {
        let mut row = vec![
            ("epoch", Value::from(record.epoch + 1)),
            ("step", Value::from(record.step)),
            ("learning_rate", json_number(record.learning_rate)),
        ];
        let logs = record.logs.iter();
        row.extend(logs.map(|(name, value)| (name, json_number(value))));
        row
    }

    /// The text of a row, with the header where one is needed.
    fn text(&mut self, row: &[(&str, Value)]) -> Result<Vec<u8>> {
        if !self.is_csv {
            let mut line = serde_json::Serializer::new(Vec::new());
            let fields = row.iter().map(|(name, value)| (name, value));
            line.collect_map(fields).map_err(Error::internal)?;
            let mut line = line.into_inner();
            line.push(b'\n');
            return Ok(line);
        }
        let names: Vec<String> = row.iter().map(|(name, _)| (*name).to_string()).collect();
        let mut lines = csv::Writer::from_writer(Vec::new());
        match &self.columns {
            Some(columns) if *columns == names => {}
            Some(columns) => {
                let (theirs, ours) = (columns.join(", "), names.join(", "));
                let path = self.path.display();
                let what = format!("{path} has the columns {theirs}, this run has {ours}");
                return Err(FitError::csv(what).into());
            }
            None => {
                lines.write_record(&names).map_err(FitError::csv)?;
                self.columns = Some(names);
            }
        }
        let values = row.iter().map(|(_, value)| match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        });
        lines.write_record(values).map_err(FitError::csv)?;
        Ok(lines.into_inner().map_err(FitError::csv)?)
    }

    /// Keeps the rows of the first `epochs` epochs; later ones are run again.
    fn keep_rows(&mut self, epochs: usize) -> Result<String, FitError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(FitError::file(&self.path, "read")(error)),
        };
        let mut lines = text.lines().peekable();
        let mut kept = String::new();
        if let Some(header) = lines.next_if(|_| self.is_csv) {
            let mut reader = csv::Reader::from_reader(header.as_bytes());
            let fields = reader.headers().map_err(FitError::csv)?;
            self.columns = Some(fields.iter().map(str::to_string).collect());
            kept.extend([header, "\n"]);
        }
        for line in lines {
            let epoch = if self.is_csv {
                line.split(',').next().and_then(|epoch| epoch.parse().ok())
            } else {
                let row: Option<Value> = serde_json::from_str(line).ok();
                row.and_then(|row| row.get("epoch")?.as_u64())
            };
            // A last line that was cut off by a crash has no epoch, or is of one that is run again.
            if epoch.is_some_and(|epoch| epoch <= epochs as u64) {
                kept.extend([line, "\n"]);
            }
        }
        Ok(kept)
    }
}

impl Callback for HistoryFile {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.columns = None;
        let progress = run.progress();
        let kept = match progress.position.epoch {
            0 => Ok(String::new()),
            epochs => self.keep_rows(epochs),
        };
        let file = kept.and_then(|kept| replace(&self.path, &kept));
        self.file = side_output::opened(file.map_err(Error::from), progress.step > 0)?;
        Ok(())
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, _: &mut Control<'_>) -> Result<()> {
        if !self.file.is_open() {
            return Ok(());
        }
        let text = self.text(&Self::row(record));
        self.file.write(|file| {
            let before = file.metadata().map(|metadata| metadata.len());
            // One write per row: a crash leaves whole rows.
            let written = file.write_all(&text?);
            written.map_err(|error| {
                // Takes back a part of a row. The error of the write is reported, not one of this.
                let _ = before.and_then(|before| file.set_len(before));
                Error::from(FitError::file(&self.path, "write")(error))
            })
        });
        Ok(())
    }
}

/// Writes a new file next to the old one and renames it, so that the old rows are never lost. Opens
/// the file for appending.
fn replace(path: &Path, text: &str) -> Result<File, FitError> {
    let parent = path.parent().unwrap_or(path);
    if !parent.as_os_str().is_empty() {
        fs::create_dir_all(parent).map_err(FitError::file(parent, "create"))?;
    }
    let written = WholeFile::create(path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.finish()
    });
    written.map_err(FitError::file(path, "write"))?;
    let file = File::options().append(true).open(path);
    file.map_err(FitError::file(path, "open"))
}
