//! `GroupNormalization`.

use super::axes_norm::{Along, combined};
use super::nd::Nd;
use super::operation::Binary;
use super::*;

/// `keras.layers.GroupNormalization`: every group of channels of an example has mean 0 and
/// variance 1 (Wu and He, 2018).
#[derive(Debug, Clone, PartialEq)]
pub struct GroupNormalization {
    /// The number of groups; `None` for one for every channel (-1 in Keras).
    pub groups: Option<usize>,
    /// The axis of the channels, as Keras counts them: 0 is the batch, -1 the last one.
    pub axis: i64,
    /// Added to the variance.
    pub epsilon: f64,
    /// How the shifts start; `None` without `center`.
    pub beta: Option<Initializer>,
    /// How the factors start; `None` without `scale`.
    pub gamma: Option<Initializer>,
}

impl KerasLayer for GroupNormalization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let (beta, gamma) = shift_and_factor(fields)?;
        let groups = match fields.get("groups").and_then(Json::as_i64) {
            None => Some(32),
            Some(-1) => None,
            Some(_) => Some(count(fields, "groups")?),
        };
        Ok(Self {
            groups,
            axis: axis(fields)?,
            epsilon: epsilon(fields)?,
            beta,
            gamma,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let Some(axis) = input.axis(self.axis) else {
            return Err(format!("`axis` = {} is not an axis of {input}", self.axis));
        };
        let channels = input.dims()[axis];
        match self.groups {
            Some(groups) if !channels.is_multiple_of(groups) => Err(format!(
                "{channels} channels cannot be split into {groups} groups"
            )),
            _ => Ok(input),
        }
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let channels = inputs.first().and_then(|input| {
            let axis = input.axis(self.axis)?;
            input.dims().get(axis).copied()
        });
        let shape = [channels.unwrap_or(1)];
        vec![
            weight("gamma", &shape, self.gamma),
            weight("beta", &shape, self.beta),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        Some(BuiltLayer::GroupNorm(GroupNormWeights {
            gamma: weights.optional(self.gamma.is_some()),
            beta: weights.optional(self.beta.is_some()),
            groups: self.groups,
            axis: self.axis,
            epsilon: self.epsilon,
        }))
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }
}

/// Factors and shifts, one per channel.
#[derive(Module, Debug)]
pub(crate) struct GroupNormWeights {
    gamma: Option<Param<Tensor<1>>>,
    beta: Option<Param<Tensor<1>>>,
    #[module(skip)]
    groups: Option<usize>,
    #[module(skip)]
    axis: i64,
    #[module(skip)]
    epsilon: f64,
}

impl Built for GroupNormWeights {
    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let Value { flow, mask } = x;
        let x = Nd::of(flow);
        let rank = x.dims().len();
        let axis = Shape::of(&x.dims()[1..]).and_then(|shape| shape.axis(self.axis));
        // The plan has found the axis.
        let axis = axis.unwrap_or(0) + 1;
        let mut order: Vec<usize> = (0..rank).filter(|other| *other != axis).collect();
        order.push(axis);
        let x = x.permute(&order);
        let dims = x.dims();
        let (batch, channels) = (dims[0], dims[rank - 1]);
        let groups = self.groups.unwrap_or(channels);
        let places: usize = dims[1..rank - 1].iter().product();
        // [batch, places, groups, channels of one]
        let grouped = x.reshape(&[batch, places, groups, channels / groups.max(1)]);
        let along = Along {
            axes: vec![1, 3],
            epsilon: self.epsilon,
            centred: true,
        };
        let mut x = along.normalized(grouped).reshape(&dims);
        for (weight, by) in [(&self.gamma, Binary::Multiply), (&self.beta, Binary::Add)] {
            let Some(weight) = weight else { continue };
            let weight = Nd::R1(weight.val()).unsqueeze_to(rank);
            x = combined(x.clone(), weight, by).unwrap_or(x);
        }
        let back = (0..rank).map(|to| order.iter().position(|from| *from == to).unwrap_or(to));
        let back: Vec<usize> = back.collect();
        Ok(Value {
            flow: x.permute(&back).into_flow(),
            mask,
        })
    }
}
