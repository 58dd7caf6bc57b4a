//! `RMSNormalization`.

use super::axes_norm::{Along, AxesNormWeights, axes, example_axes, weight_shape};
use super::*;

/// `keras.layers.RMSNormalization`: `x / sqrt(mean(x^2) + epsilon) * scale` along axes.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNormalization {
    /// The axes, as Keras counts them: 0 is the batch, -1 the last one.
    pub axis: Vec<i64>,
    /// Added to the mean of the squares.
    pub epsilon: f64,
}

impl KerasLayer for RmsNormalization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let epsilon = fields.factor("epsilon", 1e-6)?;
        Ok(Self {
            axis: axes(fields)?,
            epsilon,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let axes = example_axes(input, &self.axis)?;
        // Keras lays the factors along the last axes.
        let rank = input.dims().len();
        if axes.iter().copied().eq(rank - axes.len()..rank) {
            Ok(input)
        } else {
            Err(format!(
                "`axis` = {:?} are not the last ones of {input}",
                self.axis
            ))
        }
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let shape = inputs.first().map(|input| weight_shape(*input, &self.axis));
        vec![weight(
            "scale",
            &shape.unwrap_or_default(),
            Initializer::ONES,
        )]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        Some(BuiltLayer::AxesNorm(AxesNormWeights {
            gamma: weights.optional(true),
            beta: None,
            along: Along {
                axes: self.axis.clone(),
                epsilon: self.epsilon,
                centred: false,
            },
            normalizes: true,
        }))
    }
}
