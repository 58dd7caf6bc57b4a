//! Several clusters as one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::resolver::master_url;
use super::{
    Accelerators, ClusterError, ClusterResolver, ClusterSpec, Description, MasterTarget, Tasks,
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
    pub fn new(resolvers: Vec<Box<dyn ClusterResolver>>) -> Result<Self, ClusterError> {
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

    fn own_layer(&self) -> Option<String> {
        self.rpc_layer.clone().filter(|layer| !layer.is_empty())
    }
}

impl ClusterResolver for UnionResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        let mut order: Vec<String> = Vec::new();
        let mut parts: BTreeMap<String, Vec<Tasks>> = BTreeMap::new();
        for resolver in &self.resolvers {
            let spec = resolver.cluster_spec()?;
            let mut jobs = spec.as_dict();
            for job in spec.jobs() {
                let tasks = jobs.remove(job);
                match parts.entry(job.to_string()) {
                    Entry::Occupied(mut entry) => entry.get_mut().extend(tasks),
                    Entry::Vacant(entry) => {
                        order.push(job.to_string());
                        entry.insert(tasks.into_iter().collect());
                    }
                }
            }
        }
        let mut united = Vec::new();
        for job in order {
            let tasks = unite(&job, parts.remove(&job).unwrap_or_default())?;
            united.push((job, tasks));
        }
        ClusterSpec::sparse(united)
    }

    fn task_type(&self) -> Result<Option<String>, ClusterError> {
        match self
            .task_type
            .clone()
            .filter(|task_type| !task_type.is_empty())
        {
            Some(task_type) => Ok(Some(task_type)),
            None => self.resolvers[0].task_type(),
        }
    }

    fn task_id(&self) -> Result<Option<i64>, ClusterError> {
        match self.task_id.filter(|&task_id| task_id != 0) {
            Some(task_id) => Ok(Some(task_id)),
            None => self.resolvers[0].task_id(),
        }
    }

    fn master_for(&self, target: &MasterTarget) -> Result<String, ClusterError> {
        let (Some(job), Some(index)) = (&target.task_type, target.task_id) else {
            return self.resolvers[0].master_for(&MasterTarget {
                rpc_layer: target.rpc_layer.clone(),
                ..MasterTarget::default()
            });
        };
        let spec = self.cluster_spec()?;
        let layer = target.rpc_layer.clone().filter(|layer| !layer.is_empty());
        let layer = layer.or_else(|| self.own_layer());
        Ok(master_url(spec.task_address(job, index)?, layer.as_deref()))
    }

    fn rpc_layer(&self) -> Result<Option<String>, ClusterError> {
        self.own_layer()
            .map_or_else(|| self.resolvers[0].rpc_layer(), |layer| Ok(Some(layer)))
    }

    fn environment(&self) -> Option<String> {
        self.resolvers[0].environment()
    }

    fn num_accelerators(&self) -> Result<Accelerators, ClusterError> {
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
fn unite(job: &str, parts: Vec<Tasks>) -> Result<Vec<(i64, String)>, ClusterError> {
    let has_gaps = parts.iter().any(|tasks| matches!(tasks, Tasks::Sparse(_)));
    let mut united: BTreeMap<i64, String> = BTreeMap::new();
    let mut next = 0;
    for tasks in parts {
        let tasks: Vec<(i64, String)> = match tasks {
            Tasks::Dense(list) => (next..).zip(list).collect(),
            Tasks::Sparse(map) => map.into_iter().collect(),
        };
        if !has_gaps {
            next += i64::try_from(tasks.len()).unwrap_or(i64::MAX);
        }
        for (index, address) in tasks {
            if united.insert(index, address).is_some() {
                return Err(ClusterError::DuplicateTask {
                    job: job.to_string(),
                    index,
                });
            }
        }
    }
    Ok(united.into_iter().collect())
}
