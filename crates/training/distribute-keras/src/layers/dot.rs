//! `Dot`.

use super::nd::Nd;
use super::operation::{Kind, Operation};
use super::*;

/// `keras.layers.Dot`: the products of two values, summed along an axis of each.
#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    /// The axis of each, as Keras counts them: 0 is the batch, -1 the last one.
    pub axes: [i64; 2],
    /// Whether the values are brought to length 1 along the axes before: the cosine.
    pub normalize: bool,
}

/// The least sum of squares of `normalize`.
const LEAST: f64 = 1e-12;

impl KerasLayer for Dot {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let axes = match fields.get("axes") {
            Some(Json::Array(axes)) => match axes.as_slice() {
                [one, other] => one.as_i64().zip(other.as_i64()),
                _ => None,
            },
            Some(axis) => axis.as_i64().map(|axis| (axis, axis)),
            None => None,
        };
        let Some((one, other)) = axes else {
            return Err(fields.refuse("axes", "use the number of an axis, or two"));
        };
        Ok(Self {
            axes: [one, other],
            normalize: fields.flag("normalize", false)?,
        })
    }

    fn output_shape_of_all(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let [left, right] = inputs else {
            return Err(format!("needs two values, gets {}", inputs.len()));
        };
        let axis = |shape: &Shape, axis: i64| {
            let found = shape.axis(axis);
            found.ok_or_else(|| format!("`axes` has {axis}, which is not an axis of {shape}"))
        };
        let (one, other) = (axis(left, self.axes[0])?, axis(right, self.axes[1])?);
        let (mut dims, mut others) = (left.dims(), right.dims());
        if dims[one] != others[other] {
            return Err(format!(
                "sums along axes of {} and {} places",
                dims[one], others[other]
            ));
        }
        dims.remove(one);
        others.remove(other);
        dims.extend(others);
        if dims.is_empty() {
            dims.push(1);
        }
        if dims.len() > 3 {
            return Err(format!(
                "gives {} axes, more than 3 are not supported",
                dims.len()
            ));
        }
        Shape::of(&dims).ok_or_else(|| "gives too many axes".to_string())
    }

    fn call_all(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let mut sides = inputs.into_iter().zip(self.axes).map(|(value, axis)| {
            let flow = if self.normalize {
                let operation = Operation {
                    class: "Normalize",
                    kind: Kind::Normalize {
                        axes: vec![axis],
                        epsilon: LEAST,
                    },
                    operands: vec![None],
                };
                operation.call_all(vec![value], pass)?.flow
            } else {
                value.flow
            };
            let x = Nd::of(flow);
            let rank = x.dims().len();
            let along = Shape::of(&x.dims()[1..])?.axis(axis)? + 1;
            let kept = (0..rank).filter(|axis| *axis != along);
            let order: Vec<usize> = kept.chain([along]).collect();
            let dims = x.permute(&order);
            let all = dims.dims();
            let (batch, summed) = (all[0], all[rank - 1]);
            let places = all[1..rank - 1].iter().product::<usize>();
            match dims.reshape(&[batch, places, summed]) {
                Nd::R3(x) => Some(x),
                _ => None,
            }
        });
        let (left, right) = (sides.next()??, sides.next()??);
        let product = Nd::R3(left.matmul(right.swap_dims(1, 2)));
        let dims = [vec![product.dims()[0]], pass.output.dims()].concat();
        Some(Value::of(product.reshape(&dims).into_flow()))
    }
}
