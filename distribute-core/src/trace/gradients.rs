//! Gradients in a captured graph.

use burn::tensor::{DType, Tensor};
use burn_backend::AutodiffBackend;

use super::tensor::tracked;
use super::{CapturedTensor, Tracked, TrackedGradients, captured};
use crate::{Error, Result};

/// The backward pass of a captured loss.
pub(crate) struct CapturedTape(TrackedGradients);

impl CapturedTape {
    /// Moves the gradient of a parameter out.
    pub(crate) fn remove<const D: usize>(&mut self, value: &Tensor<D>) -> Option<CapturedTensor> {
        let gradient = Tracked::grad_remove(&tracked(value)?, &mut self.0);
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
    match tensor.dtype() == dtype {
        true => tensor,
        false => tensor.cast(dtype),
    }
}
