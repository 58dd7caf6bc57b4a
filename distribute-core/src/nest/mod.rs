//! Values made of tensors: [`Nest`] walks them leaf by leaf.
//!
//! TensorFlow calls this `tf.nest`. `reduce`, `gather` and `all_reduce` accept any [`Nest`]:
//! tensors, numbers, tuples, vectors, maps, and structs with `#[derive(Nest)]`. [`NestWith`] makes
//! one of a struct of another crate.

mod leaf;
mod nest_with;
mod path;

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};

use crate::trace::{Fingerprint, TensorSpec};
use crate::{Error, Result};

pub use leaf::Leaf;
pub(crate) use leaf::{FloatLeaf, LeafTensor, Tracking, flattened, tracked, tracking};
pub use nest_with::{FieldVisitor, NestWith};
pub use path::NestPath;

use leaf::Kind;

/// What is called for each leaf of a value, with its path.
pub type LeafVisitor<'a> = &'a mut dyn FnMut(&NestPath<'_>, &mut dyn Leaf) -> Result<()>;

/// A value made of tensors and numbers: a batch, or what a step returns.
///
/// Put `#[derive(Nest)]` above structs and enums of your own, such as a batch; it visits the fields
/// in declaration order. A type of another crate, for which you cannot derive it, is wrapped in a
/// [`NestWith`], or taken apart into a tuple.
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
    message = "`{Self}` is no `Nest`: put `#[derive(Nest)]` above the type of a batch or result",
    label = "steps cannot be handed this, nor return it, without `#[derive(Nest)]`",
    note = "a type of another crate is wrapped: `NestWith::new(value, |value, field| ..)`",
    note = "a `Result` is opened first, with a `?`"
)]
pub trait Nest {
    /// Visits every leaf, always in the same order; `path` is where the value itself is.
    ///
    /// # Errors
    /// The visitor's.
    fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()>;

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
    /// Lengths, variants, numbers and strings are the same as in `self`; tensors are empty,
    /// and autodiff tracks them as it tracks the tensors of `self`.
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

    /// Takes the example out of a batch of one example, for a replica that gets none: axis 0 of
    /// every tensor becomes 0, every number 0, and a list of one number or string empty. Other
    /// lists, and strings outside of lists, stay as they are. Derived for structs and enums.
    ///
    /// # Errors
    /// [`Error::Leaf`], which says what cannot be without examples.
    fn remove_example(&mut self) -> Result<()> {
        self.walk(&NestPath::ROOT, &mut |path, leaf| {
            without_examples(leaf).map_err(|error| error.at(path))
        })
    }

    /// Moves all leaves out, in order.
    ///
    /// # Errors
    /// [`Error::Leaf`], which says where the leaf is that cannot be read.
    fn take_leaves(&mut self) -> Result<Vec<TensorData>> {
        let mut leaves = Vec::new();
        self.walk(&NestPath::ROOT, &mut |path, leaf| {
            leaves.push(leaf.take().map_err(|error| error.at(path))?);
            Ok(())
        })?;
        Ok(leaves)
    }

    /// Puts leaves back that [`Nest::take_leaves`] moved out.
    ///
    /// # Errors
    /// If there are fewer or more leaves than places, or one does not fit ([`Error::Leaf`]).
    fn put_leaves(&mut self, leaves: Vec<TensorData>) -> Result<()> {
        let mut leaves = leaves.into_iter();
        self.walk(&NestPath::ROOT, &mut |path, leaf| {
            let data = leaves.next().ok_or_else(different_structure);
            let put = data.and_then(|data| leaf.put(data));
            put.map_err(|error| error.at(path))
        })?;
        if leaves.next().is_some() {
            return Err(different_structure());
        }
        Ok(())
    }
}

/// Takes autodiff off all tensors of a value. What cannot be walked stays as it is: it gives the
/// same results.
pub(crate) fn without_autodiff(value: &mut dyn Nest) {
    set_tracking(value, |_| Some(Tracking::default()));
}

/// Gives the tensors of a value that have no autodiff what tensors have that are made on a device.
/// What cannot be walked stays as it is.
pub(crate) fn with_autodiff_of(device: &Device, value: &mut dyn Nest) {
    let tracking = Tracking::of_device(device);
    set_tracking(value, |found| found.autodiff.is_none().then_some(tracking));
}

/// Changes what autodiff knows of a value's tensors, where there is something else to know.
fn set_tracking(value: &mut dyn Nest, new: impl Fn(Tracking) -> Option<Tracking>) {
    // The only errors are of numbers that are too large to travel: they are no tensors.
    let _ = value.walk(&NestPath::ROOT, &mut |_, leaf| {
        if let Some(tensor) = leaf.tensor() {
            let found = tensor.tracking();
            let changed = new(found).filter(|new| *new != found);
            changed.into_iter().for_each(|new| tensor.set_tracking(new));
        }
        Ok(())
    });
}

/// Cuts axis 0 of a tensor to nothing; a number becomes 0.
fn without_examples(leaf: &mut dyn Leaf) -> Result<()> {
    let TensorSpec { dtype, mut shape } = leaf.spec();
    if let Some(examples) = shape.first_mut() {
        *examples = 0;
    }
    let bytes = vec![0; shape.iter().product::<usize>() * dtype.size()];
    // Not `put`: what autodiff knows of the batch decides what its backward pass exchanges.
    leaf.set_data(TensorData::from_bytes_vec(bytes, shape, dtype))
}

