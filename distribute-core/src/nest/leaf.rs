//! The tensors and numbers that values are made of: [`Leaf`].

use crate::burn_internals::capture::CaptureBackend;
use burn::tensor::kind::Autodiff;
use burn::tensor::{
    Bool, DType, Device, Float, GradientCheckpointingStrategy, Int, Tensor, TensorData,
};

use crate::trace::{CapturedTensor, TensorSpec, Tracked, captured, read_error};
use crate::{Error, Result};

/// One tensor or number inside a [`Nest`](crate::Nest), or inside a model or training state.
///
/// Reading a leaf moves its buffer out; a tensor of burn's flex backend that has no other owner
/// gives it up without a copy. On other devices this is a transfer to the host and waits for it.
pub trait Leaf {
    /// Shape and element type.
    fn spec(&self) -> TensorSpec;

    /// A copy of the values on the host.
    ///
    /// # Errors
    /// [`Error::HostRead`] for a tensor of a captured step.
    fn data(&self) -> Result<TensorData>;

    /// Moves the value out and leaves an empty one in its place.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    fn take(&mut self) -> Result<TensorData> {
        self.data()
    }

    /// Puts a value back, on the device and with the type of the one that was taken.
    ///
    /// # Errors
    /// [`Error::DType`] if the leaf cannot hold elements of that type (an integer tensor cannot
    /// hold a mean), [`Error::InvalidArgument`] for a tensor of another number of dimensions,
    /// [`Error::Shape`] for a number that gets several.
    fn put(&mut self, data: TensorData) -> Result<()>;

    /// Replaces the values; the device and what autodiff knows of the tensor stay.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    fn set_data(&mut self, data: TensorData) -> Result<()> {
        self.put(data)
    }

    /// The leaf as a tensor, which can be an input or a result of a captured step. Numbers and data
    /// of the host are part of the program.
    fn tensor(&mut self) -> Option<&mut dyn LeafTensor> {
        None
    }
}

/// A leaf that is a tensor, as a step sees it that is captured.
pub trait LeafTensor: Leaf {
    /// The captured tensor, if it is one.
    fn captured(&self) -> Option<CapturedTensor>;

    /// What autodiff knows of the tensor beside its values.
    fn tracking(&self) -> Tracking {
        Tracking::default()
    }

    /// Changes what autodiff knows of the tensor, which leaves the graph that it was in. What
    /// autodiff knows nothing of stays as it is.
    fn set_tracking(&mut self, tracking: Tracking) {
        let _ = tracking;
    }

    /// Leaves an empty tensor in its place, which autodiff tracks in the same way.
    fn clear(&mut self);

    /// Replaces the tensor by one of a captured graph that is tracked in this way.
    fn bind(&mut self, tensor: CapturedTensor, tracking: Tracking);

    /// As a float; `None` for integers and bools.
    fn as_float(&mut self) -> Option<&mut dyn FloatLeaf> {
        None
    }
}

/// A tensor of floats.
pub trait FloatLeaf: LeafTensor {
    /// Its values in one dimension, in the memory where they are, without autodiff.
    fn flat(&self) -> Tensor<1>;

    /// Replaces the values; what autodiff knows of the tensor stays. What has a gradient is a new
    /// leaf of the graph.
    fn set_flat(&mut self, flat: Tensor<1>);
}

/// What autodiff knows of a tensor beside its values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tracking {
    /// What a backward pass keeps and what it computes again, if the tensor has autodiff.
    pub(crate) autodiff: Option<GradientCheckpointingStrategy>,
    pub(crate) keeps_gradient: bool,
}

impl Tracking {
    /// Of a tensor that is made on this device.
    pub(crate) fn of_device(device: &Device) -> Self {
        Self {
            autodiff: device.gradient_checkpointing_strategy(),
            keeps_gradient: false,
        }
    }

    /// Of the same tensor if its gradient is not kept.
    pub(crate) fn without_gradient(self) -> Self {
        let keeps_gradient = false;
        Self {
            keeps_gradient,
            ..self
        }
    }
}

