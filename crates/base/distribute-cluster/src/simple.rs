//! A cluster that the program itself describes.

use super::{Accelerators, ClusterResolver, ClusterSpec, Description, MasterTarget, Result};

/// Answers what it was given (TensorFlow's `SimpleClusterResolver`).
///
/// ```
/// use distribute_cluster::{Cluster, ClusterSpec, SimpleResolver};
///
/// let spec = ClusterSpec::new([("worker", ["a:1", "b:1"])])?;
/// let resolver = SimpleResolver::new(spec).task_type("worker").task_id(1);
/// let cluster = Cluster::resolve(&resolver)?.expect("the cluster has jobs");
/// assert_eq!(cluster.rank(), Some(1));
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct SimpleResolver {
    spec: ClusterSpec,
    master: String,
    task_type: Option<String>,
    task_id: Option<i64>,
    environment: String,
    accelerators: Accelerators,
    rpc_layer: Option<String>,
}

impl SimpleResolver {
    /// A resolver for this cluster. The default one is for a process by itself.
    pub fn new(spec: ClusterSpec) -> Self {
        Self {
            spec,
            ..Self::default()
        }
    }

    /// The task type of this process.
    pub fn task_type(mut self, task_type: impl Into<String>) -> Self {
        self.task_type = Some(task_type.into());
        self
    }

    /// The index of this process' task.
    pub fn task_id(mut self, task_id: i64) -> Self {
        self.task_id = Some(task_id);
        self
    }

    /// What [`ClusterResolver::master`] answers when no task is asked for.
    pub fn master(mut self, master: impl Into<String>) -> Self {
        self.master = master.into();
        self
    }

    /// The protocol.
    pub fn rpc_layer(mut self, rpc_layer: impl Into<String>) -> Self {
        self.rpc_layer = Some(rpc_layer.into());
        self
    }

    /// The name of the environment.
    pub fn environment(mut self, environment: impl Into<String>) -> Self {
        self.environment = environment.into();
        self
    }

    /// The accelerators of each worker.
    pub fn accelerators(mut self, accelerators: Accelerators) -> Self {
        self.accelerators = accelerators;
        self
    }
}

impl ClusterResolver for SimpleResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec> {
        Ok(self.spec.clone())
    }

    fn task_type(&self) -> Result<Option<String>> {
        Ok(self.task_type.clone())
    }

    fn task_id(&self) -> Result<Option<i64>> {
        Ok(self.task_id)
    }

    /// The address of the task asked for if both its type and index are given, else the master
    /// given to the resolver: not this process' own task.
    fn master_for(&self, target: &MasterTarget) -> Result<String> {
        let master = match (&target.task_type, target.task_id) {
            (Some(job), Some(index)) => self.spec.task_address(job, index)?,
            _ => &self.master,
        };
        Ok(target.url(master, self.rpc_layer.clone()))
    }

    fn rpc_layer(&self) -> Result<Option<String>> {
        Ok(self.rpc_layer.clone())
    }

    fn environment(&self) -> Option<String> {
        Some(self.environment.clone())
    }

    fn num_accelerators(&self) -> Result<Accelerators> {
        Ok(self.accelerators.clone())
    }

    fn describe(&self) -> Description {
        let spec = (!self.spec.is_empty()).then_some(&self.spec);
        let resolver = match spec {
            Some(_) => "given by the program",
            None => "one process",
        };
        Description::new(resolver, Vec::new())
            .given("cluster", spec)
            .given("task_type", self.task_type.as_ref())
            .given("task_id", self.task_id)
            .given("rpc_layer", self.rpc_layer.as_ref())
    }
}
