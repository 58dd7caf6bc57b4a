//! `GlobalAveragePooling1D`.

use super::global_average_pooling_2d::keepdims;
use super::*;

/// `keras.layers.GlobalAveragePooling1D`: the mean over the sequence, without its padding.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalAveragePooling1D {
    /// Whether the result is a sequence of one step.
    pub keepdims: bool,
}

impl KerasLayer for GlobalAveragePooling1D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        keepdims(fields).map(|keepdims| Self { keepdims })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        pooled_steps(input, self.keepdims)
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        match x.flow {
            Flow::Sequence(steps) => {
                let mean = masked_mean(steps, x.mask);
                Value::of(if self.keepdims {
                    Flow::Sequence(mean.unsqueeze_dim(1))
                } else {
                    Flow::Flat(mean)
                })
            }
            // A plan never puts it on another shape.
            _ => x,
        }
    }
}

/// The shape of one step.
pub(super) fn pooled_steps(input: Shape, keepdims: bool) -> Result<Shape, String> {
    let (_, features) = input.needs_sequence()?;
    Ok(if keepdims {
        Shape::Sequence(1, features)
    } else {
        Shape::Flat(features)
    })
}

/// The mean over the steps that are not padding. A text of padding alone has the mean 0.
fn masked_mean(x: Tensor<3>, mask: Option<Tensor<2>>) -> Tensor<2> {
    let [batch, _, features] = x.dims();
    let Some(mask) = mask else {
        return x.mean_dim(1).reshape([batch, features]);
    };
    let count = mask.clone().sum_dim(1).clamp_min(1.0);
    let sum = (x * mask.unsqueeze_dim::<3>(2)).sum_dim(1);
    sum.reshape([batch, features]) / count
}
