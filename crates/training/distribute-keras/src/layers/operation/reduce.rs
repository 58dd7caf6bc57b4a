//! Many values become one: sums, means, largest values.

use burn::tensor::Tensor;

use crate::layers::nd::Nd;

/// What values along axes become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    Std,
    Var,
    LogSumExp,
    /// The sum of the absolute values.
    Norm1,
    /// The root of the sum of the squares.
    Norm2,
    Any,
    All,
}

/// Reduces the axes of a tensor, which leaves the others in their order.
pub(super) fn reduce(x: Nd, axes: &[usize], by: Reduction) -> Tensor<1> {
    let rank = x.dims().len();
    let kept = (0..rank).filter(|axis| !axes.contains(axis));
    let order: Vec<usize> = kept.chain(axes.iter().copied()).collect();
    let rows = x.permute(&order).into_matrix(axes.len());
    let count = rows.dims()[0];
    by.of_rows(rows).reshape([count])
}

impl Reduction {
    /// One value for every row.
    fn of_rows(self, x: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Sum => x.sum_dim(1),
            Self::Mean => x.mean_dim(1),
            Self::Max => largest(x),
            Self::Min => largest(x.neg()).neg(),
            Self::Prod => x.prod_dim(1),
            Self::Var => variance(x),
            Self::Std => variance(x).sqrt(),
            Self::LogSumExp => {
                let most = x.clone().detach().max_dim(1);
                (x - most.clone()).exp().sum_dim(1).log() + most
            }
            Self::Norm1 => x.abs().sum_dim(1),
            Self::Norm2 => (x.clone() * x).sum_dim(1).sqrt(),
            Self::Any => nonzero(x).max_dim(1),
            Self::All => nonzero(x).min_dim(1),
        }
    }
}

fn nonzero(x: Tensor<2>) -> Tensor<2> {
    let dtype = x.dtype();
    x.not_equal_elem(0.0).float().cast(dtype)
}

fn variance(x: Tensor<2>) -> Tensor<2> {
    let centred = x.clone() - x.mean_dim(1);
    (centred.clone() * centred).mean_dim(1)
}

/// The largest value; where several are, they share the gradient, as in TensorFlow.
fn largest(x: Tensor<2>) -> Tensor<2> {
    let most = x.clone().detach().max_dim(1);
    let dtype = x.dtype();
    let is_most = x.clone().detach().equal(most.clone().expand(x.dims()));
    let is_most = is_most.float().cast(dtype);
    let share = is_most.clone() / is_most.sum_dim(1);
    // The sum is 0 and has the gradient.
    let above = x.clone() - most.clone();
    let above = above.clone().mask_fill(share.clone().equal_elem(0.0), 0.0);
    (above * share).sum_dim(1) + most
}