/// What tensors of floats, integers and bools differ in.
pub(crate) trait Kind: Autodiff {
    fn fits(dtype: DType) -> bool;

    fn captured<const D: usize>(tensor: &Tensor<D, Self>) -> Option<CapturedTensor>;

    fn of_captured<const D: usize>(tensor: CapturedTensor, tracking: Tracking) -> Tensor<D, Self>;

    fn keeps_gradient<const D: usize>(_: &Tensor<D, Self>) -> bool {
        false
    }

    fn keep_gradient<const D: usize>(tensor: Tensor<D, Self>) -> Tensor<D, Self> {
        tensor
    }

    fn as_float<const D: usize>(_: &mut Tensor<D, Self>) -> Option<&mut dyn FloatLeaf> {
        None
    }
}

/// What autodiff knows of a tensor.
pub(crate) fn tracking<const D: usize, K: Kind>(tensor: &Tensor<D, K>) -> Tracking {
    Tracking {
        autodiff: tensor.gradient_checkpointing_strategy(),
        keeps_gradient: K::keeps_gradient(tensor),
    }
}

/// A tensor without autodiff, tracked in this way.
pub(crate) fn tracked<const D: usize, K: Kind>(
    tensor: Tensor<D, K>,
    tracking: Tracking,
) -> Tensor<D, K> {
    let Some(strategy) = tracking.autodiff else {
        return tensor;
    };
    let tensor = tensor.autodiff();
    let tensor = tensor.with_gradient_checkpointing_strategy(strategy);
    if tracking.keeps_gradient {
        K::keep_gradient(tensor)
    } else {
        tensor
    }
}

impl Kind for Float {
    fn fits(dtype: DType) -> bool {
        dtype.is_float()
    }

    fn captured<const D: usize>(tensor: &Tensor<D>) -> Option<CapturedTensor> {
        captured(tensor)
    }

    fn of_captured<const D: usize>(tensor: CapturedTensor, tracking: Tracking) -> Tensor<D> {
        match tracking.autodiff {
            Some(_) => tensor.tracked(tracking.keeps_gradient),
            None => tensor.float(),
        }
    }

    fn keeps_gradient<const D: usize>(tensor: &Tensor<D>) -> bool {
        tensor.is_require_grad()
    }

    fn keep_gradient<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
        tensor.require_grad()
    }

    fn as_float<const D: usize>(tensor: &mut Tensor<D>) -> Option<&mut dyn FloatLeaf> {
        Some(tensor)
    }
}

macro_rules! without_gradient {
    ($($kind:ty, $dtype:ident => $fits:expr;)*) => {$(
        impl Kind for $kind {
            fn fits($dtype: DType) -> bool {
                $fits
            }

            fn captured<const D: usize>(tensor: &Tensor<D, Self>) -> Option<CapturedTensor> {
                let plain = tensor.clone().try_into_primitive::<CaptureBackend>();
                let tracked = || tensor.clone().try_into_primitive::<Tracked>();
                plain.or_else(|_| tracked()).ok().map(CapturedTensor)
            }

            fn of_captured<const D: usize>(
                tensor: CapturedTensor,
                tracking: Tracking,
            ) -> Tensor<D, Self> {
                match tracking.autodiff {
                    Some(_) => Tensor::from_primitive::<Tracked>(tensor.0),
                    None => Tensor::from_primitive::<CaptureBackend>(tensor.0),
                }
            }
        }
    )*};
}

without_gradient! {
    Int, dtype => dtype.is_int() || dtype.is_uint();
    Bool, dtype => dtype.is_bool();
}

impl<const D: usize, K: Kind> Leaf for Tensor<D, K> {
    fn spec(&self) -> TensorSpec {
        TensorSpec {
            shape: self.shape().to_vec(),
            dtype: self.dtype(),
        }
    }

    fn data(&self) -> Result<TensorData> {
        Leaf::take(&mut self.clone())
    }

