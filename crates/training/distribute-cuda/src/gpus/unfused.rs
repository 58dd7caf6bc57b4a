//! Tensors of burn's CUDA backend, with burn's `fusion` or without.
//!
//! burn's `Cube` is one of two types: a feature of burn decides, and any crate of a build may turn
//! it on. Both have an [`Unfused`] here, so no feature of this crate has to follow burn's.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_fusion::custom::StreamId;
use burn_fusion::{Client, Fusion, FusionBackend, NoOp};
use distribute_core::burn_internals::backend::tensor::FloatTensor;
use distribute_core::burn_internals::backend::{Backend, BackendTypes, TensorMetadata};
use distribute_core::burn_internals::ir::{InitOperationIr, OperationIr};
use distribute_core::{Error, Result};

/// A backend whose float tensors have, or will have, their elements in a [`CubeTensor`].
pub(super) trait Unfused: Backend {
    /// The stream that made a tensor, and takes it back.
    type Maker;

    /// The tensor's elements. Operations that wait to become part of a fused kernel are queued
    /// first; the device may still be busy with them.
    fn resolve(tensor: FloatTensor<Self>) -> (CubeTensor, Self::Maker);

    /// The elements as a tensor of the backend.
    ///
    /// # Errors
    /// burn does not take them.
    fn wrap(tensor: CubeTensor, maker: Self::Maker) -> Result<FloatTensor<Self>>;
}

impl Unfused for CubeBackend {
    type Maker = ();

    fn resolve(tensor: FloatTensor<Self>) -> (CubeTensor, ()) {
        (tensor, ())
    }

    fn wrap(tensor: CubeTensor, (): ()) -> Result<FloatTensor<Self>> {
        Ok(tensor)
    }
}

impl<B> Unfused for Fusion<B>
where
    B: FusionBackend + BackendTypes<FloatTensorPrimitive = CubeTensor>,
{
    type Maker = Client<B::FusionRuntime>;

    fn resolve(tensor: FloatTensor<Self>) -> (CubeTensor, Self::Maker) {
        let client = tensor.client.clone();
        (client.resolve_tensor_float::<B>(tensor), client)
    }

    /// As burn makes a tensor of elements that are there already (`Fusion::float_from_data`).
    fn wrap(tensor: CubeTensor, client: Self::Maker) -> Result<FloatTensor<Self>> {
        let (shape, dtype) = (TensorMetadata::shape(&tensor), tensor.dtype);
        let handle = B::float_tensor_handle(tensor);
        let made = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
        let operation = OperationIr::Init(made);
        let outputs = client.register(StreamId::current(), operation, NoOp::<B>::new());
        let missing = || Error::invalid("burn made no tensor of the reduced elements");
        outputs.into_iter().next().ok_or_else(missing)
    }
}
