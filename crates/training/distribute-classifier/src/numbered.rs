//! Numbers in place of texts.

use distribute_readers::{Array, Examples, Features, Labels, ReadError, Values};

/// The examples with these numbers in place of their texts.
pub(crate) fn with_numbers(examples: &Examples, numbers: Array) -> Result<Examples, ReadError> {
    let all: Vec<usize> = (0..examples.len()).collect();
    let numbers = Features::Numbers(numbers);
    if !examples.is_labelled() {
        return Examples::new(examples.name(), numbers, Labels::Absent(all.len()));
    }
    let encoded = match examples.classes() {
        Some(classes) => {
            let labels = Labels::Classes(examples.labels_i64(&all)?);
            let encoded = Examples::new(examples.name(), numbers, labels)?;
            encoded.with_classes(classes)?
        }
        None => {
            let shape = [&[all.len()], examples.label_shape()].concat();
            let values = Array::new(shape, Values::F32(examples.labels_f32(&all)?))?;
            Examples::new(examples.name(), numbers, Labels::Numbers(values))?
        }
    };
    if examples.is_weighted() {
        return encoded.with_weights(examples.weights_f32(&all)?);
    }
    Ok(encoded)
}
