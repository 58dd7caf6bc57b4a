//! A step of a SLURM job.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use super::environment::{Environment, Variables};
use super::{
    Accelerators, ClusterError, ClusterResolver, ClusterSpec, DEFAULT_PORT, Description, MAX_TASKS,
    Result, TaskType, expand_hostlist, expand_tasks_per_node,
};

const RANK: &str = "SLURM_PROCID";
// A step may be smaller than its job, so its own variables come first.
const TASKS: [&str; 3] = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
const NODES: [&str; 3] = [
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
];
const COUNTS: [&str; 2] = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];
const DISTRIBUTION: &str = "SLURM_DISTRIBUTION";
const PLANE_SIZE: &str = "SLURM_DIST_PLANESIZE";
const NODE_GPUS: &str = "SLURM_GPUS_ON_NODE";
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
    port_base: Option<u16>,
    hosts: Option<Vec<String>>,
    tasks_per_node: Option<usize>,
    gpus_per_node: Option<usize>,
    gpus_per_task: Option<usize>,
    rpc_layer: String,
}

/// Where every rank runs, and what belongs to this one.
struct Layout {
    /// The addresses of each job's tasks.
    jobs: Vec<(String, Vec<String>)>,
    task: (String, usize),
    gpus: Range<usize>,
}

