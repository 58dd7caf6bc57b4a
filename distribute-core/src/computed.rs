//! Whether tensors were computed at all.

use burn::module::Module;
use burn::tensor::Device;

use crate::{Error, Result, parameters};

/// Tells whether the weights of a model on a GPU were computed at all: reads an element of each.
///
/// A kernel that failed (no memory, not compiled) leaves its results without values, and so do the
/// kernels after it; burn tells that when one is read. Sums are the exception: in cubecl 0.11.3
/// `Tensor::sum` of what was never computed reads as 0, so a loss alone does not show it.
pub(crate) fn check_computed<M: Module>(model: &M) -> Result<()> {
    parameters::visit_trained(model, |_, _, tensor| {
        let value = tensor.flat();
        if value.shape().num_elements() == 0 || !is_off_host(&value.device()) {
            return Ok(());
        }
        let first = value.narrow(0, 0, 1).try_into_data();
        first.map(drop).map_err(Error::internal)
    })
}

/// Whether tensors there are not in host memory already.
pub(crate) fn is_off_host(device: &Device) -> bool {
    *device != Device::flex()
}
