//! A cluster and this process' place in it, checked once.

use super::{
    ClusterError, ClusterResolver, ClusterSpec, Result, TaskType, addresses, id_in_cluster,
    is_chief, validate, worker_count,
};

/// A cluster, and the task in it that this process is.
///
/// Everything was checked: task types are the four there are, tasks are numbered 0, 1, 2, ...,
/// there is at most one chief and one evaluator, and this task exists (an evaluator may be
/// outside).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    spec: ClusterSpec,
    task_type: TaskType,
    task_id: usize,
    rpc_layer: Option<String>,
    local_rank: Option<usize>,
    own_port: Option<u16>,
}

impl Cluster {
    /// Asks a resolver and checks what it says; `None` if there is no cluster, so that the
    /// process runs by itself.
    ///
    /// # Errors
    ///
    /// The errors of the resolver and of [`validate`], [`ClusterError::TaskTypeMissing`],
    /// [`ClusterError::TaskIdMissing`], [`ClusterError::NegativeTaskId`],
    /// [`ClusterError::EmptyJob`] and [`ClusterError::SparseJob`]; [`ClusterError::Address`] for
    /// an address that cannot be right.
    pub fn resolve(resolver: &dyn ClusterResolver) -> Result<Option<Self>> {
        let spec = resolver.cluster_spec()?;
        if spec.is_empty() {
            return Ok(None);
        }
        let name = resolver.task_type()?.ok_or(ClusterError::TaskTypeMissing)?;
        let id = resolver.task_id()?;
        validate(&spec, Some(&name), id)?;
        let task_type: TaskType = name.parse()?;
        let id = id.ok_or_else(|| ClusterError::TaskIdMissing {
            task_type: name.clone(),
        })?;
        let task_id = usize::try_from(id).map_err(|_| ClusterError::NegativeTaskId {
            task_type: name,
            task_id: id,
        })?;
        for job in spec.jobs() {
            spec.job_tasks(job)?;
            let mut places = (0..).zip(spec.task_indices(job)?);
            if let Some((_, index)) = places.find(|(place, index)| place != index) {
                let job = job.to_string();
                return Err(ClusterError::SparseJob { job, index });
            }
        }
        addresses::check(&spec, task_type, task_id, &resolver.describe())?;
        let rpc_layer = resolver.rpc_layer()?.filter(|layer| !layer.is_empty());
        Ok(Some(Self {
            spec,
            task_type,
            task_id,
            rpc_layer,
            local_rank: resolver.local_rank()?,
            own_port: resolver.own_port()?,
        }))
    }

    /// The tasks of the cluster.
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// This task's type.
    pub fn task_type(&self) -> TaskType {
        self.task_type
    }

    /// This task's index within its type.
    pub fn task_id(&self) -> usize {
        self.task_id
    }

    /// The protocol, if one was given.
    pub fn rpc_layer(&self) -> Option<&str> {
        self.rpc_layer.as_deref()
    }

    /// Whether this task writes checkpoints and summaries: [`is_chief`].
    pub fn is_chief(&self) -> bool {
        is_chief(&self.spec, Some(self.task_type.as_str()), Some(self.id())).unwrap_or(false)
    }

    /// This task's rank among the tasks that train together: [`id_in_cluster`]. `None` for a
    /// parameter server.
    pub fn rank(&self) -> Option<usize> {
        let id = id_in_cluster(&self.spec, Some(self.task_type.as_str()), Some(self.id())).ok()?;
        usize::try_from(id).ok()
    }

    /// The number of tasks that train together: [`worker_count`]; chief and workers as seen from
    /// a parameter server, 1 for an evaluator.
    pub fn worker_count(&self) -> usize {
        match self.task_type {
            TaskType::ParameterServer => self.workers().len(),
            task_type => worker_count(&self.spec, Some(task_type.as_str())).unwrap_or(1),
        }
    }

    /// This task's own address; `None` for an evaluator outside the cluster, and where it is not
    /// known before the workers have met.
    pub fn address(&self) -> Option<&str> {
        self.spec
            .task_address(self.task_type.as_str(), self.id())
            .ok()
    }

    /// The place of this process among the processes of the job on its host, from 0: as its
    /// launcher says, else as the addresses do.
    pub fn local_rank(&self) -> usize {
        let host = |address: &str| address.rsplit_once(':').map(|(host, _)| host.to_string());
        let by_address = || {
            let own = self.address().and_then(host)?;
            let before = self.rank().unwrap_or(self.task_id);
            let lower = self.workers().into_iter().take(before).flatten();
            Some(
                lower
                    .filter(|other| host(other).as_ref() == Some(&own))
                    .count(),
            )
        };
        self.local_rank.or_else(by_address).unwrap_or(0)
    }

    /// The port that this task is to listen on where its address is not known; `None` for any free
    /// one.
    pub fn own_port(&self) -> Option<u16> {
        self.own_port
    }

    /// The addresses of chief and workers by rank; `None` where one is not known. That of rank 0
    /// always is, and there the others say theirs.
    pub fn workers(&self) -> Vec<Option<&str>> {
        let chief = self.spec.addresses("chief");
        chief.chain(self.spec.addresses("worker")).collect()
    }

    /// The addresses of the parameter servers by index; `None` where one is not known.
    pub fn parameter_servers(&self) -> Vec<Option<&str>> {
        self.spec.addresses("ps").collect()
    }

    /// The address of rank 0, where the others meet; `None` if there are no workers.
    pub fn leader_address(&self) -> Option<&str> {
        self.workers().first().copied().flatten()
    }

    fn id(&self) -> i64 {
        i64::try_from(self.task_id).unwrap_or(i64::MAX)
    }
}