/// Whether a value has tensors, or data of the host with axes.
fn has_axes(value: &mut dyn Nest) -> Result<bool> {
    let mut found = false;
    value.walk(&NestPath::ROOT, &mut |_, leaf| {
        found |= !leaf.spec().shape.is_empty();
        Ok(())
    })?;
    Ok(found)
}

/// The same error, of the leaf of this number.
pub(crate) fn at_leaf(value: &mut dyn Nest, index: usize, error: Error) -> Error {
    let mut before = index;
    let found = value.walk(&NestPath::ROOT, &mut |path, _| {
        let is_it = before == 0;
        before = before.saturating_sub(1);
        if is_it {
            return Err(error.clone().at(path));
        }
        Ok(())
    });
    found.err().unwrap_or(error)
}

/// The error for replicas that returned values of different structure.
pub(crate) fn different_structure() -> Error {
    Error::invalid("the replicas' values differ in structure: another number of tensors inside")
}

impl<const D: usize, K: Kind> Nest for Tensor<D, K> {
    fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
        visit(path, self)
    }

    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        if let Some(rows) = self.dims().first() {
            key.rows(*rows);
        }
    }

    fn skeleton(&self) -> Option<Self> {
        Some(tracked(Self::placeholder()?, tracking(self)))
    }

    fn placeholder() -> Option<Self> {
        Some(Self::empty([0; D], &Device::flex()))
    }
}

impl Nest for TensorData {
    fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
        visit(path, self)
    }

    fn placeholder() -> Option<Self> {
        Some(TensorData::new(Vec::<f32>::new(), [0]))
    }
}

/// What is built again as it is.
macro_rules! as_it_is {
    () => {
        fn skeleton(&self) -> Option<Self> {
            Some(self.clone())
        }

        fn placeholder() -> Option<Self> {
            Some(Self::default())
        }
    };
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Nest for $type {
            fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
                visit(path, self)
            }

            as_it_is!();
        }
    )*};
}

number!(f32, f64, i32, i64, u8);

/// Counts travel as `i64`: it has a reduction kernel, and its size does not depend on the machine.
macro_rules! count {
    ($($type:ty),*) => {$(
        impl Nest for $type {
            fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
                let mut wide = i64::try_from(*self).map_err(Error::invalid)?;
                visit(path, &mut wide)?;
                *self = Self::try_from(wide).map_err(Error::internal)?;
                Ok(())
            }

            as_it_is!();
        }
    )*};
}

count!(u32, u64, usize);

macro_rules! no_leaves {
    ($($type:ty),*) => {$(
        impl Nest for $type {
            fn walk(&mut self, _: &NestPath<'_>, _: LeafVisitor<'_>) -> Result<()> {
                Ok(())
            }

            fn fingerprint(&self, key: &mut dyn Fingerprint) {
                key.fixed(format_args!("{self:?}"));
            }

            as_it_is!();
        }
    )*};
}

no_leaves!((), String, bool);

macro_rules! tuple {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Nest),+> Nest for ($($name,)+) {
            fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
                $(self.$index.walk(&path.item($index), visit)?;)+
                Ok(())
            }

            fn fingerprint(&self, key: &mut dyn Fingerprint) {
                $(self.$index.fingerprint(key);)+
            }

            fn remove_example(&mut self) -> Result<()> {
                $(self.$index.remove_example()?;)+
                Ok(())
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

/// Values that are walked by their numbers.
macro_rules! items {
    () => {
        fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
            for (index, value) in self.iter_mut().enumerate() {
                value.walk(&path.item(index), visit)?;
            }
            Ok(())
        }

        fn fingerprint(&self, key: &mut dyn Fingerprint) {
            key.fixed(format_args!("{} items", self.len()));
            self.iter().for_each(|value| value.fingerprint(key));
        }
    };
}

impl<T: Nest> Nest for Vec<T> {
    items!();

    fn remove_example(&mut self) -> Result<()> {
        if self.len() == 1 && !has_axes(self)? {
            self.clear();
        }
        self.iter_mut().try_for_each(Nest::remove_example)
    }

    fn skeleton(&self) -> Option<Self> {
        self.iter().map(Nest::skeleton).collect()
    }
}

impl<T: Nest, const N: usize> Nest for [T; N] {
    items!();

    fn remove_example(&mut self) -> Result<()> {
        self.iter_mut().try_for_each(Nest::remove_example)
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
    fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
        self.iter_mut()
            .try_for_each(|value| value.walk(path, visit))
    }

    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        key.fixed(format_args!("{} optional", usize::from(self.is_some())));
        self.iter().for_each(|value| value.fingerprint(key));
    }

    fn remove_example(&mut self) -> Result<()> {
        self.iter_mut().try_for_each(Nest::remove_example)
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
    fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
        let mut values = self.values_mut().enumerate();
        values.try_for_each(|(index, value)| value.walk(&path.item(index), visit))
    }

    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        key.fixed(format_args!("{} entries", self.len()));
        self.values().for_each(|value| value.fingerprint(key));
    }

    fn remove_example(&mut self) -> Result<()> {
        self.values_mut().try_for_each(Nest::remove_example)
    }

    fn skeleton(&self) -> Option<Self> {
        let entries = self
            .iter()
            .map(|(key, value)| Some((key.clone(), value.skeleton()?)));
        entries.collect()
    }
}
