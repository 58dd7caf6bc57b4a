//! What several normalizations have in common: the values along axes are brought to one scale.

use super::nd::{Nd, each_rank};
use super::*;

/// Along which axes of a value, and how.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Along {
    /// Axes as Keras counts them: 0 is the batch.
    pub(super) axes: Vec<i64>,
    pub(super) epsilon: f64,
    /// Whether the mean is taken away; else values are divided by their root mean square.
    pub(super) centred: bool,
}

/// The axes of one example, in order, or why they are none.
pub(super) fn example_axes(shape: Shape, axes: &[i64]) -> Result<Vec<usize>, String> {
    let each = axes.iter().map(|axis| {
        shape.axis(*axis).ok_or_else(|| {
            format!("`axis` = {axis} is not an axis of {shape}, or the one of the batch")
        })
    });
    let mut axes = each.collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

/// The shape of a weight that has a value for every place along the axes, in the order in which the
/// file lists them. Keras 3 sorts the numbers of the axes, so that -1 stands before 1, and reads
/// the values as if they stood in the order of the axes of the input.
pub(super) fn weight_shape(shape: Shape, axes: &[i64]) -> Vec<usize> {
    let dims = shape.dims();
    let mut listed: Vec<usize> = Vec::with_capacity(axes.len());
    for axis in axes {
        let found = example_axes(shape, &[*axis]).unwrap_or_default();
        let new = found.first().filter(|axis| !listed.contains(axis));
        listed.extend(new.copied());
    }
    listed.iter().map(|axis| dims[*axis]).collect()
}

/// The option `axis`: one, or a list.
pub(super) fn axes(fields: &mut Fields<'_>) -> Result<Vec<i64>, ModelError> {
    let axes = match fields.get("axis") {
        None => Some(vec![-1]),
        Some(Json::Array(axes)) => axes.iter().map(Json::as_i64).collect(),
        Some(axis) => axis.as_i64().map(|axis| vec![axis]),
    };
    let axes = axes.filter(|axes| !axes.is_empty());
    axes.ok_or_else(|| fields.refuse("axis", "use the number of an axis, or a list of numbers"))
}

impl Along {
    /// The values of `x` on one scale.
    pub(super) fn normalized(&self, x: Nd) -> Nd {
        let axes = self.positions(&x);
        each_rank!(x, x => {
            let mean = |x: Tensor<_>| axes.iter().fold(x, |x, axis| x.mean_dim(*axis));
            let x = if self.centred { x.clone() - mean(x) } else { x };
            let variance = mean(x.clone() * x.clone());
            x * variance.add_scalar(self.epsilon).sqrt().recip()
        })
    }

    fn positions(&self, x: &Nd) -> Vec<usize> {
        let dims = x.dims();
        let shape = Shape::of(&dims[1..]);
        let axes = shape.and_then(|shape| example_axes(shape, &self.axes).ok());
        axes.unwrap_or_default()
            .into_iter()
            .map(|axis| axis + 1)
            .collect()
    }

    /// A weight of the shape of the axes, for every value of `x`.
    pub(super) fn spread(&self, weight: Tensor<1>, x: &Nd) -> Nd {
        let dims = x.dims();
        let axes = self.positions(x);
        let kept = |(axis, extent): (usize, &usize)| if axes.contains(&axis) { *extent } else { 1 };
        let dims: Vec<usize> = dims.iter().enumerate().map(kept).collect();
        Nd::R1(weight).reshape(&dims)
    }
}

/// Combines values of as many axes.
pub(super) fn combined(x: Nd, y: Nd, by: super::operation::Binary) -> Option<Nd> {
    super::operation::paired(by, x, y)
}

/// Factors and shifts along axes, behind a normalization or alone.
#[derive(Module, Debug)]
pub(crate) struct AxesNormWeights {
    pub(super) gamma: Option<Param<Tensor<1>>>,
    pub(super) beta: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(super) along: Along,
    /// Whether the values are normalized before.
    #[module(skip)]
    pub(super) normalizes: bool,
}

impl Built for AxesNormWeights {
    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let Value { flow, mask } = x;
        let mut x = Nd::of(flow);
        if self.normalizes {
            x = self.along.normalized(x);
        }
        use super::operation::Binary;
        for (weight, by) in [(&self.gamma, Binary::Multiply), (&self.beta, Binary::Add)] {
            let Some(weight) = weight else { continue };
            let weight = self.along.spread(weight.val(), &x);
            // Both have as many axes.
            x = combined(x.clone(), weight, by).unwrap_or(x);
        }
        Ok(Value {
            flow: x.into_flow(),
            mask,
        })
    }
}
