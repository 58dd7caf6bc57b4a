//! `LayerNormalization`.

use burn::tensor::module::layer_norm;

use super::axes_norm::{Along, AxesNormWeights, axes, example_axes, weight_shape};
use super::*;

/// `keras.layers.LayerNormalization`, over the features of every place or over several axes.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNormalization {
    /// The axes that are normalized together, as Keras counts them: 0 is the batch, -1 the last
    /// one.
    pub axis: Vec<i64>,
    /// Whether values are divided by the root of their variance alone, by factors without shifts.
    pub rms_scaling: bool,
    /// Added to the variance.
    pub epsilon: f64,
    /// How the shifts start; `None` without `center`.
    pub beta: Option<Initializer>,
    /// How the factors start; `None` without `scale`.
    pub gamma: Option<Initializer>,
}

impl KerasLayer for LayerNormalization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let rms_scaling = fields.flag("rms_scaling", false)?;
        let (mut beta, mut gamma) = shift_and_factor(fields)?;
        if rms_scaling {
            gamma = gamma.or(Some(Initializer::ONES));
            beta = None;
        }
        Ok(Self {
            axis: axes(fields)?,
            rms_scaling,
            epsilon: epsilon(fields)?,
            beta,
            gamma,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        example_axes(input, &self.axis).map(|_| input)
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let shape = inputs.first().map(|input| weight_shape(*input, &self.axis));
        let shape = shape.unwrap_or_default();
        vec![
            weight("gamma", &shape, self.gamma),
            weight("beta", &shape, self.beta),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        if self.rms_scaling || self.axis != [-1] {
            return Some(BuiltLayer::AxesNorm(AxesNormWeights {
                gamma: weights.optional(self.gamma.is_some()),
                beta: weights.optional(self.beta.is_some()),
                along: Along {
                    axes: self.axis.clone(),
                    epsilon: self.epsilon,
                    centred: !self.rms_scaling,
                },
                normalizes: true,
            }));
        }
        Some(BuiltLayer::LayerNorm(LayerNormWeights {
            gamma: weights.or_constant(self.gamma.is_some(), 1.0),
            beta: weights.or_constant(self.beta.is_some(), 0.0),
            epsilon: self.epsilon,
        }))
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }
}

/// Factors and shifts.
#[derive(Module, Debug)]
pub(crate) struct LayerNormWeights {
    gamma: Param<Tensor<1>>,
    beta: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
}

impl Built for LayerNormWeights {
    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let dims = x.flow.keras_dims();
        let (gamma, beta) = (self.gamma.val(), Some(self.beta.val()));
        let rows = layer_norm(x.flow.into_rows(), gamma, beta, self.epsilon);
        Ok(Value {
            flow: Flow::like(&dims, rows),
            mask: x.mask,
        })
    }
}
