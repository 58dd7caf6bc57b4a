//! `PReLU`.

use super::nd::{Nd, each_rank};
use super::operation::{Binary, paired};
use super::*;

/// `keras.layers.PReLU`: `max(x, 0) - alpha * max(-x, 0)` with a trained alpha for every place.
#[derive(Debug, Clone, PartialEq)]
pub struct PRelu {
    /// How alpha starts.
    pub alpha_initializer: Initializer,
    /// The loss on alpha.
    pub alpha_regularizer: Option<Regularizer>,
    /// The axes along which alpha is the same, from 1 on.
    pub shared_axes: Vec<usize>,
}

impl KerasLayer for PRelu {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let shared = fields.get("shared_axes").map(|axes| match axes {
            Json::Array(axes) => axes.iter().map(size).collect(),
            axis => size(axis).map(|axis| vec![axis]),
        });
        let Some(shared_axes) = shared.unwrap_or_else(|| Some(Vec::new())) else {
            return Err(fields.refuse("shared_axes", "use numbers of axes from 1 on"));
        };
        Ok(Self {
            alpha_initializer: initializer(fields, "alpha_initializer", Initializer::ZEROS)?,
            alpha_regularizer: regularizer(fields, "alpha_regularizer")?,
            shared_axes,
        })
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let mut shape = inputs.first().map_or_else(Vec::new, |shape| shape.dims());
        for axis in &self.shared_axes {
            if let Some(extent) = shape.get_mut(axis - 1) {
                *extent = 1;
            }
        }
        vec![weight("alpha", &shape, self.alpha_initializer)]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let alpha = weights.next();
        let shape = alpha.shape.clone();
        let alpha = super::layout::row(alpha.values);
        Some(BuiltLayer::PRelu(PReluWeights {
            alpha: weights.trained(alpha),
            shape,
            regularizer: self.alpha_regularizer,
        }))
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }
}

/// One slope for every place, in Keras' order.
#[derive(Module, Debug)]
pub(crate) struct PReluWeights {
    alpha: Param<Tensor<1>>,
    #[module(skip)]
    shape: Vec<usize>,
    #[module(skip)]
    regularizer: Option<Regularizer>,
}

impl Built for PReluWeights {
    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let Value { flow, mask } = x;
        let x = Nd::of(flow);
        let alpha = Nd::R1(self.alpha.val())
            .reshape(&self.shape)
            .unsqueeze_to(x.dims().len());
        let above = each_rank!(x.clone(), x => burn::tensor::activation::relu(x));
        let below = each_rank!(x.clone(), x => burn::tensor::activation::relu(x.neg()));
        let changed = paired(Binary::Multiply, below, alpha)
            .and_then(|below| paired(Binary::Subtract, above, below));
        Ok(Value {
            flow: changed.unwrap_or(x).into_flow(),
            mask,
        })
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        vec![penalty(self.regularizer, &self.alpha)]
    }
}
