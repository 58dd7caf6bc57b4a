//! Values made of tensors: [`Nest`] walks them leaf by leaf.
//!
//! TensorFlow calls this `tf.nest`. `reduce`, `gather` and `all_reduce` accept any [`Nest`]:
//! tensors, numbers, tuples, vectors, maps, and structs with `#[derive(Nest)]`.

mod traced;

use std::collections::BTreeMap;

use burn::tensor::{Bool, DType, Device, Float, Int, Tensor, TensorData};

use crate::trace::{Fingerprint, read_error};
use crate::{Error, Result};

pub use traced::TracedTensor;

/// One tensor or number inside a [`Nest`].
///
/// Reading a leaf moves its buffer out; a tensor of burn's flex backend that has no other owner
/// gives it up without a copy. On other devices this is a transfer to the host and waits for it.
pub trait Leaf {
    /// Moves the value out and leaves an empty one in its place.
    fn take(&mut self) -> Result<TensorData>;

    /// Puts a value back, on the device and with the type of the one that was taken.
    ///
    /// # Errors
    /// [`Error::DType`] if the leaf cannot hold elements of that type (an integer tensor cannot
    /// hold a mean), [`Error::Shape`] if it has another number of dimensions.
    fn put(&mut self, data: TensorData) -> Result<()>;

    /// The leaf as a tensor that a captured step can take or give; `None` for numbers.
    fn traced(&mut self) -> Option<&mut dyn TracedTensor> {
        None
    }
}

/// A value made of tensors and numbers.
///
/// Derive it for structs and enums: `#[derive(Nest)]` visits the fields in declaration order.
///
/// ```
/// use distribute_core::{Nest, Tensor};
///
/// #[derive(Nest)]
/// struct Losses {
///     prediction: Tensor<1>,
///     regularization: Tensor<1>,
///     examples: u64,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not known to be made of tensors and numbers",
    label = "steps cannot be handed this, nor return it",
    note = "derive it for a struct or enum of your own: `#[derive(Nest)]`",
    note = "a `Result` is opened first, with a `?`"
)]
pub trait Nest {
    /// Visits every leaf, always in the same order.
    fn walk(&mut self, visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>) -> Result<()>;

    /// A value whose leaves can be put in place, for a worker that never had one of its own to put
    /// another worker's leaves into. `None` where the number of leaves is not known from the type
    /// (vectors, options, maps, enums).
    fn placeholder() -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// A value of the same structure whose leaves can be put in place: what a compiled step puts
    /// its results into. `None` if there is no such value.
    ///
    /// Lengths, variants, numbers and strings are those of `self`; tensors are empty ones.
    fn skeleton(&self) -> Option<Self>
    where
        Self: Sized,
    {
        Self::placeholder()
    }

    /// Names everything but the leaves that a captured step's program depends on: lengths,
    /// variants, strings. Derived for structs and enums.
    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        let _ = key;
    }

    /// Moves all leaves out, in order.
    fn take_leaves(&mut self) -> Result<Vec<TensorData>> {
        let mut leaves = Vec::new();
        self.walk(&mut |leaf| {
            leaves.push(leaf.take()?);
            Ok(())
        })?;
        Ok(leaves)
    }

    /// Puts leaves back that [`Nest::take_leaves`] moved out.
    ///
    /// # Errors
    /// If there are fewer or more leaves than places, or one does not fit.
    fn put_leaves(&mut self, leaves: Vec<TensorData>) -> Result<()> {
        let mut leaves = leaves.into_iter();
        self.walk(&mut |leaf| {
            let data = leaves.next().ok_or_else(different_structure)?;
            leaf.put(data)
        })?;
        if leaves.next().is_some() {
            return Err(different_structure());
        }
        Ok(())
    }
}

/// The error for replicas that returned values of different structure.
pub(crate) fn different_structure() -> Error {
    Error::invalid("the replicas' values differ in structure: another number of tensors inside")
}

macro_rules! tensor {
    ($($kind:ty => $fits:expr),*) => {$(
        impl<const D: usize> Leaf for Tensor<D, $kind> {
            fn take(&mut self) -> Result<TensorData> {
                // While a step is captured its tensors have no values.
                if self.captured().is_some() {
                    return Err(Error::host_read("a tensor"));
                }
                self.extract().without_autodiff().try_into_data().map_err(read_error)
            }

            fn put(&mut self, data: TensorData) -> Result<()> {
                if data.rank() != D {
                    return Err(Error::invalid(format!(
                        "a tensor of rank {D} cannot hold a result of shape {:?}",
                        data.shape().to_vec()
                    )));
                }
                let dtype = data.dtype();
                let fits: fn(DType) -> bool = $fits;
                if !fits(dtype) {
                    return Err(Error::DType {
                        op: "put the result back (an integer tensor cannot hold a mean)",
                        dtype: dtype.name().to_string(),
                    });
                }
                let device = self.device().without_autodiff();
                *self = Tensor::from_data(data, (&device, dtype));
                Ok(())
            }

            fn traced(&mut self) -> Option<&mut dyn TracedTensor> {
                Some(self)
            }
        }

        impl<const D: usize> Nest for Tensor<D, $kind> {
            fn walk(
                &mut self,
                visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>,
            ) -> Result<()> {
                visit(self)
            }

            fn fingerprint(&self, key: &mut dyn Fingerprint) {
                if let Some(rows) = self.dims().first() {
                    key.rows(*rows);
                }
            }

            fn placeholder() -> Option<Self> {
                Some(Self::empty([0; D], &Device::flex()))
            }
        }
    )*};
}

tensor!(
    Float => |dtype| dtype.is_float(),
    Int => |dtype| dtype.is_int() || dtype.is_uint(),
    Bool => |dtype| dtype.is_bool()
);

