//! Gradients in a captured graph.

use crate::burn_internals::backend::AutodiffBackend;
use burn::tensor::{DType, Tensor};

use super::tensor::tracked;
use super::{CapturedTensor, Tracked, TrackedGradients, captured};
use crate::{Error, Result};

/// The backward pass of a captured loss.
pub(crate) struct CapturedTape(TrackedGradients);

impl CapturedTape {
    /// The gradient of a parameter.
    pub(crate) fn gradient<const D: usize>(&self, value: &Tensor<D>) -> Option<CapturedTensor> {
        let gradient = Tracked::grad(&tracked(value)?, &self.0);
        gradient.map(CapturedTensor)
    }
}

/// The backward pass of a loss that was computed from captured tensors; `None` for any other loss.
pub(crate) fn backward(loss: &Tensor<1>) -> Option<Result<CapturedTape>> {
    captured(loss)?;
    let untracked =
        || Error::invalid("gradient: the loss does not depend on a parameter that autodiff tracks");
    let root = tracked(loss).ok_or_else(untracked);
    Some(root.map(|root| CapturedTape(Tracked::backward(root))))
}

/// The tensor with elements of this type.
pub(crate) fn of_type(tensor: Tensor<1>, dtype: DType) -> Tensor<1> {
    if tensor.dtype() == dtype {
        tensor
    } else {
        tensor.cast(dtype)
    }
}
