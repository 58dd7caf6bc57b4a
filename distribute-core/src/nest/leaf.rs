//! The tensors and numbers that values are made of: [`Leaf`].

use burn::tensor::kind::Autodiff;
use burn::tensor::{Bool, DType, Float, Int, Tensor, TensorData};
use burn_capture::CaptureBackend;

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
    /// Those of [`put`](Self::put).
    fn set_data(&mut self, data: TensorData) -> Result<()> {
        self.put(data)
    }

    /// Whether it is a tensor, which can be an input or a result of a captured step. Numbers and
    /// data of the host are part of the program.
    fn is_tensor(&self) -> bool {
        true
    }

    /// Whether every replica has its own in a mirrored value: the gradients of micro-batches, and
    /// running statistics.
    fn is_per_replica(&self) -> bool {
        self.is_running_statistic()
    }

    /// Whether every replica has its own, and outside of steps they are read as their mean.
    fn is_running_statistic(&self) -> bool {
        false
    }

    /// Whether it is a running statistic, of each replica's own or equal on all of them.
    fn is_statistic(&self) -> bool {
        self.is_running_statistic()
    }

    /// The captured tensor, if it is one.
    fn captured(&self) -> Option<CapturedTensor> {
        None
    }

    /// Whether it has autodiff, and whether it keeps its gradient.
    fn tracking(&self) -> (bool, bool) {
        (false, false)
    }

    /// Replaces the tensor by one of a captured graph that is [tracked](Self::tracking) so.
    fn bind(&mut self, tensor: CapturedTensor, tracking: (bool, bool));
}

/// What tensors of floats, integers and bools differ in.
pub(super) trait Kind: Autodiff {
    fn fits(dtype: DType) -> bool;

    fn captured<const D: usize>(tensor: &Tensor<D, Self>) -> Option<CapturedTensor>;

    fn of_captured<const D: usize>(
        tensor: CapturedTensor,
        tracking: (bool, bool),
    ) -> Tensor<D, Self>;

    fn keeps_gradient<const D: usize>(_: &Tensor<D, Self>) -> bool {
        false
    }

    /// The tensor with autodiff, or as it is.
    fn tracked<const D: usize>(
        tensor: Tensor<D, Self>,
        (has_autodiff, _): (bool, bool),
    ) -> Tensor<D, Self> {
        match has_autodiff {
            true => tensor.autodiff(),
            false => tensor,
        }
    }
}

impl Kind for Float {
    fn fits(dtype: DType) -> bool {
        dtype.is_float()
    }

    fn captured<const D: usize>(tensor: &Tensor<D>) -> Option<CapturedTensor> {
        captured(tensor)
    }

    fn of_captured<const D: usize>(
        tensor: CapturedTensor,
        (has_autodiff, keeps_gradient): (bool, bool),
    ) -> Tensor<D> {
        match has_autodiff {
            true => tensor.tracked(keeps_gradient),
            false => tensor.float(),
        }
    }

    fn keeps_gradient<const D: usize>(tensor: &Tensor<D>) -> bool {
        tensor.is_require_grad()
    }

    fn tracked<const D: usize>(tensor: Tensor<D>, tracking: (bool, bool)) -> Tensor<D> {
        match tracking {
            (true, true) => tensor.autodiff().require_grad(),
            (true, false) => tensor.autodiff(),
            _ => tensor,
        }
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
                (has_autodiff, _): (bool, bool),
            ) -> Tensor<D, Self> {
                match has_autodiff {
                    true => Tensor::from_primitive::<Tracked>(tensor.0),
                    false => Tensor::from_primitive::<CaptureBackend>(tensor.0),
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
        let tracking = self.tracking();
        let plain = self.extract().without_autodiff();
        // What is left in its place is still a leaf of the graph, if the tensor was one.
        *self = K::tracked(self.clone().without_autodiff(), tracking);
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
        let tracking = self.tracking();
        self.put(data)?;
        *self = K::tracked(self.clone(), tracking);
        Ok(())
    }

    fn captured(&self) -> Option<CapturedTensor> {
        K::captured(self)
    }

    fn tracking(&self) -> (bool, bool) {
        (self.is_autodiff(), K::keeps_gradient(self))
    }

    fn bind(&mut self, tensor: CapturedTensor, tracking: (bool, bool)) {
        *self = K::of_captured(tensor, tracking);
    }
}

/// What is no tensor is not replaced by one.
macro_rules! no_tensor {
    () => {
        fn is_tensor(&self) -> bool {
            false
        }

        fn bind(&mut self, _: CapturedTensor, _: (bool, bool)) {}
    };
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

    no_tensor!();
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

            no_tensor!();
        }
    )*};
}

number!(f32 => F32, f64 => F64, i32 => I32, i64 => I64, u8 => U8);
