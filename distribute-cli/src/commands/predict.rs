//! `predict`: classes and their probabilities, or values, as CSV, JSON or NumPy arrays.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use distribute_classifier::TargetsName;
use distribute_readers::{Array, Values, write_npz};
use serde_json::{Map, Value, json};

use super::predictions::{Predictions, io_error, most_likely, predictions};
use super::predictions_of_outputs::OutputsTable;
use super::restore::{Purpose, Restored, restored};
use crate::failure::Failure;
use crate::flags::{PredictArgs, PredictionFormat};
use crate::output_file::{OutputFile, cannot_write, check_file};

pub(crate) fn run(args: PredictArgs) -> Result<(), Failure> {
    if args.output == PredictionFormat::Npz && args.predictions.is_none() {
        return Err(Failure::usage(
            "--output npz is no text; name the file: --predictions FILE.npz",
        ));
    }
    if let Some(path) = &args.predictions {
        check_file(path).map_err(|error| cannot_write(path, &error))?;
    }
    let restored = restored(&args.restore, &args.data, &args.devices, Purpose::Predict)?;
    if let Some(several) = &restored.task.several {
        let table = OutputsTable::of(&restored, several, args.probabilities)?;
        return written(&args, |out| table.write(args.output, out));
    }
    let table = Table {
        found: predictions(&restored)?,
        restored: &restored,
        all: args.probabilities,
    };
    written(&args, |out| table.write(args.output, out))
}

/// Writes the predictions into their file, or on standard output.
fn written(
    args: &PredictArgs,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    match &args.predictions {
        Some(path) => {
            let written = OutputFile::create(path).and_then(|mut file| {
                write(&mut BufWriter::new(&mut file))?;
                file.finish()
            });
            written.map_err(|error| cannot_write(path, &error))
        }
        None => match write(&mut BufWriter::new(io::stdout().lock())) {
            // The reader of the output has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result.map_err(|error| cannot_write(Path::new("standard output"), &error)),
        },
    }
}

/// The predictions and what belongs to each example.
struct Table<'a> {
    found: Predictions,
    restored: &'a Restored,
    /// The probabilities of all classes are wanted.
    all: bool,
}

impl Table<'_> {
    fn write(&self, format: PredictionFormat, mut out: impl Write) -> io::Result<()> {
        match format {
            PredictionFormat::Csv => self.write_csv(out),
            PredictionFormat::Json => self.write_json(out),
            PredictionFormat::Npz => {
                let bytes = self.arrays().map_err(io::Error::other)?;
                out.write_all(&bytes)?;
                out.flush()
            }
        }
    }

    fn is_of_values(&self) -> bool {
        self.restored.task.targets == TargetsName::Values
    }

    /// The name of a class.
    fn class(&self, class: usize) -> String {
        let name = self.restored.task.class_names.get(class);
        name.cloned().unwrap_or_else(|| class.to_string())
    }

    /// The names of the targets: of columns of a table, or none.
    fn target(&self, output: usize) -> String {
        let label = self
            .restored
            .task
            .inputs
            .as_ref()
            .and_then(|inputs| inputs.label());
        let mut names = label.into_iter().flat_map(|label| label.split(','));
        let is_one_each = names.clone().count() == self.found.outputs;
        let name = names.nth(output).filter(|_| is_one_each);
        name.map_or_else(|| format!("value_{output}"), |name| name.trim().to_string())
    }

    /// The probabilities of all classes; of one output of both.
    fn of_classes(row: &[f32]) -> Vec<f32> {
        match row {
            [yes] => vec![1.0 - yes, *yes],
            row => row.to_vec(),
        }
    }

    /// The set of an example, if there are those of two, and its file, for images without classes.
    fn places(&self, position: usize) -> (Option<&'static str>, Option<&str>) {
        let set = self
            .restored
            .both
            .map(|train| if position >= train { "test" } else { "train" });
        (set, self.restored.files.get(position).map(String::as_str))
    }

    /// One line per example; the index is its row in its file or set. If there are the examples of
    /// two sets, a column names the set; for images without classes one names the file.
    fn write_csv(&self, out: impl Write) -> io::Result<()> {
        let mut writer = csv::Writer::from_writer(out);
        let outputs = self.found.outputs;
        let mut head = vec!["index".to_string()];
        if self.is_of_values() {
            head.extend((0..outputs).map(|output| self.target(output)));
        } else {
            head.extend(["label", "probability"].map(String::from));
        }
        head.extend(self.restored.both.map(|_| "set".to_string()));
        head.extend(self.restored.files.first().map(|_| "file".to_string()));
        let is_wide = self.all && !self.is_of_values();
        if is_wide {
            let classes = if outputs == 1 { 2 } else { outputs };
            head.extend((0..classes).map(|class| format!("probability_{}", self.class(class))));
        }
        writer.write_record(&head).map_err(io_error)?;
        for (position, row) in self.found.rows().enumerate() {
            let mut fields = vec![self.restored.rows[position].to_string()];
            if self.is_of_values() {
                fields.extend(row.iter().map(ToString::to_string));
            } else {
                let (class, probability) = most_likely(row);
                fields.extend([self.class(class), format!("{probability:.6}")]);
            }
            let (set, file) = self.places(position);
            fields.extend(set.into_iter().chain(file).map(String::from));
            if is_wide {
                let all = Self::of_classes(row).into_iter();
                fields.extend(all.map(|probability| format!("{probability:.6}")));
            }
            writer.write_record(&fields).map_err(io_error)?;
        }
        writer.flush()
    }

    /// One object per line and example.
    fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        for (position, row) in self.found.rows().enumerate() {
            let mut object = Map::new();
            object.insert("index".to_string(), json!(self.restored.rows[position]));
            if self.is_of_values() {
                let values = (0..row.len()).map(|output| (self.target(output), json!(row[output])));
                object.insert("values".to_string(), Value::Object(values.collect()));
            } else {
                let (class, probability) = most_likely(row);
                object.insert("label".to_string(), json!(self.class(class)));
                object.insert("probability".to_string(), json!(probability));
                let all = Self::of_classes(row).into_iter().enumerate();
                let all = all.map(|(class, probability)| (self.class(class), json!(probability)));
                object.insert("probabilities".to_string(), Value::Object(all.collect()));
            }
            let (set, file) = self.places(position);
            object.extend(set.map(|set| ("set".to_string(), json!(set))));
            object.extend(file.map(|file| ("file".to_string(), json!(file))));
            writeln!(out, "{}", Value::Object(object))?;
        }
        out.flush()
    }

    /// `index`, and `label` with `probabilities`, or `values`.
    fn arrays(&self) -> Result<Vec<u8>, distribute_readers::ReadError> {
        let rows = &self.restored.rows;
        let index = rows.iter().map(|row| *row as i64).collect();
        let index = Array::new(vec![rows.len()], Values::I64(index))?;
        if self.is_of_values() {
            let shape = vec![rows.len(), self.found.outputs];
            let values = Array::new(shape, Values::F32(self.found.values.clone()))?;
            return write_npz(&[("index", &index), ("values", &values)]);
        }
        let labels = self.found.rows().map(|row| most_likely(row).0 as i64);
        let labels = Array::new(vec![rows.len()], Values::I64(labels.collect()))?;
        let all: Vec<f32> = self.found.rows().flat_map(Self::of_classes).collect();
        let shape = vec![rows.len(), all.len() / rows.len().max(1)];
        let all = Array::new(shape, Values::F32(all))?;
        write_npz(&[
            ("index", &index),
            ("label", &labels),
            ("probabilities", &all),
        ])
    }
}
