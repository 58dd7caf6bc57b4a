//! Captured tensors behind burn's tensor type.
//!
//! burn 0.22.1's tensor type refuses autodiff on the capture backend, although the primitives
//! have it: `backward`, `inner` and the way into autodiff go through the primitives here.

use crate::burn_internals::backend;
use crate::burn_internals::capture;
use std::fmt;

use crate::burn_internals::autodiff::Autodiff;
use crate::burn_internals::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use crate::burn_internals::backend::{AutodiffBackend, TensorMetadata};
use crate::burn_internals::capture::{CaptureBackend, CaptureClient};
use crate::burn_internals::router::RouterTensor;
use burn::tensor::{DType, Shape, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::burn_internals::of_message;

/// The capture backend with autodiff.
pub(crate) type Tracked = Autodiff<CaptureBackend>;

/// The gradients of a captured backward pass.
pub(crate) type TrackedGradients = <Tracked as AutodiffBackend>::Gradients;

/// A tensor of a captured graph, of any kind of elements.
#[derive(Debug, Clone)]
pub struct CapturedTensor(pub(crate) RouterTensor<CaptureClient>);

impl CapturedTensor {
    /// Its number in the captured graph.
    pub(crate) fn id(&self) -> capture::TensorId {
        self.0.id()
    }

    pub(crate) fn spec(&self) -> TensorSpec {
        let shape = TensorMetadata::shape(&self.0);
        TensorSpec::new(&shape, TensorMetadata::dtype(&self.0))
    }

    /// The same elements in other dimensions.
    pub(crate) fn reshaped(&self, shape: &[usize]) -> Self {
        let (tensor, shape) = (self.0.clone(), Shape::from(shape.to_vec()));
        Self(match TensorMetadata::dtype(&tensor) {
            dtype if dtype.is_float() => CaptureBackend::float_reshape(tensor, shape),
            dtype if dtype.is_bool() => CaptureBackend::bool_reshape(tensor, shape),
            _ => CaptureBackend::int_reshape(tensor, shape),
        })
    }

    /// As a float tensor of one dimension without autodiff.
    pub(crate) fn flat(&self) -> Tensor<1> {
        let count: usize = self.spec().shape.iter().product();
        self.reshaped(&[count]).float()
    }

    /// As a float tensor without autodiff.
    pub(crate) fn float<const D: usize>(self) -> Tensor<D> {
        Tensor::from_primitive::<CaptureBackend>(self.0)
    }

    /// As a float tensor with autodiff, whose gradient is kept if `require_grad`.
    pub(crate) fn tracked<const D: usize>(self, require_grad: bool) -> Tensor<D> {
        let tensor = Tracked::from_inner(self.0);
        Tensor::from_primitive::<Tracked>(if require_grad {
            tensor.require_grad()
        } else {
            tensor
        })
    }
}

/// Shape and element type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The size of every dimension.
    pub shape: Vec<usize>,
    /// The type of the elements.
    pub dtype: DType,
}

impl TensorSpec {
    /// Of a tensor in host memory.
    pub fn of(data: &TensorData) -> Self {
        Self::new(data.shape(), data.dtype())
    }

    /// Of a tensor of these dimensions.
    pub(crate) fn new(shape: &[usize], dtype: DType) -> Self {
        let shape = shape.to_vec();
        Self { shape, dtype }
    }

    /// Of a tensor of one dimension.
    pub(crate) fn vector(length: usize, dtype: DType) -> Self {
        Self::new(&[length], dtype)
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype.name(), self.shape)
    }
}

/// The captured tensor behind a float tensor.
pub(crate) fn captured<const D: usize>(tensor: &Tensor<D>) -> Option<CapturedTensor> {
    let plain = tensor.clone().try_into_primitive::<CaptureBackend>();
    let tracked = || tensor.clone().try_into_primitive::<Tracked>();
    let inner = plain.or_else(|_| tracked().map(Tracked::inner));
    inner.ok().map(CapturedTensor)
}

/// [`Tensor::without_autodiff`], also for captured tensors.
pub fn without_autodiff<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match captured(&tensor) {
        Some(captured) => captured.float(),
        None => tensor.without_autodiff(),
    }
}

/// The primitive of a tensor with autodiff on the capture backend.
pub(crate) fn tracked<const D: usize>(
    tensor: &Tensor<D>,
) -> Option<<Tracked as backend::BackendTypes>::FloatTensorPrimitive> {
    tensor.clone().try_into_primitive::<Tracked>().ok()
}

/// What an error of a host read means: a captured tensor has no value yet.
pub(crate) fn read_error(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    of_message(&format!("{error:?}")).unwrap_or_else(|| Error::internal(error))
}

/// For burn's types.
impl From<&TensorSpec> for Shape {
    fn from(spec: &TensorSpec) -> Self {
        Self::from(spec.shape.clone())
    }
}
