//! A step of a SLURM job.

use std::collections::{BTreeMap, HashSet};

use super::environment::{Environment, Variables};
use super::{
    Accelerators, ClusterError, ClusterResolver, ClusterSpec, DEFAULT_PORT, Description, MAX_TASKS,
    expand_hostlist, expand_tasks_per_node,
};

const RANK: [&str; 1] = ["SLURM_PROCID"];
// A step may be smaller than its job, so its own variables come first.
const TASKS: [&str; 3] = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
const NODES: [&str; 3] = [
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
];
const COUNTS: [&str; 2] = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];
const DISTRIBUTION: &str = "SLURM_DISTRIBUTION";
const PLANE_SIZE: [&str; 1] = ["SLURM_DIST_PLANESIZE"];
const NODE_GPUS: [&str; 1] = ["SLURM_GPUS_ON_NODE"];
const VISIBLE_GPUS: &str = "CUDA_VISIBLE_DEVICES";
const START: &str = "start the program with srun";

/// Reads the cluster from the variables that `srun` sets (TensorFlow's `SlurmClusterResolver`):
/// `SLURM_PROCID`, and of the step, else the job, the node list, the number of tasks and the
/// tasks per node.
///
/// Ranks are laid over the nodes as SLURM does it (`SLURM_DISTRIBUTION`: block, cyclic or
/// plane); TensorFlow sorts the nodes by name instead, which gives `n10` the rank of `n9`. Task
/// `i` of a node listens on port `port_base + i`. All tasks are workers unless [`Self::jobs`]
/// says otherwise.
///
/// A cluster without GPUs is fine; TensorFlow fails there.
#[derive(Debug, Clone)]
#[must_use]
pub struct SlurmResolver {
    env: Variables,
    jobs: Option<BTreeMap<String, usize>>,
    port_base: u16,
    hosts: Option<Vec<String>>,
    tasks_per_node: Option<usize>,
    gpus_per_node: Option<usize>,
    gpus_per_task: Option<usize>,
    rpc_layer: String,
}

/// Where every rank runs, and what belongs to this one.
struct Layout {
    jobs: BTreeMap<String, usize>,
    rank: usize,
    addresses: Vec<String>,
    /// This rank's place among the tasks of its node.
    local_rank: usize,
    gpus_per_task: usize,
}

impl SlurmResolver {
    /// Reads the variables of this environment.
    pub fn new(env: impl Environment + 'static) -> Self {
        Self::with_variables(Variables::new(env))
    }

    pub(super) fn with_variables(env: Variables) -> Self {
        Self {
            env,
            jobs: None,
            port_base: DEFAULT_PORT,
            hosts: None,
            tasks_per_node: None,
            gpus_per_node: None,
            gpus_per_task: None,
            rpc_layer: "grpc".to_string(),
        }
    }

    /// The number of tasks of each job, such as `ps` 1 and `worker` 3. Ranks go to the jobs in
    /// alphabetical order.
    pub fn jobs<J: Into<String>>(mut self, jobs: impl IntoIterator<Item = (J, usize)>) -> Self {
        self.jobs = Some(
            jobs.into_iter()
                .map(|(job, tasks)| (job.into(), tasks))
                .collect(),
        );
        self
    }

    /// The port of the first task of each node; [`DEFAULT_PORT`] if not given.
    pub fn port_base(mut self, port_base: u16) -> Self {
        self.port_base = port_base;
        self
    }

