//! Layers of sequences, which are layers of images of one row.

use super::*;

/// A sequence as an image of one row.
pub(super) fn in_row(input: Shape) -> Result<Shape, String> {
    let (steps, features) = input.needs_sequence()?;
    Ok(Shape::Image(1, steps, features))
}

/// An image of one row as a sequence.
pub(super) fn of_row(image: Shape) -> Shape {
    match image {
        Shape::Image(_, steps, features) => Shape::Sequence(steps, features),
        other => other,
    }
}

/// Weights of a layer of images as weights of sequences, whose kernels have no axis of rows.
pub(super) fn without_rows(weights: Vec<Option<PlannedWeight>>) -> Vec<Option<PlannedWeight>> {
    let weights = weights.into_iter().map(|weight| {
        let mut weight = weight?;
        if weight.shape.len() == 4 {
            weight.shape.remove(0);
        }
        Some(weight)
    });
    weights.collect()
}

/// The way back of [`without_rows`].
pub(super) fn with_rows<'a>(weights: &mut Weights<'a>) -> Weights<'a> {
    let left = std::mem::take(&mut weights.left).map(|mut weight| {
        if weight.shape.len() == 3 {
            weight.shape.insert(0, 1);
        }
        weight
    });
    Weights {
        left: left.collect::<Vec<_>>().into_iter(),
        ..*weights
    }
}

/// Makes a layer of sequences of the layer of images in its field `row`; `$parse` reads it.
macro_rules! layer_of_rows {
    ($layer:ident, $parse:expr) => {
        impl KerasLayer for $layer {
            fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
                let row: Result<_, ModelError> = $parse(fields);
                row.map(|row| Self { row })
            }

            fn output_shape(&self, input: Shape) -> Result<Shape, String> {
                self.row.output_shape(row::in_row(input)?).map(row::of_row)
            }

            fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
                row::without_rows(self.row.weights(inputs))
            }

            fn old_name(&self, weight: &str) -> Option<&'static str> {
                self.row.old_name(weight)
            }

            fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
                self.row.build(&mut row::with_rows(weights))
            }

            fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
                self.row.call(x, pass)
            }

            fn activation(&self) -> Activation {
                self.row.activation()
            }

            fn changes_nothing(&self, input: Shape, inference: bool) -> bool {
                row::in_row(input).is_ok_and(|row| self.row.changes_nothing(row, inference))
            }

            fn set_regularizer(&mut self, regularizer: Option<Regularizer>) {
                self.row.set_regularizer(regularizer);
            }
        }
    };
}
pub(super) use layer_of_rows;
