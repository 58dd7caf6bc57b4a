//! What a flag says wins over what was detected.

use super::{
    Accelerators, ClusterError, ClusterKind, ClusterResolver, ClusterSpec, Description,
    MasterTarget,
};

/// What to use instead of what is detected. Everything is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The resolver to use, whatever the environment looks like.
    pub kind: Option<ClusterKind>,
    /// The cluster.
    pub cluster_spec: Option<ClusterSpec>,
    /// The task type.
    pub task_type: Option<String>,
    /// The task's index.
    pub task_id: Option<i64>,
    /// The protocol.
    pub rpc_layer: Option<String>,
    /// The first port, where the resolver chooses ports.
    pub port_base: Option<u16>,
}

/// A resolver with parts of its answers replaced.
#[derive(Debug)]
pub struct Overridden {
    inner: Box<dyn ClusterResolver>,
    overrides: Overrides,
}

impl Overridden {
    /// Replaces what `overrides` has; its `kind` and `port_base` are the business of
    /// [`super::detect_with`].
    pub fn new(inner: Box<dyn ClusterResolver>, overrides: Overrides) -> Self {
        Self { inner, overrides }
    }
}

impl ClusterResolver for Overridden {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        let given = self.overrides.cluster_spec.clone();
        given.map_or_else(|| self.inner.cluster_spec(), Ok)
    }

    fn task_type(&self) -> Result<Option<String>, ClusterError> {
        let given = self.overrides.task_type.clone();
        given.map_or_else(|| self.inner.task_type(), |task_type| Ok(Some(task_type)))
    }

    fn task_id(&self) -> Result<Option<i64>, ClusterError> {
        let given = self.overrides.task_id;
        given.map_or_else(|| self.inner.task_id(), |task_id| Ok(Some(task_id)))
    }

    fn master_for(&self, target: &MasterTarget) -> Result<String, ClusterError> {
        if self.overrides.cluster_spec.is_some() {
            return super::resolver::own_master(self, target);
        }
        let own = &self.overrides;
        self.inner.master_for(&MasterTarget {
            task_type: target.task_type.clone().or_else(|| own.task_type.clone()),
            task_id: target.task_id.or(own.task_id),
            rpc_layer: target.rpc_layer.clone().or_else(|| own.rpc_layer.clone()),
        })
    }

    fn rpc_layer(&self) -> Result<Option<String>, ClusterError> {
        let given = self.overrides.rpc_layer.clone();
        given.map_or_else(|| self.inner.rpc_layer(), |layer| Ok(Some(layer)))
    }

    fn environment(&self) -> Option<String> {
        self.inner.environment()
    }

    fn num_accelerators(&self) -> Result<Accelerators, ClusterError> {
        self.inner.num_accelerators()
    }

    fn describe(&self) -> Description {
        let own = &self.overrides;
        let description = self.inner.describe();
        description
            .given("cluster", own.cluster_spec.as_ref())
            .given("task_type", own.task_type.as_ref())
            .given("task_id", own.task_id)
            .given("rpc_layer", own.rpc_layer.as_ref())
    }
}