    /// The nodes, instead of SLURM's node list: for lists that [`expand_hostlist`] cannot read.
    pub fn hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.hosts = Some(hosts.into_iter().map(Into::into).collect());
        self
    }

    /// The tasks of every node, instead of SLURM's list.
    pub fn tasks_per_node(mut self, tasks: usize) -> Self {
        self.tasks_per_node = Some(tasks);
        self
    }

    /// The GPUs of every node; else `SLURM_GPUS_ON_NODE`, else as many as
    /// `CUDA_VISIBLE_DEVICES` lists, else none.
    pub fn gpus_per_node(mut self, gpus: usize) -> Self {
        self.gpus_per_node = Some(gpus);
        self
    }

    /// The GPUs of every task; else the node's divided by the most tasks a node has.
    pub fn gpus_per_task(mut self, gpus: usize) -> Self {
        self.gpus_per_task = Some(gpus);
        self
    }

    /// The protocol; `grpc` if not given.
    pub fn rpc_layer(mut self, rpc_layer: impl Into<String>) -> Self {
        self.rpc_layer = rpc_layer.into();
        self
    }

    /// The GPUs of the node that are this task's. TensorFlow sets `CUDA_VISIBLE_DEVICES` to
    /// them; here the caller decides.
    ///
    /// # Errors
    ///
    /// As [`ClusterResolver::cluster_spec`].
    pub fn gpu_ids(&self) -> Result<Vec<usize>, ClusterError> {
        let layout = self.layout()?;
        let first = layout.local_rank * layout.gpus_per_task;
        Ok((first..first + layout.gpus_per_task).collect())
    }

    fn layout(&self) -> Result<Layout, ClusterError> {
        let rank = self.env.require_number(&RANK, usize::MAX, START)?;
        let hosts = self.node_names()?;
        let counts = self.tasks_of_nodes(hosts.len())?;
        let size: usize = counts.iter().sum();
        let jobs = match &self.jobs {
            Some(jobs) => jobs.clone(),
            None => {
                let tasks = self.env.number(&TASKS, MAX_TASKS)?.unwrap_or(size);
                BTreeMap::from([("worker".to_string(), tasks)])
            }
        };
        let most = counts.iter().copied().max().unwrap_or(0);
        let gpus_per_task = self.task_gpus(most)?;
        let requested = jobs
            .values()
            .fold(0, |sum: usize, tasks| sum.saturating_add(*tasks));
        if requested != size {
            return Err(ClusterError::TaskCount {
                requested,
                assigned: size,
            });
        }
        if rank >= size {
            return Err(ClusterError::RankTooBig {
                variable: RANK[0],
                rank,
                size,
            });
        }
        super::ranks::check_ports(self.port_base, most)?;
        let nodes = rank_to_node(&counts, self.chunk()?);
        let mut next = vec![0; hosts.len()];
        let mut local_rank = 0;
        let mut addresses = Vec::with_capacity(size);
        for (task, &node) in nodes.iter().enumerate() {
            if task == rank {
                local_rank = next[node];
            }
            let port = usize::from(self.port_base) + next[node];
            addresses.push(format!("{}:{port}", hosts[node]));
            next[node] += 1;
        }
        Ok(Layout {
            jobs,
            rank,
            addresses,
            local_rank,
            gpus_per_task,
        })
    }

    fn node_names(&self) -> Result<Vec<String>, ClusterError> {
        let hosts = match &self.hosts {
            Some(hosts) => hosts.clone(),
            None => expand_hostlist(&self.env.require(&NODES, START)?.1)?,
        };
        let mut seen = HashSet::new();
        if let Some(twice) = hosts.iter().find(|host| !seen.insert(host.as_str())) {
            return Err(ClusterError::InvalidVariable {
                variable: NODES[0].to_string(),
                value: twice.clone(),
                why: "the node is listed twice, so its tasks would share ports".to_string(),
            });
        }
        Ok(hosts)
    }

    fn tasks_of_nodes(&self, hosts: usize) -> Result<Vec<usize>, ClusterError> {
        let counts = match self.tasks_per_node {
            Some(tasks) if tasks.saturating_mul(hosts) > MAX_TASKS => {
                let (what, limit) = ("tasks of all nodes".to_string(), MAX_TASKS);
                return Err(ClusterError::TooMany { what, limit });
            }
            Some(tasks) => vec![tasks; hosts],
            None => expand_tasks_per_node(&self.env.require(&COUNTS, START)?.1)?,
        };
        if counts.len() != hosts {
            let counts = counts.len();
            return Err(ClusterError::NodeCount { hosts, counts });
        }
        Ok(counts)
    }

    /// The GPUs of every task, if the fullest node has `tasks`.
    fn task_gpus(&self, tasks: usize) -> Result<usize, ClusterError> {
        let available = match (self.gpus_per_node, self.env.number(&NODE_GPUS, MAX_TASKS)?) {
            (Some(gpus), _) | (None, Some(gpus)) => gpus,
            (None, None) => {
                let visible = self.env.get(VISIBLE_GPUS)?.unwrap_or_default();
                visible
                    .split(',')
                    .filter(|id| !id.trim().is_empty())
                    .count()
            }
        };
        let share = available.checked_div(tasks).unwrap_or(0);
        let per_task = self.gpus_per_task.unwrap_or(share);
        if per_task.saturating_mul(tasks) > available {
            return Err(ClusterError::TooFewAccelerators {
                tasks,
                per_task,
                available,
            });
        }
        Ok(per_task)
    }

    /// How many tasks in a row go to a node before the next one has its turn.
    fn chunk(&self) -> Result<usize, ClusterError> {
        let distribution = self.env.get(DISTRIBUTION)?.unwrap_or_default();
        let nodes = distribution
            .split([':', ',', '='])
            .next()
            .unwrap_or_default();
        match nodes.trim().to_ascii_lowercase().as_str() {
            "cyclic" => Ok(1),
            "plane" => {
                let hint = "srun sets it for --distribution=plane";
                Ok(self
                    .env
                    .require_number(&PLANE_SIZE, MAX_TASKS, hint)?
                    .max(1))
            }
            "arbitrary" => Err(ClusterError::InvalidVariable {
                variable: DISTRIBUTION.to_string(),
                value: super::environment::shortened(&distribution),
                why: "which rank runs where is not known; use block, cyclic or plane, or set \
                      TF_CONFIG"
                    .to_string(),
            }),
            _ => Ok(usize::MAX),
        }
    }

    /// The job and task that a rank is.
    fn task(&self) -> Result<(String, i64), ClusterError> {
        let layout = self.layout()?;
        let mut start = 0;
        for (job, tasks) in layout.jobs {
            if layout.rank < start + tasks {
                return Ok((job, i64::try_from(layout.rank - start).unwrap_or(i64::MAX)));
            }
            start += tasks;
        }
        let (rank, size) = (layout.rank, start);
        Err(ClusterError::RankTooBig {
            variable: RANK[0],
            rank,
            size,
        })
    }
}

