//! `Normalization`.

use super::*;

/// `keras.layers.Normalization`: `(x - mean) / sqrt(variance)` per feature.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalization {
    /// The axis of the features, as Keras counts them. It must be the last one.
    pub axis: i64,
    /// Mean and variance; without them they are weights, which `adapt` computed.
    pub statistics: Option<(Vec<f64>, Vec<f64>)>,
}

impl KerasLayer for Normalization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        fields.must_be("invert", false, "set it to false")?;
        let mean = optional_numbers(fields, "mean")?;
        let variance = optional_numbers(fields, "variance")?;
        let statistics = match (mean, variance) {
            (None, None) => None,
            (Some(mean), Some(variance)) => Some((mean, variance)),
            (Some(_), None) => return Err(fields.refuse("mean", "give the variance too")),
            (None, Some(_)) => return Err(fields.refuse("variance", "give the mean too")),
        };
        Ok(Self {
            axis: axis(fields)?,
            statistics,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        input.needs_last(self.axis)?;
        if let Some((mean, variance)) = &self.statistics {
            input.needs_per_feature("mean", mean)?;
            input.needs_per_feature("variance", variance)?;
        }
        Ok(input)
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let shape = [features(inputs)];
        match self.statistics {
            Some(_) => Vec::new(),
            None => vec![
                fixed("mean", &shape, Initializer::ZEROS),
                fixed("variance", &shape, Initializer::ONES),
                fixed("count", &[], Initializer::ZEROS),
            ],
        }
    }

    fn builds_late(&self) -> bool {
        true
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let (mean, variance) = match &self.statistics {
            Some((mean, variance)) => (weights.constants(mean), weights.constants(variance)),
            // The third weight counts what `adapt` has seen.
            None => {
                let (mean, variance) = (weights.next(), weights.next());
                (weights.fixed(mean), weights.fixed(variance))
            }
        };
        Some(BuiltLayer::Normalization(NormalizationWeights {
            mean,
            variance,
        }))
    }
}

/// `(x - mean) / max(sqrt(variance), 1e-7)`. Neither is trained.
#[derive(Module, Debug)]
pub(crate) struct NormalizationWeights {
    mean: Param<Tensor<1>>,
    variance: Param<Tensor<1>>,
}

/// The smallest standard deviation (Keras: `backend.epsilon()`).
const SMALLEST_DEVIATION: f64 = 1e-7;

impl Built for NormalizationWeights {
    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let deviation = self.variance.val().sqrt().clamp_min(SMALLEST_DEVIATION);
        let offset = self.mean.val().neg() / deviation.clone();
        Ok(Value::of(x.flow.scale_features(deviation.recip(), offset)))
    }
}
