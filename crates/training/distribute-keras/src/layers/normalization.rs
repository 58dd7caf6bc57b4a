//! `Normalization`.

use super::layout::row;
use super::*;

/// `keras.layers.Normalization`: `(x - mean) / sqrt(variance)` per feature.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalization {
    /// The axis of the features, as Keras counts them. It must be the last one; nothing for one
    /// mean and variance for all values.
    pub axis: Option<i64>,
    /// Whether it is the way back: `x * sqrt(variance) + mean`.
    pub invert: bool,
    /// Mean and variance; without them they are weights, which `adapt` computed.
    pub statistics: Option<(Vec<f64>, Vec<f64>)>,
}

impl KerasLayer for Normalization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let mean = optional_numbers(fields, "mean")?;
        let variance = optional_numbers(fields, "variance")?;
        let statistics = match (mean, variance) {
            (None, None) => None,
            (Some(mean), Some(variance)) => Some((mean, variance)),
            (Some(_), None) => return Err(fields.refuse("mean", "give the variance too")),
            (None, Some(_)) => return Err(fields.refuse("variance", "give the mean too")),
        };
        let axis = match fields.get("axis") {
            Some(Json::Array(axes)) if axes.is_empty() => None,
            _ => Some(axis(fields)?),
        };
        Ok(Self {
            axis,
            invert: fields.flag("invert", false)?,
            statistics,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        if let Some(axis) = self.axis {
            input.needs_last(axis)?;
        }
        if let Some((mean, variance)) = &self.statistics {
            input.needs_per_feature("mean", mean)?;
            input.needs_per_feature("variance", variance)?;
        }
        Ok(input)
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let features = [features(inputs)];
        let shape = if self.axis.is_some() {
            &features[..]
        } else {
            &[]
        };
        match self.statistics {
            Some(_) => Vec::new(),
            None => vec![
                fixed("mean", shape, Initializer::ZEROS),
                fixed("variance", shape, Initializer::ONES),
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
                let in_row = |weight: crate::Weight| weights.fixed(row(weight.values));
                (in_row(mean), in_row(variance))
            }
        };
        Some(BuiltLayer::Normalization(NormalizationWeights {
            mean,
            variance,
            invert: self.invert,
        }))
    }
}

/// `(x - mean) / max(sqrt(variance), 1e-7)`. Neither is trained.
#[derive(Module, Debug)]
pub(crate) struct NormalizationWeights {
    mean: Param<Tensor<1>>,
    variance: Param<Tensor<1>>,
    #[module(skip)]
    invert: bool,
}

/// The smallest standard deviation (Keras: `backend.epsilon()`).
const SMALLEST_DEVIATION: f64 = 1e-7;

impl Built for NormalizationWeights {
    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let deviation = self.variance.val().sqrt().clamp_min(SMALLEST_DEVIATION);
        if self.invert {
            return Ok(Value::of(x.flow.scale_features(deviation, self.mean.val())));
        }
        let offset = self.mean.val().neg() / deviation.clone();
        Ok(Value::of(x.flow.scale_features(deviation.recip(), offset)))
    }
}
