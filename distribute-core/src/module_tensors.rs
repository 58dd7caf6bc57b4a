//! All tensors of a burn module by path, and the way back: trained or not, floats, integers and
//! bools. Checkpoints, parameter servers and the chief's values go through here, so that none of
//! them knows fewer kinds of parameters than another.

use burn::module::Module;
use burn::tensor::{BoolStore, DType, Device, TensorData};

use crate::nest::different_structure;
use crate::parameters::{self, Parameter, ParameterTensor};
use crate::{Error, Result};

/// One tensor of a module.
#[derive(Debug, Clone)]
pub(crate) struct ModuleTensor {
    /// The path, `conv1.weight` for example.
    pub(crate) path: String,
    /// The value; bools have the type of the host, whatever the device keeps them as.
    pub(crate) value: TensorData,
    /// Whether it has a gradient.
    pub(crate) is_trained: bool,
}

/// A module's tensors in visit order.
pub(crate) fn take<M: Module>(module: &M) -> Result<Vec<ModuleTensor>> {
    let mut tensors = Vec::new();
    parameters::visit(module, |parameter: Parameter<'_>| {
        let is_trained = parameter.tensor.trained().is_some();
        let value = parameter.tensor.take()?;
        let value = match value.dtype() {
            DType::Bool(store) if store != BoolStore::Native => value
                .try_cast(DType::Bool(BoolStore::Native))
                .map_err(Error::internal)?,
            _ => value,
        };
        tensors.push(ModuleTensor {
            path: parameter.path.to_string(),
            value,
            is_trained,
        });
        Ok(())
    })?;
    Ok(tensors)
}

/// The module with these values, which have the shapes and kinds of its own, in visit order;
/// `None` leaves one as it is.
pub(crate) fn put<M: Module>(
    module: M,
    tensors: impl IntoIterator<Item = Option<TensorData>>,
) -> Result<M> {
    let mut tensors = tensors.into_iter();
    let module = parameters::map(module, |parameter: Parameter<'_>| {
        match tensors.next().ok_or_else(different_structure)? {
            Some(data) => put_one(parameter.tensor, data),
            None => Ok(()),
        }
    })?;
    match tensors.next() {
        Some(_) => Err(different_structure()),
        None => Ok(module),
    }
}

/// Replaces a tensor's values; the device and what autodiff knows of it stay.
fn put_one(tensor: &mut dyn ParameterTensor, data: TensorData) -> Result<()> {
    let spec = tensor.spec();
    if data.shape().as_slice() != spec.shape {
        let op = "a parameter of a model";
        return Err(Error::shape(op, &spec.shape, data.shape()));
    }
    if !is_same_kind(spec.dtype, data.dtype()) {
        let op = "a parameter of another kind in the model";
        return Err(Error::dtype(op, data.dtype()));
    }
    tensor.set_data(data.try_cast(spec.dtype).map_err(Error::internal)?)
}

/// Whether values of the type `found` can stand in a tensor of the type `expected`. Bools are
/// stored as bytes where a device keeps them so.
pub(crate) fn is_same_kind(expected: DType, found: DType) -> bool {
    if expected.is_bool() {
        return matches!(found, DType::Bool(_) | DType::U8 | DType::U32);
    }
    expected.is_float() == found.is_float() && !found.is_bool()
}

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
