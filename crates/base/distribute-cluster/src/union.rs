//! Several clusters as one.

use indexmap::IndexMap;

use super::resolver::given_or;
use super::spec::{Addresses, is_dense};
use super::{
    Accelerators, ClusterError, ClusterResolver, ClusterSpec, Description, MasterTarget, Result,
};

/// The tasks of several resolvers together (TensorFlow's `UnionResolver`). Everything but the
/// cluster comes from the first one, unless it is given.
///
/// Equal jobs are joined: lists one after the other; if any of them has gaps, all keep their
/// indices, and equal ones are an error.
#[derive(Debug)]
#[must_use]
pub struct UnionResolver {
    resolvers: Vec<Box<dyn ClusterResolver>>,
    task_type: Option<String>,
    task_id: Option<i64>,
    rpc_layer: Option<String>,
}

impl UnionResolver {
    /// Unites these resolvers.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoResolvers`] if there are none.
    pub fn new(resolvers: Vec<Box<dyn ClusterResolver>>) -> Result<Self> {
        if resolvers.is_empty() {
            return Err(ClusterError::NoResolvers);
        }
        Ok(Self {
            resolvers,
            task_type: None,
            task_id: None,
            rpc_layer: None,
        })
    }

    /// The task type, whatever the first resolver says.
    pub fn task_type(mut self, task_type: impl Into<String>) -> Self {
        self.task_type = Some(task_type.into());
        self
    }

    /// The task's index, whatever the first resolver says. As in TensorFlow, 0 leaves the
    /// decision to the first resolver.
    pub fn task_id(mut self, task_id: i64) -> Self {
        self.task_id = Some(task_id);
        self
    }

    /// The protocol, whatever the first resolver says.
    pub fn rpc_layer(mut self, rpc_layer: impl Into<String>) -> Self {
        self.rpc_layer = Some(rpc_layer.into());
        self
    }
}

impl ClusterResolver for UnionResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec> {
        let mut jobs: IndexMap<String, Vec<Addresses>> = IndexMap::new();
        for resolver in &self.resolvers {
            for (job, tasks) in resolver.cluster_spec()?.tasks() {
                jobs.entry(job.to_string()).or_default().push(tasks.clone());
            }
        }
        let mut united = Vec::new();
        for (job, parts) in jobs {
            let tasks = unite(&job, parts)?;
            united.push((job, tasks));
        }
        ClusterSpec::partly_known(united)
    }

    fn task_type(&self) -> Result<Option<String>> {
        let given = self.task_type.clone().filter(|name| !name.is_empty());
        given_or(given, || self.resolvers[0].task_type())
    }

    fn task_id(&self) -> Result<Option<i64>> {
        let given = self.task_id.filter(|&task_id| task_id != 0);
        given_or(given, || self.resolvers[0].task_id())
    }

    fn master_for(&self, target: &MasterTarget) -> Result<String> {
        let (Some(job), Some(index)) = (&target.task_type, target.task_id) else {
            return self.resolvers[0].master_for(&MasterTarget {
                rpc_layer: target.rpc_layer.clone(),
                ..MasterTarget::default()
            });
        };
        let spec = self.cluster_spec()?;
        Ok(target.url(spec.task_address(job, index)?, self.rpc_layer.clone()))
    }

    fn rpc_layer(&self) -> Result<Option<String>> {
        let given = self.rpc_layer.clone().filter(|layer| !layer.is_empty());
        given_or(given, || self.resolvers[0].rpc_layer())
    }

    fn environment(&self) -> Option<String> {
        self.resolvers[0].environment()
    }

    fn num_accelerators(&self) -> Result<Accelerators> {
        self.resolvers[0].num_accelerators()
    }

    fn describe(&self) -> Description {
        let mut union = Description::new("union", Vec::new());
        for part in self.resolvers.iter().map(|resolver| resolver.describe()) {
            union.variables.extend(part.variables);
            union.overrides.extend(part.overrides);
        }
        union
            .given("task_type", self.task_type.as_ref())
            .given("task_id", self.task_id)
            .given("rpc_layer", self.rpc_layer.as_ref())
    }
}

/// The tasks of one job in several clusters.
fn unite(job: &str, parts: Vec<Addresses>) -> Result<Addresses> {
    let has_gaps = parts.iter().any(|tasks| !is_dense(tasks));
    let mut united = Addresses::new();
    for tasks in parts {
        let first = if has_gaps { 0 } else { united.len() as i64 };
        for (index, address) in tasks {
            let index = index.saturating_add(first);
            if united.insert(index, address).is_some() {
                let job = job.to_string();
                return Err(ClusterError::DuplicateTask { job, index });
            }
        }
    }
    Ok(united)
}
