//! Captured tensors behind burn's tensor type.
//!
//! burn 0.22.1's tensor type refuses autodiff on the capture backend, although the primitives
//! have it: `backward`, `inner` and the way into autodiff go through the primitives here.

use std::fmt;

use burn::tensor::{Bool, DType, Device, Int, Shape, Tensor, TensorData};
use burn_autodiff::Autodiff;
use burn_backend::ops::FloatTensorOps;
use burn_backend::{AutodiffBackend, TensorMetadata};
use burn_capture::{CaptureBackend, CaptureClient};
use burn_router::RouterTensor;

use super::TraceError;
use crate::{Error, Result};

/// The capture backend with autodiff.
pub(crate) type Tracked = Autodiff<CaptureBackend>;

/// The gradients of a captured backward pass.
pub(crate) type TrackedGradients = <Tracked as AutodiffBackend>::Gradients;

/// A tensor of a captured graph, of any kind of elements.
#[derive(Debug, Clone)]
pub struct CapturedTensor(pub(crate) RouterTensor<CaptureClient>);

impl CapturedTensor {
    /// Its number in the captured graph.
    pub(crate) fn id(&self) -> burn_capture::TensorId {
        self.0.id()
    }

    pub(crate) fn spec(&self) -> TensorSpec {
        TensorSpec {
            shape: TensorMetadata::shape(&self.0).to_vec(),
            dtype: TensorMetadata::dtype(&self.0),
        }
    }

    /// The same float elements in other dimensions.
    pub(crate) fn reshaped(&self, shape: &[usize]) -> Self {
        let shape = Shape::from(shape.to_vec());
        Self(CaptureBackend::float_reshape(self.0.clone(), shape))
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

    /// As an integer tensor without autodiff.
    pub(crate) fn int<const D: usize>(self) -> Tensor<D, Int> {
        Tensor::from_primitive::<CaptureBackend>(self.0)
    }

    /// As a tensor of bools without autodiff.
    pub(crate) fn bool<const D: usize>(self) -> Tensor<D, Bool> {
        Tensor::from_primitive::<CaptureBackend>(self.0)
    }

    /// As a float tensor with autodiff, whose gradient is kept if `require_grad`.
    pub(crate) fn tracked<const D: usize>(self, require_grad: bool) -> Tensor<D> {
        let tensor = Tracked::from_inner(self.0);
        let tensor = if require_grad {
            tensor.require_grad()
        } else {
            tensor
        };
        Tensor::from_primitive::<Tracked>(tensor)
    }
}

/// Shape and element type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// The size of every dimension.
    pub shape: Vec<usize>,
    /// The type of the elements.
    pub dtype: DType,
}

impl TensorSpec {
    pub(crate) fn of(data: &TensorData) -> Self {
        Self {
            shape: data.shape().to_vec(),
            dtype: data.dtype(),
        }
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype.name(), self.shape)
    }
}

/// A tensor that can be an input or a result of a captured step: burn's tensors of any kind, and
/// what stands for one in a training state.
pub trait TracedTensor {
    /// Shape and element type.
    fn spec(&self) -> TensorSpec;

    /// A copy of the values on the host.
    ///
    /// # Errors
    /// [`TraceError::HostRead`] for a tensor of a captured step.
    fn data(&self) -> Result<TensorData>;

    /// Replaces the values; the device and what autodiff knows of the tensor stay.
    ///
    /// # Errors
    /// If the values have another rank or kind of elements.
    fn set_data(&mut self, data: TensorData) -> Result<()>;

    /// Replaces the tensor by one of a captured graph, with autodiff if it had it.
    fn bind(&mut self, tensor: CapturedTensor);

    /// Replaces the tensor by one that the step has computed without a gradient.
    fn bind_result(&mut self, tensor: CapturedTensor) {
        self.bind(tensor);
    }

    /// The captured tensor, if it is one.
    fn captured(&self) -> Option<CapturedTensor>;

    /// Whether it has autodiff, and whether it keeps its gradient.
    fn tracking(&self) -> (bool, bool) {
        (false, false)
    }

    /// Becomes an empty tensor that is [tracked](Self::tracking) so.
    fn empty(&mut self, _tracking: (bool, bool)) {}
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
    let is_capture = crate::scope::trace().is_some();
    match is_capture.then(|| captured(&tensor)).flatten() {
        Some(captured) => captured.float(),
        None => tensor.without_autodiff(),
    }
}