impl Leaf for TensorData {
    fn take(&mut self) -> Result<TensorData> {
        Ok(std::mem::replace(
            self,
            TensorData::new(Vec::<f32>::new(), [0]),
        ))
    }

    fn put(&mut self, data: TensorData) -> Result<()> {
        *self = data;
        Ok(())
    }
}

impl Nest for TensorData {
    fn walk(&mut self, visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>) -> Result<()> {
        visit(self)
    }

    fn placeholder() -> Option<Self> {
        Some(TensorData::new(Vec::<f32>::new(), [0]))
    }
}

macro_rules! number {
    ($($type:ty => $dtype:ident),*) => {$(
        impl Leaf for $type {
            fn take(&mut self) -> Result<TensorData> {
                Ok(TensorData::new(vec![*self], burn::tensor::Shape::new([])))
            }

            fn put(&mut self, data: TensorData) -> Result<()> {
                if data.dtype() != DType::$dtype {
                    return Err(Error::DType {
                        op: concat!("reduce into ", stringify!($type)),
                        dtype: data.dtype().name().to_string(),
                    });
                }
                match data.as_slice::<$type>() {
                    Ok(&[value]) => *self = value,
                    _ => return Err(Error::Shape {
                        op: concat!("reduce into ", stringify!($type)),
                        expected: Vec::new(),
                        found: data.shape().to_vec(),
                    }),
                }
                Ok(())
            }
        }

        impl Nest for $type {
            fn walk(
                &mut self,
                visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>,
            ) -> Result<()> {
                visit(self)
            }

            fn placeholder() -> Option<Self> {
                Some(Self::default())
            }

            fn skeleton(&self) -> Option<Self> {
                Some(self.clone())
            }
        }
    )*};
}

number!(f32 => F32, f64 => F64, i32 => I32, i64 => I64, u8 => U8);

/// Counts travel as `i64`: it has a reduction kernel, and its size does not depend on the machine.
macro_rules! count {
    ($($type:ty),*) => {$(
        impl Nest for $type {
            fn walk(
                &mut self,
                visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>,
            ) -> Result<()> {
                let mut wide = i64::try_from(*self).map_err(Error::invalid)?;
                visit(&mut wide)?;
                *self = Self::try_from(wide).map_err(Error::internal)?;
                Ok(())
            }

            fn skeleton(&self) -> Option<Self> {
                Some(*self)
            }

            fn placeholder() -> Option<Self> {
                Some(0)
            }
        }
    )*};
}

count!(u32, u64, usize);

macro_rules! no_leaves {
    ($($type:ty),*) => {$(
        impl Nest for $type {
            fn walk(&mut self, _: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>) -> Result<()> {
                Ok(())
            }

            fn fingerprint(&self, key: &mut dyn Fingerprint) {
                key.fixed(format_args!("{self:?}"));
            }

            fn skeleton(&self) -> Option<Self> {
                Some(self.clone())
            }

            fn placeholder() -> Option<Self> {
                Some(Self::default())
            }
        }
    )*};
}

no_leaves!((), String, bool);

macro_rules! tuple {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Nest),+> Nest for ($($name,)+) {
            fn walk(
                &mut self,
                visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>,
            ) -> Result<()> {
                $(self.$index.walk(visit)?;)+
                Ok(())
            }

            fn fingerprint(&self, key: &mut dyn Fingerprint) {
                $(self.$index.fingerprint(key);)+
            }

            fn skeleton(&self) -> Option<Self> {
                Some(($(self.$index.skeleton()?,)+))
            }

            fn placeholder() -> Option<Self> {
                Some(($($name::placeholder()?,)+))
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);

impl<T: Nest> Nest for Vec<T> {
    fn walk(&mut self, visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|value| value.walk(visit))
    }

    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        key.fixed(format_args!("{} items", self.len()));
        self.iter().for_each(|value| value.fingerprint(key));
    }

    fn skeleton(&self) -> Option<Self> {
        self.iter().map(Nest::skeleton).collect()
    }
}

impl<T: Nest, const N: usize> Nest for [T; N] {
    fn walk(&mut self, visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|value| value.walk(visit))
    }

    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        self.iter().for_each(|value| value.fingerprint(key));
    }

    fn skeleton(&self) -> Option<Self> {
        let values: Option<Vec<T>> = self.iter().map(Nest::skeleton).collect();
        values?.try_into().ok()
    }

    fn placeholder() -> Option<Self> {
        let values: Option<Vec<T>> = (0..N).map(|_| T::placeholder()).collect();
        values?.try_into().ok()
    }
}

impl<T: Nest> Nest for Option<T> {
    fn walk(&mut self, visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|value| value.walk(visit))
    }

    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        key.fixed(format_args!("{} optional", usize::from(self.is_some())));
        self.iter().for_each(|value| value.fingerprint(key));
    }

    fn skeleton(&self) -> Option<Self> {
        match self {
            Some(value) => value.skeleton().map(Some),
            None => Some(None),
        }
    }
}

/// Maps are walked in key order; replicas must hold the same keys.
impl<K: Ord + Clone, T: Nest> Nest for BTreeMap<K, T> {
    fn walk(&mut self, visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>) -> Result<()> {
        self.values_mut().try_for_each(|value| value.walk(visit))
    }

    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        key.fixed(format_args!("{} entries", self.len()));
        self.values().for_each(|value| value.fingerprint(key));
    }

    fn skeleton(&self) -> Option<Self> {
        let entries = self.iter();
        let entries = entries.map(|(key, value)| Some((key.clone(), value.skeleton()?)));
        entries.collect()
    }
}
