//! What a program registers by name, the same in every process: steps, resources and datasets.

use std::any::{Any, TypeId, type_name};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use distribute_core::Configuration;
use parking_lot::ReentrantMutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::WorkerContext;
use super::resource::Resource;
use crate::error::{PsError, Result};
use crate::strategy::ParameterServerStrategy;
use crate::value;

/// The longest name of a step, resource or dataset, in bytes.
const NAME_MAX_BYTES: usize = 256;

/// Makes the coordinator's value.
pub(super) type Make =
    dyn Fn(&ParameterServerStrategy) -> Result<Box<dyn Any + Send>> + Send + Sync;

/// The coordinator's values, which a thread may use one at a time, and not within itself.
pub(crate) type SharedValues = BTreeMap<String, ReentrantMutex<RefCell<Box<dyn Any + Send>>>>;

/// Runs a step on encoded arguments, for its encoded result.
type Call = dyn Fn(&WorkerContext, &[u8]) -> Result<Vec<u8>> + Send + Sync;

/// A registered step.
pub(crate) struct Step {
    /// The type of its arguments, and its name for messages.
    arguments: TypeId,
    arguments_name: &'static str,
    /// Whether bytes can be its arguments.
    check: fn(&[u8]) -> Result<(), String>,
    pub(crate) call: Box<Call>,
}

/// The steps, resources and datasets of a program (what TensorFlow does by sending graphs).
///
/// Closures do not travel between processes: coordinator and workers are the same program, which
/// registers the same names in each of them, and a closure travels as a name with arguments.
///
/// ```
/// use distribute_ps::worker::{StepRegistry, WorkerContext};
///
/// let mut registry = StepRegistry::new();
/// registry.step("add", |_: &WorkerContext, (a, b): (i32, i32)| Ok(a + b))?;
/// assert!(registry.step("add", |_: &WorkerContext, (): ()| Ok(())).is_err());
/// # Ok::<(), distribute_ps::PsError>(())
/// ```
#[derive(Default)]
pub struct StepRegistry {
    steps: BTreeMap<String, Step>,
    /// The names of what workers build.
    resources: BTreeSet<Arc<str>>,
    /// What the coordinator makes, in the order of registration.
    pub(super) shared: Vec<(String, Box<Make>)>,
    /// How many of these are embedding tables, which have names of their own kind.
    pub(crate) tables: usize,
    configuration: Configuration,
}

