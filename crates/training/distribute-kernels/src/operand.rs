//! Which tensors these kernels take: f32 on burn's CPU backend, with autodiff or without.

use burn::tensor::{DType, Shape, Tensor};
use burn_autodiff::Autodiff;
use burn_autodiff::ops::NodeGuard;
use burn_backend::AutodiffBackend;
use burn_backend::tensor::FloatTensor;
use burn_flex::{Flex, FlexTensor};

/// A tensor that a kernel takes.
pub(crate) enum Operand {
    Plain(FlexTensor),
    /// On the graph of a backward pass that keeps what it needs. (burn can also compute it again;
    /// its own operation is the one for that.)
    Tracked(FloatTensor<Autodiff<Flex>>),
}

impl Operand {
    /// `None` where burn's own operation is to be used.
    pub(crate) fn of<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        if tensor.dtype() != DType::F32 {
            return None;
        }
        let tracked = || tensor.clone().try_into_primitive::<Autodiff<Flex>>();
        match tensor.clone().try_into_primitive::<Flex>() {
            Ok(plain) => Some(Self::Plain(plain)),
            Err(_) => tracked().ok().map(Self::Tracked),
        }
    }
}

impl Operand {
    /// [`of`](Self::of) a tensor that may be left out.
    pub(crate) fn of_any<const D: usize>(tensor: Option<&Tensor<D>>) -> Option<Option<Self>> {
        match tensor {
            Some(tensor) => Self::of(tensor).map(Some),
            None => Some(None),
        }
    }

    pub(crate) fn is_any_tracked<const N: usize>(operands: [Option<&Self>; N]) -> bool {
        let mut given = operands.into_iter().flatten();
        given.any(|operand| matches!(operand, Self::Tracked(_)))
    }
}

/// The elements in row-major order; `None` if they are not f32.
pub(crate) fn elements(tensor: &FlexTensor) -> Option<&[f32]> {
    tensor.as_slice()
}

/// A tensor of these elements in row-major order.
pub(crate) fn tensor_of(elements: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::from_data(burn::tensor::TensorData::new(elements, shape.into()))
}

impl From<FlexTensor> for Operand {
    fn from(tensor: FlexTensor) -> Self {
        Self::Plain(tensor)
    }
}

impl Operand {
    /// The elements, and the node in the graph: without autodiff a constant's node.
    pub(crate) fn into_parts(self) -> (FlexTensor, NodeGuard) {
        match self {
            Self::Plain(plain) => Autodiff::<Flex>::from_inner(plain).into_parts(),
            Self::Tracked(tracked) => tracked.into_parts(),
        }
    }

    pub(crate) fn into_tensor<const D: usize>(self) -> Tensor<D> {
        match self {
            Self::Plain(plain) => Tensor::from_primitive::<Flex>(plain),
            Self::Tracked(tracked) => Tensor::from_primitive::<Autodiff<Flex>>(tracked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, FloatDType};

    /// Without this the kernels would be right and never used.
    #[test]
    fn tensors_of_the_cpu_are_taken_with_autodiff_and_without() {
        let plain = Tensor::<2>::ones([2, 3], &Device::flex());
        assert!(matches!(Operand::of(&plain), Some(Operand::Plain(_))));
        let tracked = Tensor::<2>::ones([2, 3], &Device::flex().autodiff());
        assert!(matches!(Operand::of(&tracked), Some(Operand::Tracked(_))));
        assert!(Operand::of(&tracked.clone().require_grad().exp()).is_some());
        assert!(Operand::of(&tracked.cast(FloatDType::F64)).is_none());
    }
}
