//! `predict`: a CSV of classes and their probabilities.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::predictions::probabilities;
use super::restore::{Purpose, Restored, restored};
use crate::failure::Failure;
use crate::flags::PredictArgs;
use crate::output_file::{OutputFile, cannot_write, check_file};

pub(crate) fn run(args: PredictArgs) -> Result<(), Failure> {
    if let Some(path) = &args.predictions {
        check_file(path).map_err(|error| cannot_write(path, &error))?;
    }
    let restored = restored(&args.restore, &args.data, &args.devices, Purpose::Predict)?;
    let probabilities = probabilities(&restored)?;
    match &args.predictions {
        Some(path) => {
            let written = OutputFile::create(path).and_then(|mut file| {
                write(BufWriter::new(&mut file), &probabilities, &restored)?;
                file.finish()
            });
            written.map_err(|error| cannot_write(path, &error))
        }
        None => match write(
            BufWriter::new(io::stdout().lock()),
            &probabilities,
            &restored,
        ) {
            // The reader of the output has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result.map_err(|error| cannot_write(Path::new("standard output"), &error)),
        },
    }
}

/// One line per example; the index is its row in its file or set. If there are the examples of two
/// sets, the last column names the set; for images without classes it names the file.
fn write(out: impl Write, rows: &[(usize, f32)], restored: &Restored) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let names = &restored.task.class_names;
    let set = |name| restored.both.map(|_| name);
    let mut record = |fields: [&str; 3], set: Option<&str>, file: Option<&str>| {
        writer.write_record(fields.into_iter().chain(set).chain(file))
    };
    let file = restored.files.first().map(|_| "file");
    record(["index", "label", "probability"], set("set"), file).map_err(io_error)?;
    for (position, (class, probability)) in rows.iter().enumerate() {
        let label = names
            .get(*class)
            .cloned()
            .unwrap_or_else(|| class.to_string());
        let from = if restored.both.is_some_and(|train| position >= train) {
            "test"
        } else {
            "train"
        };
        let index = restored.rows[position].to_string();
        let fields = [&index, &label, &format!("{probability:.6}")[..]];
        let file = restored.files.get(position).map(String::as_str);
        record(fields, set(from), file).map_err(io_error)?;
    }
    writer.flush()
}

/// The operating system's error, whose kind may be a closed pipe.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}
