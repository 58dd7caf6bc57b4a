//! Tensors that can be inputs and results of a captured step.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_capture::CaptureBackend;

use super::Leaf;
use crate::trace::{CapturedTensor, TensorSpec, Tracked, captured, read_error};
use crate::{Error, Result};

/// A tensor that can be an input or a result of a captured step: burn's tensors of any kind, and
/// what stands for one in a training state.
pub trait TracedTensor {
    /// Shape and element type.
    fn spec(&self) -> TensorSpec;

    /// A copy of the values on the host.
    ///
    /// # Errors
    /// [`Error::HostRead`] for a tensor of a captured step.
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
                Leaf::put(self, data)?;
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
            return Err(Error::host_read("a tensor"));
        }
        let plain = self.clone().without_autodiff();
        plain.try_into_data().map_err(read_error)
    }

    fn set_data(&mut self, data: TensorData) -> Result<()> {
        let (autodiff, require_grad) = (self.is_autodiff(), self.is_require_grad());
        Leaf::put(self, data)?;
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
