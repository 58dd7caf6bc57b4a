//! Handles of what every worker builds for itself.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// A handle of a value that every worker builds for itself, by
/// [`StepRegistry::resource`](super::StepRegistry::resource). Steps capture it.
pub struct Resource<T> {
    name: Arc<str>,
    marker: PhantomData<fn() -> T>,
}

impl<T> Resource<T> {
    pub(crate) fn named(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            marker: PhantomData,
        }
    }

    /// The registered name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<T> Clone for Resource<T> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            marker: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Resource<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource({:?})", self.name)
    }
}
