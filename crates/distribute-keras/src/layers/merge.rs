//! Several values become one.

use burn::tensor::Tensor;

use super::flow::{Flow, Value};
use crate::plan::tensor_axis;
use crate::{Merge, Shape};

/// What the values become, examples of the shape `output`, and the mask that all of them have.
pub(super) fn merge(merge: Merge, output: Shape, inputs: Vec<Value>) -> Option<Value> {
    let axis = match merge {
        Merge::Concatenate { axis } => tensor_axis(output, axis),
        _ => 0,
    };
    let mut inputs = inputs.into_iter();
    let Value { flow: first, mask } = inputs.next()?;
    let others = inputs.map(|value| value.flow);
    let flow = match first {
        Flow::Flat(x) => {
            let others = others.filter_map(|x| match x {
                Flow::Flat(x) => Some(x),
                _ => None,
            });
            Flow::Flat(merged(merge, axis, x, others))
        }
        Flow::Sequence(x) => {
            let others = others.filter_map(|x| match x {
                Flow::Sequence(x) => Some(x),
                _ => None,
            });
            Flow::Sequence(merged(merge, axis, x, others))
        }
        Flow::Image(x) => {
            let others = others.filter_map(|x| match x {
                Flow::Image(x) => Some(x),
                _ => None,
            });
            Flow::Image(merged(merge, axis, x, others))
        }
    };
    Some(Value { flow, mask })
}

/// The values in their order, from the first to the last.
fn merged<const D: usize>(
    merge: Merge,
    axis: usize,
    first: Tensor<D>,
    others: impl Iterator<Item = Tensor<D>>,
) -> Tensor<D> {
    match merge {
        Merge::Add => others.fold(first, |sum, x| sum + x),
        Merge::Subtract => others.fold(first, |rest, x| rest - x),
        Merge::Multiply => others.fold(first, |product, x| product * x),
        Merge::Average => {
            let mut count = 1;
            let sum = others.fold(first, |sum, x| {
                count += 1;
                sum + x
            });
            sum.div_scalar(count)
        }
        Merge::Maximum => others.fold(first, |most, x| {
            let (most, x) = alike(most, x);
            most.max_pair(x)
        }),
        Merge::Minimum => others.fold(first, |least, x| {
            let (least, x) = alike(least, x);
            least.min_pair(x)
        }),
        Merge::Concatenate { .. } => {
            Tensor::cat(std::iter::once(first).chain(others).collect(), axis)
        }
    }
}

/// Both in the shape that holds both: burn compares equal shapes only.
fn alike<const D: usize>(x: Tensor<D>, y: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
    let (dims, others) = (x.dims(), y.dims());
    let both = std::array::from_fn::<usize, D, _>(|i| dims[i].max(others[i]));
    let expand = |x: Tensor<D>| match x.dims() == both {
        true => x,
        false => x.expand(both),
    };
    (expand(x), expand(y))
}