/// The primitive of a tensor with autodiff on the capture backend.
pub(crate) fn tracked<const D: usize>(
    tensor: &Tensor<D>,
) -> Option<<Tracked as burn_backend::BackendTypes>::FloatTensorPrimitive> {
    tensor.clone().try_into_primitive::<Tracked>().ok()
}

/// What an error of a host read means: a captured tensor has no value yet.
pub(crate) fn read_error(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    match TraceError::of_message(&format!("{error:?}")) {
        Some(traced) => traced.into(),
        None => Error::step(error),
    }
}

macro_rules! plain_kind {
    ($($kind:ty),*) => {$(
        impl<const D: usize> TracedTensor for Tensor<D, $kind> {
            fn spec(&self) -> TensorSpec {
                TensorSpec { shape: self.shape().to_vec(), dtype: self.dtype() }
            }

            fn data(&self) -> Result<TensorData> {
                let plain = self.clone().without_autodiff();
                plain.try_into_data().map_err(read_error)
            }

            fn set_data(&mut self, data: TensorData) -> Result<()> {
                let autodiff = self.is_autodiff();
                crate::Leaf::put(self, data)?;
                if autodiff && !self.is_autodiff() {
                    *self = self.clone().autodiff();
                }
                Ok(())
            }

            fn bind(&mut self, tensor: CapturedTensor) {
                *self = match self.is_autodiff() {
                    true => Tensor::from_primitive::<Tracked>(tensor.0),
                    false => Tensor::from_primitive::<CaptureBackend>(tensor.0),
                };
            }

            fn captured(&self) -> Option<CapturedTensor> {
                let plain = self.clone().try_into_primitive::<CaptureBackend>();
                let tracked = || self.clone().try_into_primitive::<Tracked>();
                plain.or_else(|_| tracked()).ok().map(CapturedTensor)
            }

            fn tracking(&self) -> (bool, bool) {
                (self.is_autodiff(), false)
            }

            fn empty(&mut self, (has_autodiff, _): (bool, bool)) {
                *self = Tensor::empty([0; D], &empty_device(has_autodiff));
            }
        }
    )*};
}

plain_kind!(Int, Bool);

impl<const D: usize> TracedTensor for Tensor<D> {
    fn spec(&self) -> TensorSpec {
        TensorSpec {
            shape: self.shape().to_vec(),
            dtype: self.dtype(),
        }
    }

    fn data(&self) -> Result<TensorData> {
        if captured(self).is_some() {
            return Err(TraceError::host_read("a tensor").into());
        }
        let plain = self.clone().without_autodiff();
        plain.try_into_data().map_err(read_error)
    }

    fn set_data(&mut self, data: TensorData) -> Result<()> {
        let (autodiff, require_grad) = (self.is_autodiff(), self.is_require_grad());
        crate::Leaf::put(self, data)?;
        let mut value = self.clone();
        if autodiff && !value.is_autodiff() {
            value = value.autodiff();
        }
        *self = if require_grad {
            value.require_grad()
        } else {
            value
        };
        Ok(())
    }

    fn bind(&mut self, tensor: CapturedTensor) {
        *self = match self.is_autodiff() {
            true => tensor.tracked(self.is_require_grad()),
            false => tensor.float(),
        };
    }

    fn bind_result(&mut self, tensor: CapturedTensor) {
        *self = match self.is_autodiff() {
            true => tensor.tracked(false),
            false => tensor.float(),
        };
    }

    fn captured(&self) -> Option<CapturedTensor> {
        captured(self)
    }

    fn tracking(&self) -> (bool, bool) {
        (self.is_autodiff(), self.is_require_grad())
    }

    fn empty(&mut self, (has_autodiff, keeps_gradient): (bool, bool)) {
        let empty = Tensor::empty([0; D], &empty_device(has_autodiff));
        *self = empty.set_require_grad(has_autodiff && keeps_gradient);
    }
}

fn empty_device(has_autodiff: bool) -> Device {
    match has_autodiff {
        true => Device::flex().autodiff(),
        false => Device::flex(),
    }
}

/// Shape of a captured tensor, for burn's types.
pub(crate) fn shape_of(spec: &TensorSpec) -> Shape {
    Shape::from(spec.shape.clone())
}