    fn take(&mut self) -> Result<TensorData> {
        // While a step is captured its tensors have no values.
        if K::captured(self).is_some() {
            return Err(Error::host_read("a tensor"));
        }
        let tracking = tracking(self);
        let plain = self.extract().without_autodiff();
        // What is left in its place is still a leaf of the graph, if the tensor was one.
        self.set_tracking(tracking);
        plain.try_into_data().map_err(read_error)
    }

    fn put(&mut self, data: TensorData) -> Result<()> {
        if data.rank() != D {
            return Err(Error::invalid(format!(
                "a tensor of rank {D} cannot hold a result of shape {:?}",
                data.shape().to_vec()
            )));
        }
        let dtype = data.dtype();
        if !K::fits(dtype) {
            let op = "put the result back (an integer tensor cannot hold a mean)";
            return Err(Error::dtype(op, dtype));
        }
        let device = self.device().without_autodiff();
        *self = Tensor::from_data(data, (&device, dtype));
        Ok(())
    }

    fn set_data(&mut self, data: TensorData) -> Result<()> {
        let tracking = tracking(self);
        self.put(data)?;
        *self = tracked(self.clone(), tracking);
        Ok(())
    }

    fn tensor(&mut self) -> Option<&mut dyn LeafTensor> {
        Some(self)
    }
}

impl<const D: usize, K: Kind> LeafTensor for Tensor<D, K> {
    fn captured(&self) -> Option<CapturedTensor> {
        K::captured(self)
    }

    fn tracking(&self) -> Tracking {
        tracking(self)
    }

    fn set_tracking(&mut self, tracking: Tracking) {
        *self = tracked(self.clone().without_autodiff(), tracking);
    }

    fn clear(&mut self) {
        *self = tracked(Self::empty([0; D], &Device::flex()), tracking(self));
    }

    fn bind(&mut self, tensor: CapturedTensor, tracking: Tracking) {
        *self = K::of_captured(tensor, tracking);
    }

    fn as_float(&mut self) -> Option<&mut dyn FloatLeaf> {
        K::as_float(self)
    }
}

impl<const D: usize> FloatLeaf for Tensor<D> {
    fn flat(&self) -> Tensor<1> {
        flattened(self.clone().without_autodiff())
    }

    fn set_flat(&mut self, flat: Tensor<1>) {
        let values = flat.reshape(self.shape());
        *self = tracked(values, tracking(self));
    }
}

/// A tensor in one dimension.
pub(crate) fn flattened<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let count = tensor.shape().num_elements();
    tensor.reshape([count])
}

impl Leaf for TensorData {
    fn spec(&self) -> TensorSpec {
        TensorSpec::of(self)
    }

    fn data(&self) -> Result<TensorData> {
        Ok(self.clone())
    }

    fn take(&mut self) -> Result<TensorData> {
        let nothing = TensorData::new(Vec::<f32>::new(), [0]);
        Ok(std::mem::replace(self, nothing))
    }

    fn put(&mut self, data: TensorData) -> Result<()> {
        *self = data;
        Ok(())
    }
}

macro_rules! number {
    ($($type:ty => $dtype:ident),*) => {$(
        impl Leaf for $type {
            fn spec(&self) -> TensorSpec {
                TensorSpec { shape: Vec::new(), dtype: DType::$dtype }
            }

            fn data(&self) -> Result<TensorData> {
                Ok(TensorData::new(vec![*self], burn::tensor::Shape::new([])))
            }

            fn put(&mut self, data: TensorData) -> Result<()> {
                let op = concat!("reduce into ", stringify!($type));
                if data.dtype() != DType::$dtype {
                    return Err(Error::dtype(op, data.dtype()));
                }
                match data.as_slice::<$type>() {
                    Ok(&[value]) => *self = value,
                    _ => return Err(Error::shape(op, &[], data.shape())),
                }
                Ok(())
            }
        }
    )*};
}

number!(f32 => F32, f64 => F64, i32 => I32, i64 => I64, u8 => U8);
