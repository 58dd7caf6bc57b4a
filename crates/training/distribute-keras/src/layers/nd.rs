//! Values with any number of axes.

use burn::tensor::{Device, Tensor};

/// Values of a batch with Keras' axes in their order: the batch first, features last.
#[derive(Debug, Clone)]
pub(crate) enum Nd {
    R1(Tensor<1>),
    R2(Tensor<2>),
    R3(Tensor<3>),
    R4(Tensor<4>),
    R5(Tensor<5>),
    R6(Tensor<6>),
    R7(Tensor<7>),
}

/// Applies an expression to the tensor of whatever rank.
macro_rules! with_rank {
    ($nd:expr, $x:ident => $y:expr) => {
        match $nd {
            $crate::layers::nd::Nd::R1($x) => $y,
            $crate::layers::nd::Nd::R2($x) => $y,
            $crate::layers::nd::Nd::R3($x) => $y,
            $crate::layers::nd::Nd::R4($x) => $y,
            $crate::layers::nd::Nd::R5($x) => $y,
            $crate::layers::nd::Nd::R6($x) => $y,
            $crate::layers::nd::Nd::R7($x) => $y,
        }
    };
}

/// Applies an expression that keeps the rank.
macro_rules! each_rank {
    ($nd:expr, $x:ident => $y:expr) => {
        match $nd {
            $crate::layers::nd::Nd::R1($x) => $crate::layers::nd::Nd::R1($y),
            $crate::layers::nd::Nd::R2($x) => $crate::layers::nd::Nd::R2($y),
            $crate::layers::nd::Nd::R3($x) => $crate::layers::nd::Nd::R3($y),
            $crate::layers::nd::Nd::R4($x) => $crate::layers::nd::Nd::R4($y),
            $crate::layers::nd::Nd::R5($x) => $crate::layers::nd::Nd::R5($y),
            $crate::layers::nd::Nd::R6($x) => $crate::layers::nd::Nd::R6($y),
            $crate::layers::nd::Nd::R7($x) => $crate::layers::nd::Nd::R7($y),
        }
    };
}
pub(crate) use {each_rank, with_rank};

impl Nd {
    pub(crate) fn dims(&self) -> Vec<usize> {
        with_rank!(self, x => x.dims().to_vec())
    }

    pub(crate) fn device(&self) -> Device {
        with_rank!(self, x => x.device())
    }

    /// The extent of the last axis; of numbers alone it is 1.
    pub(crate) fn features(&self) -> usize {
        match self {
            Self::R1(_) => 1,
            other => other.dims().last().copied().unwrap_or(1),
        }
    }

    /// The same values in the same order, with other axes: 1 to 7 of them, which a plan sees to.
    pub(crate) fn reshape(self, dims: &[usize]) -> Self {
        with_rank!(self, x => match *dims {
            [a, b] => Self::R2(x.reshape([a, b])),
            [a, b, c] => Self::R3(x.reshape([a, b, c])),
            [a, b, c, d] => Self::R4(x.reshape([a, b, c, d])),
            [a, b, c, d, e] => Self::R5(x.reshape([a, b, c, d, e])),
            [a, b, c, d, e, f] => Self::R6(x.reshape([a, b, c, d, e, f])),
            [a, b, c, d, e, f, g] => Self::R7(x.reshape([a, b, c, d, e, f, g])),
            _ => Self::R1(x.reshape([dims.iter().product::<usize>()])),
        })
    }

    /// With the axes in this order, of which there are as many as the tensor has.
    pub(crate) fn permute(self, axes: &[usize]) -> Self {
        if axes.iter().copied().eq(0..axes.len()) {
            return self;
        }
        each_rank!(self, x => x.permute(array(axes)))
    }

    /// The matrix of the last axes, of which there are `columns`, for every other place.
    pub(crate) fn into_matrix(self, columns: usize) -> Tensor<2> {
        let dims = self.dims();
        let (rows, columns) = dims.split_at(dims.len().saturating_sub(columns));
        let (rows, columns): (usize, usize) = (rows.iter().product(), columns.iter().product());
        with_rank!(self, x => x.reshape::<2, _>([rows, columns]))
    }

    /// With axes of extent 1 in front, so that there are `rank`.
    pub(crate) fn unsqueeze_to(self, rank: usize) -> Self {
        let dims = self.dims();
        if dims.len() >= rank {
            return self;
        }
        let ones = vec![1; rank - dims.len()];
        self.reshape(&[ones, dims].concat())
    }
}

/// Numbers of a list, as many as an array has; a plan gives as many.
pub(super) fn array<const D: usize>(numbers: &[usize]) -> [usize; D] {
    std::array::from_fn(|index| numbers.get(index).copied().unwrap_or(index))
}
