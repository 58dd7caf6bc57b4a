//! `CategoryEncoding`.

use super::operation::{Kind, Operation};
use super::*;

/// `keras.layers.CategoryEncoding`: numbers of classes become rows of 0 and 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CategoryEncoding {
    /// The number of classes.
    pub num_tokens: usize,
    /// Which rows.
    pub mode: OutputMode,
}

/// What a class becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// A row for every number (`one_hot`).
    OneHot,
    /// One row for all numbers of an example, with 1 for those that are there (`multi_hot`).
    MultiHot,
    /// One row for all numbers of an example, with how often each is there (`count`).
    Count,
}

impl KerasLayer for CategoryEncoding {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        fields.must_be("sparse", false, "set it to false")?;
        let mode = match fields.get("output_mode").map(Json::as_str) {
            None | Some(Some("multi_hot" | "binary")) => OutputMode::MultiHot,
            Some(Some("one_hot")) => OutputMode::OneHot,
            Some(Some("count")) => OutputMode::Count,
            Some(_) => {
                return Err(fields.refuse("output_mode", "use one_hot, multi_hot or count"));
            }
        };
        Ok(Self {
            num_tokens: count(fields, "num_tokens")?,
            mode,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let dims = input.dims();
        let kept = match (self.mode, dims.as_slice()) {
            // A last axis of one number becomes the row.
            (OutputMode::OneHot, [outer @ .., 1]) => outer,
            (OutputMode::OneHot, all) => all,
            (_, [outer @ .., _]) => outer,
            (_, []) => &[],
        };
        let dims = [kept, &[self.num_tokens]].concat();
        Shape::of(&dims).ok_or_else(|| format!("gives too many axes of {input}"))
    }

    fn reads_numbers(&self) -> bool {
        true
    }

    fn call_all(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let x = inputs.into_iter().next()?;
        let batch = x.flow.keras_dims()[0];
        let rows = super::nd::Nd::of(x.flow);
        let count = rows.dims().iter().skip(1).product();
        let super::nd::Nd::R2(numbers) = rows.reshape(&[batch, count]) else {
            return None;
        };
        let operation = Operation {
            class: "OneHot",
            kind: Kind::OneHot(self.num_tokens),
            operands: vec![None],
        };
        let mut inner = Pass {
            output: Shape::Sequence(count, self.num_tokens),
            mode: &mut *pass.mode,
            states: Vec::new(),
            ..*pass
        };
        let found = operation.call_all(vec![Value::of(Flow::Flat(numbers))], &mut inner)?;
        let Flow::Sequence(found) = found.flow else {
            return None;
        };
        let dims = [vec![batch], pass.output.dims()].concat();
        let all = match self.mode {
            OutputMode::OneHot => super::nd::Nd::R3(found),
            mode => {
                let wide: usize = dims[1..].iter().product::<usize>() / self.num_tokens;
                let each = found.reshape([batch * wide, count / wide.max(1), self.num_tokens]);
                let sum = each.sum_dim(1);
                super::nd::Nd::R3(if mode == OutputMode::MultiHot {
                    sum.clamp_max(1.0)
                } else {
                    sum
                })
            }
        };
        Some(Value::of(all.reshape(&dims).into_flow()))
    }
}
