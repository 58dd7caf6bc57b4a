//! `GlobalAveragePooling1D`.

use super::*;

/// `keras.layers.GlobalAveragePooling1D`: the mean over the sequence, without its padding.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalAveragePooling1D;

impl KerasLayer for GlobalAveragePooling1D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        fields.must_be("keepdims", false, "add Flatten in place of it")?;
        Ok(Self)
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        match input {
            Shape::Sequence(_, features) => Ok(Shape::Flat(features)),
            _ => Err(format!("needs a sequence (steps, features), gets {input}")),
        }
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        match x.flow {
            Flow::Sequence(steps) => Value::of(Flow::Flat(masked_mean(steps, x.mask))),
            // A plan never puts it on another shape.
            _ => x,
        }
    }
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
