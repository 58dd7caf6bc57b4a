//! `LayerScale` of ConvNeXt.

use super::axes_norm::{Along, AxesNormWeights};
use super::*;

/// The layer `LayerScale` of ConvNeXt in `keras.applications`: a factor for every feature.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerScale {
    /// What the factors start with.
    pub init_values: f64,
    /// The number of features.
    pub projection_dim: usize,
}

impl KerasLayer for LayerScale {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            init_values: fields.number("init_values", 1e-6)?,
            projection_dim: count(fields, "projection_dim")?,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        if input.features() == self.projection_dim {
            Ok(input)
        } else {
            Err(format!("has {} factors, gets {input}", self.projection_dim))
        }
    }

    fn weights(&self, _: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let start = Initializer::Constant(self.init_values);
        vec![weight("gamma", &[self.projection_dim], start)]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        Some(BuiltLayer::AxesNorm(AxesNormWeights {
            gamma: weights.optional(true),
            beta: None,
            along: Along {
                axes: vec![-1],
                epsilon: 0.0,
                centred: false,
            },
            normalizes: false,
        }))
    }
}
