//! What every worker builds for itself, and its handles.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::context::{RunSession, WorkerContext};
use crate::error::{PsError, Result};

type Build<T> = dyn Fn(&WorkerContext) -> Result<T> + Send + Sync;

/// Marks handles of values that only workers have.
#[derive(Debug)]
pub enum OnWorkers {}

/// A handle of a value that every worker builds for itself, by
/// [`StepRegistry::resource`](super::StepRegistry::resource). Steps capture it. `K` tells it from
/// handles of values that the coordinator has too ([`SharedValue`](super::SharedValue)).
pub struct Resource<T, K = OnWorkers> {
    name: Arc<str>,
    build: Arc<Build<T>>,
    kind: PhantomData<fn() -> K>,
}

impl<T, K> Resource<T, K> {
    pub(crate) fn new(
        name: impl Into<Arc<str>>,
        build: impl Fn(&WorkerContext) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            build: Arc::new(build),
            kind: PhantomData,
        }
    }

    /// A handle that nothing is built by.
    pub(crate) fn unregistered(name: impl Into<Arc<str>>) -> Self {
        let name = name.into();
        let of_error = name.to_string();
        Self::new(name, move |_| {
            Err(PsError::Unregistered {
                kind: "resource",
                name: of_error.clone(),
                known: "none".to_string(),
            })
        })
    }

    /// The registered name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<T, K> Clone for Resource<T, K> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            build: self.build.clone(),
            kind: PhantomData,
        }
    }
}

impl<T, K> fmt::Debug for Resource<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource({:?})", self.name)
    }
}

impl WorkerContext {
    /// This worker's value of a resource, built now if this is the first use of it. A value that
    /// was held when its step panicked is built again.
    ///
    /// # Errors
    /// The errors of building it; [`PsError::InvalidArgument`] if this step holds it already.
    pub fn resource<T: Send + 'static, K>(
        &self,
        resource: &Resource<T, K>,
    ) -> Result<ResourceGuard<'_, T>> {
        let (session, name) = (self.session(), resource.name.clone());
        let taken = match session.resources().get_mut(&name) {
            Some(value) => {
                let in_use = || PsError::invalid(format!("`{name}` is in use by this step"));
                Some(value.take().ok_or_else(in_use)?)
            }
            None => None,
        };
        let other = |_| PsError::invalid(format!("`{name}` is a resource of another type"));
        let value = match taken {
            Some(value) => value.downcast::<T>().map_err(other)?,
            None => Box::new((resource.build)(self)?),
        };
        session.resources().insert(name.clone(), None);
        Ok(ResourceGuard {
            session,
            name,
            value: Some(value),
        })
    }
}

/// A resource in the hands of a step.
pub struct ResourceGuard<'a, T: Send + 'static> {
    session: &'a RunSession,
    name: Arc<str>,
    /// Absent only while it is dropped.
    value: Option<Box<T>>,
}

impl<T: Send + 'static> Deref for ResourceGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.value {
            Some(value) => value,
            None => unreachable!("it is taken by `drop` only"),
        }
    }
}

impl<T: Send + 'static> DerefMut for ResourceGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.value {
            Some(value) => value,
            None => unreachable!("it is taken by `drop` only"),
        }
    }
}

impl<T: Send + 'static> Drop for ResourceGuard<'_, T> {
    fn drop(&mut self) {
        let name = self.name.clone();
        let mut resources = self.session.resources();
        if std::thread::panicking() {
            // The value may be half changed.
            resources.remove(&name);
        } else if let Some(value) = self.value.take() {
            resources.insert(name, Some(value));
        }
    }
}

impl<T: Send + fmt::Debug> fmt::Debug for ResourceGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