/// The node of each rank, when nodes take turns with `chunk` tasks each.
fn rank_to_node(counts: &[usize], chunk: usize) -> Vec<usize> {
    let mut nodes = Vec::new();
    let mut left: Vec<(usize, usize)> = counts.iter().copied().enumerate().collect();
    while !left.is_empty() {
        for (node, tasks) in &mut left {
            let turn = chunk.min(*tasks);
            nodes.extend(std::iter::repeat_n(*node, turn));
            *tasks -= turn;
        }
        left.retain(|(_, tasks)| *tasks > 0);
    }
    nodes
}

impl ClusterResolver for SlurmResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        let Layout {
            jobs, addresses, ..
        } = self.layout()?;
        let mut addresses = addresses.into_iter();
        ClusterSpec::new(jobs.into_iter().map(|(job, tasks)| {
            let tasks: Vec<String> = addresses.by_ref().take(tasks).collect();
            (job, tasks)
        }))
    }

    fn task_type(&self) -> Result<Option<String>, ClusterError> {
        self.task().map(|(job, _)| Some(job))
    }

    fn task_id(&self) -> Result<Option<i64>, ClusterError> {
        self.task().map(|(_, index)| Some(index))
    }

    fn rpc_layer(&self) -> Result<Option<String>, ClusterError> {
        Ok(Some(self.rpc_layer.clone()))
    }

    fn num_accelerators(&self) -> Result<Accelerators, ClusterError> {
        let gpus = self.layout()?.gpus_per_task;
        Ok((gpus > 0)
            .then(|| ("GPU".to_string(), gpus))
            .into_iter()
            .collect())
    }

    fn describe(&self) -> Description {
        let mut names = RANK.to_vec();
        for group in [&TASKS[..], &NODES[..], &COUNTS[..]] {
            names.extend(group.iter().find(|name| self.env.has(name)));
        }
        names.push(DISTRIBUTION);
        let other_port = Some(self.port_base).filter(|&port| port != DEFAULT_PORT);
        let hosts = self.hosts.as_ref().map(|hosts| hosts.join(","));
        let jobs = self.jobs.as_ref().map(|jobs| format!("{jobs:?}"));
        Description::new("SLURM", self.env.set_among(&names))
            .given("port_base", other_port)
            .given("gpus_per_node", self.gpus_per_node)
            .given("gpus_per_task", self.gpus_per_task)
            .given("hosts", hosts)
            .given("tasks_per_node", self.tasks_per_node)
            .given("jobs", jobs)
    }
}