impl SlurmResolver {
    /// Reads the variables of this environment.
    pub fn new(env: impl Environment + 'static) -> Self {
        Self {
            env: Variables::new(env),
            jobs: None,
            port_base: None,
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
        let jobs = jobs.into_iter().map(|(job, tasks)| (job.into(), tasks));
        self.jobs = Some(jobs.collect());
        self
    }

    /// The port of the first task of each node; [`DEFAULT_PORT`] if not given.
    pub fn port_base(mut self, port_base: impl Into<Option<u16>>) -> Self {
        self.port_base = port_base.into();
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
    pub fn gpu_ids(&self) -> Result<Vec<usize>> {
        self.layout().map(|layout| layout.gpus.collect())
    }

    fn layout(&self) -> Result<Layout> {
        let rank = self.env.require_number(&[RANK], usize::MAX, START)?;
        let hosts = self.node_names()?;
        let counts = self.tasks_of_nodes(hosts.len())?;
        let size: usize = counts.iter().sum();
        let sizes = match &self.jobs {
            Some(jobs) => jobs.clone(),
            None => {
                let tasks = self.env.number(&TASKS, MAX_TASKS)?.unwrap_or(size);
                BTreeMap::from([(TaskType::Worker.to_string(), tasks)])
            }
        };
        let most = counts.iter().copied().max().unwrap_or(0);
        let gpus_per_task = self.task_gpus(most)?;
        let requested = sizes.values().copied().fold(0, usize::saturating_add);
        if requested != size {
            let assigned = size;
            return Err(ClusterError::TaskCount {
                requested,
                assigned,
            });
        }
        ClusterError::check_rank(RANK, rank, size)?;
        let port_base = self.port_base.unwrap_or(DEFAULT_PORT);
        super::ranks::check_base(port_base)?;
        super::ranks::check_ports(port_base, most)?;

        let places = places(&counts, self.chunk()?);
        let mut addresses = places.iter().map(|&(node, local_rank)| {
            let port = usize::from(port_base) + local_rank;
            format!("{}:{port}", hosts[node])
        });
        let (mut jobs, mut task) = (Vec::new(), (String::new(), 0));
        let mut first = 0;
        for (job, tasks) in sizes {
            if (first..first + tasks).contains(&rank) {
                task = (job.clone(), rank - first);
            }
            jobs.push((job, addresses.by_ref().take(tasks).collect()));
            first += tasks;
        }
        let first_gpu = places[rank].1 * gpus_per_task;
        Ok(Layout {
            jobs,
            task,
            gpus: first_gpu..first_gpu + gpus_per_task,
        })
    }

    fn node_names(&self) -> Result<Vec<String>> {
        let hosts = match &self.hosts {
            Some(hosts) => hosts.clone(),
            None => expand_hostlist(&self.env.require(&NODES, START)?)?,
        };
        let mut seen = HashSet::new();
        if let Some(twice) = hosts.iter().find(|host| !seen.insert(host.as_str())) {
            let why = "the node is listed twice, so its tasks would share ports";
            return Err(ClusterError::invalid_variable(NODES[0], twice, why));
        }
        Ok(hosts)
    }

    fn tasks_of_nodes(&self, hosts: usize) -> Result<Vec<usize>> {
        let counts = match self.tasks_per_node {
            Some(tasks) => {
                let total = tasks.saturating_mul(hosts);
                ClusterError::check_limit(total, MAX_TASKS, "tasks of all nodes")?;
                vec![tasks; hosts]
            }
            None => expand_tasks_per_node(&self.env.require(&COUNTS, START)?)?,
        };
        if counts.len() != hosts {
            let counts = counts.len();
            return Err(ClusterError::NodeCount { hosts, counts });
        }
        Ok(counts)
    }

    /// The GPUs of every task, if the fullest node has `tasks`.
    fn task_gpus(&self, tasks: usize) -> Result<usize> {
        let on_node = self.env.number(&[NODE_GPUS], MAX_TASKS)?;
        let available = match self.gpus_per_node.or(on_node) {
            Some(gpus) => gpus,
            None => {
                let visible = self.env.var(VISIBLE_GPUS)?.unwrap_or_default();
                let ids = visible.split(',').map(str::trim);
                ids.filter(|id| !id.is_empty()).count()
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
    fn chunk(&self) -> Result<usize> {
        let distribution = self.env.var(DISTRIBUTION)?.unwrap_or_default();
        let mut levels = distribution.split([':', ',', '=']);
        let nodes = levels.next().unwrap_or_default().trim();
        match nodes.to_ascii_lowercase().as_str() {
            "cyclic" => Ok(1),
            "plane" => {
                let hint = "srun sets it for --distribution=plane";
                let size = self.env.require_number(&[PLANE_SIZE], MAX_TASKS, hint)?;
                Ok(size.max(1))
            }
            "arbitrary" => {
                let name = DISTRIBUTION;
                let why = "which rank runs where is not known; use block, cyclic or plane, or set \
                           TF_CONFIG";
                Err(ClusterError::invalid_variable(name, &distribution, why))
            }
            _ => Ok(usize::MAX),
        }
    }
}

/// The node of each rank, and its place there, when nodes take turns with `chunk` tasks each.
fn places(counts: &[usize], chunk: usize) -> Vec<(usize, usize)> {
    let mut places = Vec::new();
    let mut left: Vec<(usize, Range<usize>)> =
        counts.iter().map(|&tasks| 0..tasks).enumerate().collect();
    while !left.is_empty() {
        for (node, tasks) in &mut left {
            places.extend(tasks.by_ref().take(chunk).map(|task| (*node, task)));
        }
        left.retain(|(_, tasks)| !tasks.is_empty());
    }
    places
}

impl ClusterResolver for SlurmResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec> {
        ClusterSpec::new(self.layout()?.jobs)
    }

    fn task_type(&self) -> Result<Option<String>> {
        self.layout().map(|layout| Some(layout.task.0))
    }

    fn task_id(&self) -> Result<Option<i64>> {
        self.layout()
            .map(|layout| i64::try_from(layout.task.1).ok())
    }

    fn rpc_layer(&self) -> Result<Option<String>> {
        Ok(Some(self.rpc_layer.clone()))
    }

    fn num_accelerators(&self) -> Result<Accelerators> {
        let gpus = self.layout()?.gpus.len();
        let gpus = (gpus > 0).then(|| ("GPU".to_string(), gpus));
        Ok(gpus.into_iter().collect())
    }

    fn describe(&self) -> Description {
        let mut names = vec![RANK];
        for group in [&TASKS[..], &NODES[..], &COUNTS[..]] {
            names.extend(group.iter().find(|name| self.env.has(name)));
        }
        names.push(DISTRIBUTION);
        let other_port = self.port_base.filter(|&port| port != DEFAULT_PORT);
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
