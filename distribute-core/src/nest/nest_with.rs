//! Values of other crates' types, which cannot derive [`Nest`]: [`NestWith`].

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::{LeafVisitor, Nest, NestPath};
use crate::Result;
use crate::trace::Fingerprint;

/// What is called with the name of each field of a value, and the field.
pub type FieldVisitor<'a> = &'a mut dyn FnMut(&str, &mut dyn Nest) -> Result<()>;

/// A value of a type of another crate, with the function that names its fields
/// (JAX: `register_pytree_node`): `#[derive(Nest)]` is only possible for types of your own.
///
/// The function visits every tensor, number and list that has one entry for each example, always
/// in the same order. What it leaves out stays as it is: it is neither emptied for a replica
/// without examples nor reduced nor gathered, and a step that is compiled does not see it change.
///
/// A step that is handed the wrapper reads the fields through it (`batch.images`), and takes the
/// value out with [`into_inner`](Self::into_inner).
///
/// ```
/// use distribute_core::prelude::*;
///
/// mod other_crate {
///     #[derive(Clone, Debug)]
///     pub struct Batch {
///         pub images: distribute_core::Tensor<2>,
///         pub names: Vec<String>,
///     }
/// }
///
/// fn nest(batch: other_crate::Batch) -> NestWith<other_crate::Batch> {
///     NestWith::new(batch, |batch, field| {
///         field("images", &mut batch.images)?;
///         field("names", &mut batch.names)
///     })
/// }
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let part = |rows: usize| other_crate::Batch {
///     images: Tensor::ones([rows, 3], &strategy.replicas()[0].device),
///     names: vec!["a.png".to_string(); rows],
/// };
/// let batch = PerReplica::new(vec![nest(part(2)), nest(part(1))]);
/// let sums = strategy.run(batch, |_, batch| {
///     assert_eq!(batch.images.dims()[0], batch.names.len());
///     Ok(batch.into_inner().images.sum())
/// })?;
/// assert_eq!(strategy.reduce(ReduceOp::Sum, sums)?.into_scalar::<f32>(), 9.0);
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub struct NestWith<T> {
    value: T,
    fields: fn(&mut T, FieldVisitor<'_>) -> Result<()>,
}

impl<T> NestWith<T> {
    /// A value whose fields `fields` visits: a function, or a closure that captures nothing. It
    /// returns the errors of the visitor.
    pub fn new(value: T, fields: fn(&mut T, FieldVisitor<'_>) -> Result<()>) -> Self {
        Self { value, fields }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value
    }

    fn visit(&mut self, visit: FieldVisitor<'_>) -> Result<()> {
        (self.fields)(&mut self.value, visit)
    }
}

/// Walks the fields by their names.
impl<T: Clone> Nest for NestWith<T> {
    fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
        self.visit(&mut |name, field| field.walk(&path.field(name), visit))
    }

    /// A copy whose tensors are empty.
    fn skeleton(&self) -> Option<Self> {
        let mut copy = self.clone();
        let emptied = copy.walk(&NestPath::ROOT, &mut |_, leaf| {
            if let Some(tensor) = leaf.tensor() {
                tensor.clear();
            }
            Ok(())
        });
        emptied.is_ok().then_some(copy)
    }

    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        // The function wants to be able to change the value; what it refuses, `walk` reports.
        let _ = self.clone().visit(&mut |_, field| {
            field.fingerprint(key);
            Ok(())
        });
    }

    fn remove_example(&mut self) -> Result<()> {
        self.visit(&mut |_, field| field.remove_example())
    }
}

impl<T: Clone> Clone for NestWith<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            fields: self.fields,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for NestWith<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T> Deref for NestWith<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for NestWith<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
