//! Flags override detected values.

use super::resolver::{given_or, own_master};
use super::{
    Accelerators, ClusterKind, ClusterResolver, ClusterSpec, Description, MasterTarget, Result,
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
    /// Where rank 0 listens and the others meet it, `HOST:PORT`, whatever the launcher says of it:
    /// for launchers that number the processes and list no addresses.
    pub rendezvous: Option<String>,
}

/// A resolver with parts of its answers replaced.
#[derive(Debug)]
pub struct Overridden {
    inner: Box<dyn ClusterResolver>,
    /// What is replaced. Its `kind`, `port_base` and `rendezvous` are the business of
    /// [`super::detect_with`].
    pub overrides: Overrides,
}

impl Overridden {
    /// Replaces what `overrides` has.
    pub fn new(inner: Box<dyn ClusterResolver>, overrides: Overrides) -> Self {
        Self { inner, overrides }
    }
}

impl ClusterResolver for Overridden {
    fn cluster_spec(&self) -> Result<ClusterSpec> {
        let given = self.overrides.cluster_spec.clone();
        given.map_or_else(|| self.inner.cluster_spec(), Ok)
    }

    fn task_type(&self) -> Result<Option<String>> {
        let given = self.overrides.task_type.clone();
        given_or(given, || self.inner.task_type())
    }

    fn task_id(&self) -> Result<Option<i64>> {
        given_or(self.overrides.task_id, || self.inner.task_id())
    }

    fn master_for(&self, target: &MasterTarget) -> Result<String> {
        if self.overrides.cluster_spec.is_some() {
            return own_master(self, target);
        }
        let own = &self.overrides;
        self.inner.master_for(&MasterTarget {
            task_type: target.task_type.clone().or_else(|| own.task_type.clone()),
            task_id: target.task_id.or(own.task_id),
            rpc_layer: target.rpc_layer.clone().or_else(|| own.rpc_layer.clone()),
        })
    }

    fn local_rank(&self) -> Result<Option<usize>> {
        self.inner.local_rank()
    }

    fn own_port(&self) -> Result<Option<u16>> {
        self.inner.own_port()
    }

    fn rpc_layer(&self) -> Result<Option<String>> {
        let given = self.overrides.rpc_layer.clone();
        given_or(given, || self.inner.rpc_layer())
    }

    fn environment(&self) -> Option<String> {
        self.inner.environment()
    }

    fn num_accelerators(&self) -> Result<Accelerators> {
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
