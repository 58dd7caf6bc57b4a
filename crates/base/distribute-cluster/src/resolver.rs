//! What every resolver answers.

use std::collections::BTreeMap;
use std::fmt;

use super::error::shortened;
use super::{ClusterSpec, Result};

/// Accelerators of a worker by type: `{"GPU": 2}`.
pub type Accelerators = BTreeMap<String, usize>;

/// Finds the cluster and the task that this process is (TensorFlow's
/// `tf.distribute.cluster_resolver.ClusterResolver`).
///
/// Answers are worked out at each call, so that a changed environment is seen. Nothing blocks.
pub trait ClusterResolver: fmt::Debug + Send + Sync {
    /// The tasks of the cluster; empty if the process runs by itself.
    ///
    /// # Errors
    ///
    /// Any [`ClusterError`](crate::ClusterError) about the description of the cluster.
    fn cluster_spec(&self) -> Result<ClusterSpec>;

    /// The type of this process' task; `None` if it is not known.
    ///
    /// # Errors
    ///
    /// Any [`ClusterError`](crate::ClusterError) about where it is read from.
    fn task_type(&self) -> Result<Option<String>>;

    /// The index of this process' task within its type; `None` if it is not known.
    ///
    /// # Errors
    ///
    /// Any [`ClusterError`](crate::ClusterError) about where it is read from.
    fn task_id(&self) -> Result<Option<i64>>;

    /// The address of a task for `target`, with the protocol in front (`grpc://host:port`) if
    /// there is one (TensorFlow's `master(task_type, task_id, rpc_layer)`).
    ///
    /// # Errors
    ///
    /// [`NoSuchJob`](crate::ClusterError::NoSuchJob),
    /// [`NoSuchTask`](crate::ClusterError::NoSuchTask), and the errors of the other methods.
    fn master_for(&self, target: &MasterTarget) -> Result<String> {
        own_master(self, target)
    }

    /// [`Self::master_for`] this process' own task.
    ///
    /// # Errors
    ///
    /// As [`Self::master_for`].
    fn master(&self) -> Result<String> {
        self.master_for(&MasterTarget::default())
    }

    /// The number of this process on its host, from 0; `None` if it is not known.
    ///
    /// # Errors
    ///
    /// Any [`ClusterError`](crate::ClusterError) about where it is read from.
    fn local_rank(&self) -> Result<Option<usize>> {
        Ok(None)
    }

    /// The port that this process is to listen on if its address is not known; `None` for any free
    /// one.
    ///
    /// # Errors
    ///
    /// Any [`ClusterError`](crate::ClusterError) about where it is read from.
    fn own_port(&self) -> Result<Option<u16>> {
        Ok(None)
    }

    /// The protocol that addresses are prefixed with; `None` for no prefix.
    ///
    /// # Errors
    ///
    /// Any [`ClusterError`](crate::ClusterError) about where it is read from.
    fn rpc_layer(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// The name of the environment, if the program gave it one.
    fn environment(&self) -> Option<String> {
        Some(String::new())
    }

    /// The accelerators of each worker; empty on a host without, or if it is not known.
    ///
    /// # Errors
    ///
    /// Any [`ClusterError`](crate::ClusterError) about where it is read from.
    fn num_accelerators(&self) -> Result<Accelerators> {
        Ok(Accelerators::new())
    }

    /// Which resolver this is and what it looked at, for people.
    fn describe(&self) -> Description;
}

/// The task whose address is asked for; what is left out is this process' own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MasterTarget {
    /// The task type.
    pub task_type: Option<String>,
    /// The task's index.
    pub task_id: Option<i64>,
    /// The protocol; an empty one is none.
    pub rpc_layer: Option<String>,
}

impl MasterTarget {
    /// The task of this type and index.
    pub fn task(task_type: impl Into<String>, task_id: i64) -> Self {
        Self {
            task_type: Some(task_type.into()),
            task_id: Some(task_id),
            rpc_layer: None,
        }
    }

    /// The address, preceded by the given protocol, else by the resolver's.
    pub(super) fn url(&self, address: &str, own_layer: Option<String>) -> String {
        let asked = self.rpc_layer.clone().filter(|layer| !layer.is_empty());
        master_url(address, asked.or(own_layer).as_deref())
    }
}

/// Which resolver was used, what it read and what replaced it. `Display` is one line, without the
/// JSON of `TF_CONFIG`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The resolver's name, such as `SLURM`.
    pub resolver: &'static str,
    /// The variables that are set among those it reads, with their values.
    pub variables: Vec<(String, String)>,
    /// What the program or a flag gave instead, such as `task_id` and `1`.
    pub overrides: Vec<(&'static str, String)>,
}

impl Description {
    /// A description in which nothing is replaced.
    pub(super) fn new(resolver: &'static str, variables: Vec<(String, String)>) -> Self {
        Self {
            resolver,
            variables,
            overrides: Vec::new(),
        }
    }

    /// Adds what was given for `name`, if anything was.
    pub(super) fn given(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        let given = value.map(|value| (name, value.to_string()));
        self.overrides.extend(given);
        self
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.resolver)?;
        // A variable that the resolver is called after has been named, and holds the whole cluster.
        let others = self
            .variables
            .iter()
            .filter(|(name, _)| name != self.resolver);
        for (place, (name, value)) in others.enumerate() {
            let start = if place == 0 { ": " } else { ", " };
            write!(f, "{start}{name}={}", shortened(value))?;
        }
        for (place, (name, value)) in self.overrides.iter().enumerate() {
            let start = if place == 0 { "; given: " } else { ", " };
            write!(f, "{start}{name}={}", shortened(value))?;
        }
        Ok(())
    }
}

/// The address with a protocol in front, unless that is empty.
pub(super) fn master_url(address: &str, rpc_layer: Option<&str>) -> String {
    match rpc_layer {
        Some(layer) if !layer.is_empty() => format!("{layer}://{address}"),
        _ => address.to_string(),
    }
}

/// The given value, else the detected one.
pub(super) fn given_or<T>(
    given: Option<T>,
    read: impl FnOnce() -> Result<Option<T>>,
) -> Result<Option<T>> {
    given.map_or_else(read, |given| Ok(Some(given)))
}

/// What resolvers that know their own task answer: the address of the task asked for, else of
/// the own one, and nothing if that is not known either.
pub(super) fn own_master(
    resolver: &(impl ClusterResolver + ?Sized),
    target: &MasterTarget,
) -> Result<String> {
    let task_type = given_or(target.task_type.clone(), || resolver.task_type())?;
    let task_id = given_or(target.task_id, || resolver.task_id())?;
    let (Some(task_type), Some(task_id)) = (task_type, task_id) else {
        return Ok(String::new());
    };
    let spec = resolver.cluster_spec()?;
    let address = spec.task_address(&task_type, task_id)?;
    Ok(target.url(address, resolver.rpc_layer()?))
}
