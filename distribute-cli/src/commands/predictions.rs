//! The predictions of a restored model, for `predict` and for the report of `evaluate`.

use std::io;

use distribute_classifier::{Batch, TargetsName};
use distribute_core::Tensor;
use distribute_fit::predict;
use distribute_keras::Mode;

use super::restore::Restored;
use crate::failure::Failure;

/// What the model says of every example, in the order of the data: one row of `outputs` numbers per
/// example, the probabilities of a classifier or the values that it returns.
#[derive(Debug)]
pub(super) struct Predictions {
    pub(super) outputs: usize,
    pub(super) values: Vec<f32>,
}

impl Predictions {
    pub(super) fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.outputs.max(1))
    }
}

pub(super) fn predictions(restored: &Restored) -> Result<Predictions, Failure> {
    let outputs = restored.task.plan.output().elements();
    let of_classes = restored.task.targets != TargetsName::Values;
    let forward = |_: &distribute_fit::StepContext<'_>,
                   model: &distribute_keras::Model,
                   ((input, _), _): Batch| {
        if input.dims()[0] == 0 {
            return Ok(Tensor::<2>::zeros([0, outputs], &input.device()));
        }
        if of_classes {
            let logits = model.logits(input, &mut Mode::Inference)?;
            Ok(model.probabilities(logits))
        } else {
            model.forward(input, &mut Mode::Inference)
        }
    };
    let rows = predict(
        &*restored.strategy,
        &restored.state,
        &restored.data,
        forward,
    )?;
    let values = rows
        .into_data()
        .try_into_vec::<f32>()
        .map_err(|error| Failure::failed(format!("unreadable output: {error}")))?;
    Ok(Predictions { outputs, values })
}

/// The most likely class of every example and its probability, in the order of the data.
pub(super) fn probabilities(restored: &Restored) -> Result<Vec<(usize, f32)>, Failure> {
    Ok(predictions(restored)?.rows().map(most_likely).collect())
}

/// A single output is the probability of class 1, which is predicted above 0.5, as in Keras'
/// `BinaryAccuracy`.
pub(super) fn most_likely(row: &[f32]) -> (usize, f32) {
    match row {
        [yes] if *yes > 0.5 => (1, *yes),
        [yes] => (0, 1.0 - yes),
        _ => {
            let larger = |a: (usize, f32), b: (usize, f32)| if b.1 > a.1 { b } else { a };
            let pairs = row.iter().copied().enumerate();
            pairs.reduce(larger).unwrap_or((0, f32::NAN))
        }
    }
}

/// The operating system's error, whose kind may be a closed pipe.
pub(super) fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::most_likely;

    #[test]
    fn the_first_of_equal_classes_is_taken_and_a_half_is_no() {
        assert_eq!(most_likely(&[0.5]), (0, 0.5));
        assert_eq!(most_likely(&[0.75]), (1, 0.75));
        assert_eq!(most_likely(&[0.2, 0.4, 0.4]), (1, 0.4));
    }
}
