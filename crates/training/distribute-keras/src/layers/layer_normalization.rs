//! `LayerNormalization`.

use burn::tensor::module::layer_norm;

use super::*;

/// `keras.layers.LayerNormalization`, over the features of every place.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNormalization {
    /// The axis that is normalized, as Keras counts them. It must be the last one.
    pub axis: i64,
    /// Added to the variance.
    pub epsilon: f64,
    /// How the shifts start; `None` without `center`.
    pub beta: Option<Initializer>,
    /// How the factors start; `None` without `scale`.
    pub gamma: Option<Initializer>,
}

impl KerasLayer for LayerNormalization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        fields.must_be("rms_scaling", false, "set it to false")?;
        let (beta, gamma) = shift_and_factor(fields)?;
        Ok(Self {
            axis: axis(fields)?,
            epsilon: epsilon(fields)?,
            beta,
            gamma,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        input.needs_last(self.axis).map(|()| input)
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let shape = [features(inputs)];
        vec![
            weight("gamma", &shape, self.gamma),
            weight("beta", &shape, self.beta),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
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
