//! `UnitNormalization`.

use super::axes_norm::{axes, example_axes};
use super::operation::{Kind, Operation};
use super::*;

/// `keras.layers.UnitNormalization`: values along axes are divided by the root of the sum of their
/// squares.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitNormalization {
    /// The axes, as Keras counts them: 0 is the batch, -1 the last one.
    pub axis: Vec<i64>,
}

/// The least sum of squares.
const LEAST: f64 = 1e-24;

impl KerasLayer for UnitNormalization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        axes(fields).map(|axis| Self { axis })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        example_axes(input, &self.axis).map(|_| input)
    }

    fn call_all(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let mask = inputs.first().and_then(|x| x.mask.clone());
        let operation = Operation {
            class: "Normalize",
            kind: Kind::Normalize {
                axes: self.axis.clone(),
                epsilon: LEAST,
            },
            operands: vec![None],
        };
        let flow = operation.call_all(inputs, pass)?.flow;
        Some(Value { flow, mask })
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }
}
