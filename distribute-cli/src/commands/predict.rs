//! `predict`: a CSV of classes and their probabilities.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use distribute_core::Tensor;
use distribute_data::fit::predict;
use distribute_keras::Mode;

use super::output_file::OutputFile;
use super::restore::{Restored, restored};
use crate::failure::Failure;
use crate::flags::PredictArgs;

pub(crate) fn run(args: PredictArgs) -> Result<(), Failure> {
    let restored = restored(&args.restore, &args.data, &args.devices)?;
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
            // Whoever read the output has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result.map_err(|error| cannot_write(Path::new("standard output"), &error)),
        },
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!(
        "cannot write {} ({error}); choose a writable path with free space",
        path.display()
    ))
}

/// The most likely class of every example and its probability, in the order of the data.
fn probabilities(restored: &Restored) -> Result<Vec<(usize, f32)>, Failure> {
    let outputs = restored.task.plan.output().elements();
    let forward = |_: &distribute_data::fit::StepContext<'_>,
                   model: &distribute_keras::Model,
                   ((input, _), _): crate::data::Batch| {
        if input.dims()[0] == 0 {
            return Ok(Tensor::<2>::zeros([0, outputs], &input.device()));
        }
        let logits = model.logits(input, &mut Mode::Inference);
        Ok(model.probabilities(logits))
    };
    let rows = predict(
        &*restored.strategy,
        &restored.state,
        &restored.data,
        forward,
    )?;
    let values = rows.into_data().try_into_vec::<f32>();
    let values = values.map_err(|error| Failure::failed(format!("unreadable output: {error}")))?;
    Ok(values.chunks_exact(outputs).map(most_likely).collect())
}

/// One output is the probability of class 1.
fn most_likely(row: &[f32]) -> (usize, f32) {
    match row {
        [yes] if *yes < 0.5 => (0, 1.0 - yes),
        [yes] => (1, *yes),
        _ => {
            let larger = |a: (usize, f32), b: (usize, f32)| if b.1 > a.1 { b } else { a };
            let pairs = row.iter().copied().enumerate();
            pairs.reduce(larger).unwrap_or((0, f32::NAN))
        }
    }
}

/// One line per example; the index is its row in the file or set that it is from. Where the
/// examples of two sets follow each other, a last column says which.
fn write(out: impl Write, rows: &[(usize, f32)], restored: &Restored) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let names = &restored.task.class_names;
    let set = |name| restored.both.map(|_| name);
    let mut record =
        |fields: [&str; 3], set: Option<&str>| writer.write_record(fields.into_iter().chain(set));
    record(["index", "label", "probability"], set("set")).map_err(io_error)?;
    for (position, (class, probability)) in rows.iter().enumerate() {
        let label = names
            .get(*class)
            .cloned()
            .unwrap_or_else(|| class.to_string());
        let from = match restored.both.is_some_and(|train| position >= train) {
            true => "test",
            false => "train",
        };
        let index = restored.rows[position].to_string();
        let fields = [&index, &label, &format!("{probability:.6}")[..]];
        record(fields, set(from)).map_err(io_error)?;
    }
    writer.flush()
}

/// The operating system's error, whose kind says that nobody reads any more.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}
