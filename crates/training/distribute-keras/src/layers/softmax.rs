//! `Softmax`.

use super::operation::{Kind, Operation};
use super::*;

/// `keras.layers.Softmax` over one axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Softmax {
    /// The axis, as Keras counts them: 0 is the batch, -1 the last one.
    pub axis: i64,
}

impl KerasLayer for Softmax {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        axis(fields).map(|axis| Self { axis })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        match input.axis(self.axis) {
            Some(_) => Ok(input),
            None => Err(format!("`axis` = {} is not an axis of {input}", self.axis)),
        }
    }

    fn call_all(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let mask = inputs.first().and_then(|x| x.mask.clone());
        let operation = Operation {
            class: "Softmax",
            kind: Kind::Softmax {
                axis: self.axis,
                log: false,
            },
            operands: vec![None],
        };
        let flow = operation.call_all(inputs, pass)?.flow;
        Some(Value { flow, mask })
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }

    fn activation(&self) -> Activation {
        if self.axis == -1 {
            Activation::Softmax
        } else {
            Activation::Linear
        }
    }

    fn treats_features_alike(&self) -> bool {
        self.axis == -1
    }
}
