//! `Permute`.

use super::nd::Nd;
use super::*;

/// `keras.layers.Permute`: the axes in another order.
#[derive(Debug, Clone, PartialEq)]
pub struct Permute {
    /// Which axis of the input each axis is, counted from 1: the batch is 0, and stays.
    pub dims: Vec<usize>,
}

impl KerasLayer for Permute {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let list = fields.get("dims").and_then(Json::as_array);
        let dims: Option<Vec<usize>> = list.and_then(|list| list.iter().map(size).collect());
        let all = |dims: &Vec<usize>| (1..=dims.len()).all(|axis| dims.contains(&axis));
        match dims.filter(all) {
            Some(dims) => Ok(Self { dims }),
            None => Err(fields.refuse("dims", "use every axis from 1 on once")),
        }
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let dims = input.dims();
        if self.dims.len() != dims.len() {
            return Err(format!(
                "`dims` has {} axes, and {input} has {}",
                self.dims.len(),
                dims.len()
            ));
        }
        let permuted = self.dims.iter().map(|axis| dims[axis - 1]);
        Shape::of(&permuted.collect::<Vec<_>>()).ok_or_else(|| "has too many axes".to_string())
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        let x = Nd::of(x.flow);
        // A plan gives as many axes as there are.
        let axes: Vec<usize> = std::iter::once(0)
            .chain(self.dims.iter().copied())
            .collect();
        Value::of(x.permute(&axes).into_flow())
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        self.dims.iter().copied().eq(1..=self.dims.len())
    }
}
