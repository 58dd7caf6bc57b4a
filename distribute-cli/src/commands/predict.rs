//! `predict`: a CSV of classes and their probabilities.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use distribute_cli::model::{Head, Mode};
use distribute_core::Tensor;
use distribute_core::fit::predict;

use super::restore::{Restored, restored};
use crate::args::PredictArgs;
use crate::failure::Failure;

pub(crate) fn run(args: PredictArgs) -> Result<(), Failure> {
    let restored = restored(&args.restore, &args.data, &args.devices)?;
    let probabilities = probabilities(&restored)?;
    let names = &restored.task.class_names;
    match &args.predictions {
        Some(path) => {
            let file = File::create(path).map_err(|error| cannot_write(path, &error))?;
            write(BufWriter::new(file), &probabilities, names)
                .map_err(|error| cannot_write(path, &error))
        }
        None => match write(BufWriter::new(io::stdout().lock()), &probabilities, names) {
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
    let forward = |_: &distribute_core::fit::StepContext<'_>,
                   model: &distribute_cli::model::Sequential,
                   ((input, _), _): crate::data::Batch| {
        if input.dims()[0] == 0 {
            return Ok(Tensor::<2>::zeros([0, outputs], &input.device()));
        }
        let logits = model.logits(input, &mut Mode::Inference);
        Ok(match (model.head(), outputs) {
            (Head::Sigmoid, _) | (_, 1) => burn::tensor::activation::sigmoid(logits),
            _ => burn::tensor::activation::softmax(logits, 1),
        })
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

fn write(out: impl Write, rows: &[(usize, f32)], names: &[String]) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(["index", "label", "probability"])?;
    for (index, (class, probability)) in rows.iter().enumerate() {
        let label = names
            .get(*class)
            .cloned()
            .unwrap_or_else(|| class.to_string());
        writer.write_record([index.to_string(), label, format!("{probability:.6}")])?;
    }
    writer.flush()
}
