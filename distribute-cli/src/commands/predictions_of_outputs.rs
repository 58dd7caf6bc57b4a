//! The predictions of a model with several outputs, or with outputs of several axes: what Keras'
//! `predict` returns, as CSV, JSON or NumPy arrays.

use std::io::{self, Write};

use distribute_classifier::{Batch, OutputTask, Several};
use distribute_core::Tensor;
use distribute_fit::predict;
use distribute_keras::Mode;
use distribute_readers::{Array, Values, write_npz};
use serde_json::{Map, Value, json};

use super::predictions::{io_error, most_likely};
use super::restore::Restored;
use crate::failure::Failure;
use crate::flags::PredictionFormat;

/// What the model returns for every example: one row of all outputs, one behind the other.
pub(super) struct OutputsTable<'a> {
    restored: &'a Restored,
    outputs: &'a [OutputTask],
    values: Vec<f32>,
    /// The numbers of a row.
    width: usize,
    /// The probabilities of all classes are wanted.
    all: bool,
}

impl<'a> OutputsTable<'a> {
    pub(super) fn of(
        restored: &'a Restored,
        several: &'a Several,
        all: bool,
    ) -> Result<Self, Failure> {
        let outputs = several.outputs();
        let width = outputs.iter().map(OutputTask::elements).sum();
        let forward = |_: &distribute_fit::StepContext<'_>,
                       model: &distribute_keras::Model,
                       ((input, _), _): Batch| {
            if input.dims()[0] == 0 {
                return Ok(Tensor::<2>::zeros([0, width], &input.device()));
            }
            let inputs = model.split_inputs(input)?;
            Ok(Tensor::cat(
                model.forward_all(inputs, &mut Mode::Inference)?,
                1,
            ))
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
        Ok(Self {
            restored,
            outputs,
            values,
            width,
            all,
        })
    }

    pub(super) fn write(&self, format: PredictionFormat, out: &mut dyn Write) -> io::Result<()> {
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

    /// Each output with its numbers of an example.
    fn parts<'b>(&'b self, row: &'b [f32]) -> impl Iterator<Item = (&'b OutputTask, &'b [f32])> {
        let mut first = 0;
        self.outputs.iter().map(move |output| {
            first += output.elements();
            (output, &row[first - output.elements()..first])
        })
    }

    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }

    /// The set of an example, if there are two.
    fn set(&self, position: usize) -> Option<&'static str> {
        let is_test = self.restored.both.map(|train| position >= train);
        is_test.map(|is_test| if is_test { "test" } else { "train" })
    }

    /// One line per example; the columns of an output begin with its name.
    fn write_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut writer = csv::Writer::from_writer(out);
        let mut head = vec!["index".to_string()];
        for output in self.outputs {
            head.extend(self.columns(output));
        }
        head.extend(self.restored.both.map(|_| "set".to_string()));
        writer.write_record(&head).map_err(io_error)?;
        for (position, row) in self.rows().enumerate() {
            let mut fields = vec![self.restored.rows[position].to_string()];
            for (output, values) in self.parts(row) {
                if !output.is_class() {
                    fields.extend(values.iter().map(ToString::to_string));
                    continue;
                }
                for place in values.chunks_exact(output.features()) {
                    let (class, probability) = most_likely(place);
                    fields.extend([class.to_string(), format!("{probability:.6}")]);
                }
                let all = values.iter().filter(|_| self.all);
                fields.extend(all.map(|probability| format!("{probability:.6}")));
            }
            fields.extend(self.set(position).map(String::from));
            writer.write_record(&fields).map_err(io_error)?;
        }
        writer.flush()
    }

    /// The names of the columns of an output: of a class its number and its probability, at each
    /// place.
    fn columns(&self, output: &OutputTask) -> Vec<String> {
        let name = &output.name;
        let numbered = |what: &str, count: usize| -> Vec<String> {
            let number = |number| match count {
                1 => format!("{name}{what}"),
                _ => format!("{name}{what}_{number}"),
            };
            (0..count).map(number).collect()
        };
        let elements = output.elements();
        if !output.is_class() {
            return numbered("", elements);
        }
        let places = elements / output.features().max(1);
        let labels = numbered("", places).into_iter();
        let pairs = labels.zip(numbered("_probability", places));
        let mut all: Vec<String> = pairs.flat_map(|(label, it)| [label, it]).collect();
        if self.all {
            all.extend((0..elements).map(|number| format!("{name}_probabilities_{number}")));
        }
        all
    }

    /// One object per line and example, with an entry for each output.
    fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        for (position, row) in self.rows().enumerate() {
            let mut outputs = Map::new();
            for (output, values) in self.parts(row) {
                let entry = if output.is_class() {
                    let places = values.chunks_exact(output.features());
                    let (labels, probabilities): (Vec<usize>, Vec<f32>) =
                        places.map(most_likely).unzip();
                    let shape = &output.shape[..output.shape.len().saturating_sub(1)];
                    json!({
                        "label": nested(&labels, shape),
                        "probability": nested(&probabilities, shape),
                        "probabilities": nested(values, &output.shape),
                    })
                } else {
                    json!({ "values": nested(values, &output.shape) })
                };
                outputs.insert(output.name.clone(), entry);
            }
            let mut object = Map::new();
            object.insert("index".to_string(), json!(self.restored.rows[position]));
            object.insert("outputs".to_string(), Value::Object(outputs));
            object.extend(
                self.set(position)
                    .map(|set| ("set".to_string(), json!(set))),
            );
            writeln!(out, "{}", Value::Object(object))?;
        }
        out.flush()
    }

    /// `index`, and an array for each output, as Keras' `predict` returns it.
    fn arrays(&self) -> Result<Vec<u8>, distribute_readers::ReadError> {
        let rows = &self.restored.rows;
        let index = rows.iter().map(|row| *row as i64).collect();
        let index = Array::new(vec![rows.len()], Values::I64(index))?;
        let mut arrays = Vec::new();
        let mut first = 0;
        for output in self.outputs {
            let width = output.elements();
            let own = self.rows().flat_map(|row| &row[first..first + width]);
            let shape = [&[rows.len()], output.shape.as_slice()].concat();
            arrays.push(Array::new(shape, Values::F32(own.copied().collect()))?);
            first += width;
        }
        let names = self.outputs.iter().map(|output| output.name.as_str());
        let mut all = vec![("index", &index)];
        all.extend(names.zip(&arrays));
        write_npz(&all)
    }
}

/// Values as lists in lists of this shape.
fn nested<T: serde::Serialize>(values: &[T], shape: &[usize]) -> Value {
    match shape {
        [] => values.first().map_or(Value::Null, |value| json!(value)),
        [_] => json!(values),
        [_, inner @ ..] => {
            let width = inner.iter().product::<usize>().max(1);
            let parts = values.chunks(width).map(|part| nested(part, inner));
            Value::Array(parts.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_shape_of_their_output() {
        assert_eq!(nested(&[1], &[]), json!(1));
        assert_eq!(nested(&[1, 2, 3, 4], &[2, 2]), json!([[1, 2], [3, 4]]));
        let deep = nested(&[1, 2, 3, 4], &[2, 1, 2]);
        assert_eq!(deep, json!([[[1, 2]], [[3, 4]]]));
    }
}