impl StepRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a step: what [`schedule`](crate::ClusterCoordinator::schedule) runs on a worker.
    ///
    /// Arguments and result are serde values, nested 128 levels at most, tensors among them as
    /// [`HostTensor`](crate::HostTensor). A worker runs one step at a time, on the thread that
    /// called [`serve`](crate::worker::WorkerServer::serve). When its worker is lost, a closure
    /// runs again from its beginning on another one; updates of variables are applied once all the
    /// same, if the step makes them in the same order.
    ///
    /// # Errors
    /// [`PsError::AlreadyRegistered`], [`PsError::InvalidArgument`] for an empty or very long
    /// name.
    pub fn step<A, R, F>(&mut self, name: impl Into<String>, step: F) -> Result<()>
    where
        A: DeserializeOwned + 'static,
        R: Serialize,
        F: Fn(&WorkerContext, A) -> Result<R> + Send + Sync + 'static,
    {
        let name = checked("step", name.into(), |name| self.steps.contains_key(name))?;
        let call = move |worker: &WorkerContext, bytes: &[u8]| {
            let arguments = value::decode::<A>(bytes)
                .map_err(|reason| worker.wrong_arguments(type_name::<A>(), reason))?;
            let result = step(worker, arguments)?;
            value::encode(&result).map_err(|reason| {
                let step = worker.step();
                PsError::invalid(format!(
                    "the result of step `{step}` cannot be sent: {reason}"
                ))
            })
        };
        let step = Step {
            arguments: TypeId::of::<A>(),
            arguments_name: type_name::<A>(),
            check: |bytes| value::decode::<A>(bytes).map(drop),
            call: Box::new(call),
        };
        self.steps.insert(name, step);
        Ok(())
    }

    /// Registers a value that each worker builds for itself when a step first asks for it
    /// ([`WorkerContext::resource`]): a connection, a local copy of a model. A worker that was
    /// restarted, or that works for another coordinator, builds it anew.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn resource<T, F>(&mut self, name: impl Into<String>, build: F) -> Result<Resource<T>>
    where
        T: Send + 'static,
        F: Fn(&WorkerContext) -> Result<T> + Send + Sync + 'static,
    {
        self.add(Resource::new(name.into(), build))
    }

    /// Takes a handle's name.
    pub(super) fn add<T, K>(&mut self, resource: Resource<T, K>) -> Result<Resource<T, K>> {
        let known = |name: &str| self.resources.contains(name);
        let name = checked("resource", resource.name().to_string(), known)?;
        self.resources.insert(name.into());
        Ok(resource)
    }

    /// Adds settings that coordinator and workers must have the same, such as what decides the
    /// data, the model and the updates. They are compared by name when a worker is met: if they
    /// differ, both end with
    /// [`DifferentConfigurations`](distribute_core::Error::DifferentConfigurations).
    pub fn configuration(&mut self, settings: &Configuration) {
        self.configuration.extend(settings);
    }

    /// What was added with [`configuration`](Self::configuration).
    pub(crate) fn settings(&self) -> &Configuration {
        &self.configuration
    }

    /// The names of all steps, sorted.
    pub fn step_names(&self) -> impl Iterator<Item = &str> {
        self.steps.keys().map(String::as_str)
    }

    /// The coordinator's shared values, made in the order of registration.
    pub(crate) fn make_shared(&self, strategy: &ParameterServerStrategy) -> Result<SharedValues> {
        let make = |(name, make): &(String, Box<Make>)| {
            let value = ReentrantMutex::new(RefCell::new(make(strategy)?));
            Ok((name.clone(), value))
        };
        self.shared.iter().map(make).collect()
    }

    /// The step of this name.
    ///
    /// # Errors
    /// [`PsError::Unregistered`].
    pub(crate) fn find(&self, name: &str) -> Result<&Step> {
        let unknown = || {
            let known: Vec<&str> = self.step_names().take(20).collect();
            PsError::Unregistered {
                kind: "step",
                name: name.chars().take(NAME_MAX_BYTES).collect(),
                known: if known.is_empty() {
                    "none".to_string()
                } else {
                    known.join(", ")
                },
            }
        };
        self.steps.get(name).ok_or_else(unknown)
    }
}

impl Step {
    /// Whether these bytes, made of an `A`, can be the step's arguments: at once, where they are
    /// scheduled.
    pub(crate) fn check<A>(&self, step: &str, bytes: &[u8]) -> Result<()> {
        if self.arguments == typeid::of::<A>() {
            return Ok(());
        }
        (self.check)(bytes).map_err(|reason| PsError::WrongArguments {
            step: step.to_string(),
            expected: self.arguments_name.to_string(),
            found: type_name::<A>().to_string(),
            reason,
        })
    }
}

impl fmt::Debug for StepRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<&str> = self.step_names().collect();
        let mut shown = f.debug_struct("StepRegistry");
        shown
            .field("steps", &steps)
            .field("resources", &self.resources);
        shown.finish()
    }
}

fn checked(kind: &'static str, name: String, known: impl Fn(&str) -> bool) -> Result<String> {
    if name.is_empty() || name.len() > NAME_MAX_BYTES {
        let bytes = name.len();
        return Err(PsError::invalid(format!(
            "the name of a {kind} has 1 to {NAME_MAX_BYTES} bytes, not {bytes}"
        )));
    }
    if known(&name) {
        Err(PsError::AlreadyRegistered { kind, name })
    } else {
        Ok(name)
    }
}
