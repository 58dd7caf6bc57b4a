//! What can be wrong with a description of a cluster.

/// The result of what can fail for a [`ClusterError`].
pub type Result<T, E = ClusterError> = std::result::Result<T, E>;

/// Names a file with the cluster as JSON, `{"cluster": {"worker": [..]}}`, for one that is too
/// large for a variable: Linux limits each to 128 KiB. It counts if `TF_CONFIG` itself has no
/// cluster; the task stays in `TF_CONFIG`.
pub const CLUSTER_FILE_VARIABLE: &str = "DISTRIBUTE_CLUSTER_FILE";

/// A cluster, or this process' place in it, cannot be worked out.
///
/// Variants name what TensorFlow refuses, in its sense; the class of TensorFlow's exception is
/// given where it has one.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Text is not JSON (TensorFlow: `JSONDecodeError`, at each access).
    #[error("{what} is not valid JSON: {why}")]
    Json {
        /// The variable or text.
        what: String,
        /// What is wrong, with line and column.
        why: String,
    },
    /// A JSON object was expected (TensorFlow: `TypeError`).
    #[error("{what} must be a JSON object, not {found}")]
    NotAnObject {
        /// Which part of the text.
        what: String,
        /// The kind of value it is.
        found: &'static str,
    },
    /// A JSON string was expected.
    #[error("{what} must be a string, not {found}")]
    NotAString {
        /// Which part of the text.
        what: String,
        /// The kind of value it is.
        found: &'static str,
    },
    /// The cluster is not a map of jobs (TensorFlow: `TypeError`).
    #[error(
        "a cluster must map job names to lists of addresses, such as \
         {{\"worker\": [\"host1:2222\", \"host2:2222\"]}}; it is {found}"
    )]
    NotACluster {
        /// The kind of value it is.
        found: &'static str,
    },
    /// The tasks of a job are neither a list nor a map (TensorFlow: `TypeError`).
    #[error(
        "the tasks of job '{job}' must be a list of addresses, or a map from task index to \
         address, not {found}"
    )]
    TasksNotAList {
        /// The job.
        job: String,
        /// The kind of value they are.
        found: &'static str,
    },
    /// An address is not a string (TensorFlow: `TypeError`).
    #[error("task {index} of job '{job}': the address must be a string, it is {found}")]
    AddressNotAString {
        /// The job.
        job: String,
        /// The task.
        index: i64,
        /// The value, as Python writes it.
        found: String,
    },
    /// Text is not a whole number (TensorFlow: `ValueError`).
    #[error("{what}: '{text}' is not a whole number that can be a task index")]
    InvalidIndex {
        /// Which index.
        what: String,
        /// The text.
        text: String,
    },
    /// An index has a type that no number can be made of (TensorFlow: `TypeError`).
    #[error("{what} must be a whole number, not {found}; leave it out if there is none")]
    IndexType {
        /// Which index.
        what: String,
        /// The kind of value it is.
        found: &'static str,
    },
    /// The cluster has no such job (TensorFlow: `ValueError`).
    #[error("the cluster has no job {}", name(job.as_deref()))]
    NoSuchJob {
        /// The job; `None` if the task type is not known.
        job: Option<String>,
    },
    /// The job has no such task (TensorFlow: `ValueError`).
    #[error("job '{job}' has no task with index {}", number(*index))]
    NoSuchTask {
        /// The job.
        job: String,
        /// The task; `None` if the task id is not known.
        index: Option<i64>,
    },
    /// There is such a task, and nothing says where it is.
    #[error(
        "the address of task {index} of job '{job}' is not known: its launcher says where rank 0 \
         is, and the others tell it when they meet there"
    )]
    AddressNotKnown {
        /// The job.
        job: String,
        /// The task.
        index: i64,
    },
    /// An address that no task can have, or not together with the others.
    #[error("{from}: {job} {index} has the address '{address}': {why}")]
    Address {
        /// Where it was given.
        from: String,
        /// The job.
        job: String,
        /// The task.
        index: usize,
        /// The address, cut if long.
        address: String,
        /// What is wrong, and what it should be.
        why: String,
    },
    /// A launcher has started several processes, but its variables are incomplete.
    #[error(
        "{seen}, so this looks like one of several processes, which cannot find each other: set \
         RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in each of them, or TF_CONFIG; if this \
         process is to train alone, say so (`--cluster none`)"
    )]
    UnclearLauncher {
        /// The variables that were found, and what is missing.
        seen: String,
    },
    /// Two launchers number this process in ways that do not fit each other.
    #[error(
        "{first} and {second} contradict each other: neither launcher can have started this \
         process under the other; start it with one of them, remove the variables that are left \
         over, or say which ones count (`--cluster {first_name}` or `--cluster {second_name}`)"
    )]
    ContradictingLaunchers {
        /// The variables that would have been used, with their values.
        first: String,
        /// Their kind of cluster.
        first_name: super::ClusterKind,
        /// The other variables, with their values.
        second: String,
        /// Their kind of cluster.
        second_name: super::ClusterKind,
    },
    /// A place to meet at was given, and nothing here is met there.
    #[error("--rendezvous {address}: {why}")]
    RendezvousUnused {
        /// The address.
        address: String,
        /// Why it has no effect, and what to do.
        why: String,
    },
    /// A job has no tasks (TensorFlow: `ValueError`).
    #[error("job '{job}' has no tasks; leave it out, or list the address of at least one")]
    EmptyJob {
        /// The job.
        job: String,
    },
    /// The tasks of a job are not numbered 0, 1, 2, ... as they have to be here.
    #[error("the tasks of job '{job}' must be numbered from 0 without gaps; it has a task {index}")]
    SparseJob {
        /// The job.
        job: String,
        /// An index that has no place in a list.
        index: i64,
    },
    /// The cluster has a job of a type there is not (TensorFlow: `ValueError`).
    #[error("job '{job}' in {spec}: jobs are 'chief', 'worker', 'ps' and 'evaluator'")]
    DisallowedJob {
        /// The job.
        job: String,
        /// The cluster, as TensorFlow writes it.
        spec: String,
    },
    /// There is no such task type (TensorFlow: `ValueError`).
    #[error("task type '{task_type}': task types are 'chief', 'worker', 'ps' and 'evaluator'")]
    UnrecognizedTaskType {
        /// The task type.
        task_type: String,
    },
    /// The cluster has no job for this task's type (TensorFlow: `ValueError`).
    #[error("this task is a '{task_type}', but the cluster has no such job")]
    TaskTypeNotInCluster {
        /// The task type.
        task_type: String,
    },
    /// There may be one chief and one evaluator only (TensorFlow: `ValueError`).
    #[error("the cluster has {tasks} tasks of type '{job}'; there can be one at most")]
    MoreThanOne {
        /// The job.
        job: &'static str,
        /// Its tasks.
        tasks: usize,
    },
    /// The task's index is beyond the job's tasks (TensorFlow: `ValueError`).
    #[error("this task is {task_type} {task_id}, but there are {tasks} tasks of that type")]
    TaskIdTooBig {
        /// The task type.
        task_type: String,
        /// The task's index.
        task_id: i64,
        /// The job's tasks.
        tasks: usize,
    },
    /// The task's index is negative; TensorFlow lets it pass and gives the task a negative rank.
    #[error("this task is {task_type} {task_id}; task indices start at 0")]
    NegativeTaskId {
        /// The task type.
        task_type: String,
        /// The task's index.
        task_id: i64,
    },
    /// The task's type is not known.
    #[error("there is a cluster, but it is not known which task this process is; set task.type")]
    TaskTypeMissing,
    /// The task's index is not known (TensorFlow: `TypeError`).
    #[error("it is not known which '{task_type}' this process is; set task.index")]
    TaskIdMissing {
        /// The task type.
        task_type: String,
    },
    /// Tasks of this type have no rank (TensorFlow: `ValueError`).
    #[error("tasks of type {} have no rank; chief, workers and the evaluator do",
        name(task_type.as_deref()))]
    NoRank {
        /// The task type.
        task_type: Option<String>,
    },
    /// Tasks of this type are not counted as workers (TensorFlow: `ValueError`).
    #[error("the workers are not counted from a task of type {}; the chief, workers and the \
        evaluator can ask", name(task_type.as_deref()))]
    NotAWorker {
        /// The task type.
        task_type: Option<String>,
    },
    /// The evaluator is not part of the cluster (TensorFlow: `KeyError`).
    #[error("the evaluator is not listed in the cluster, so it has no peers to count")]
    NoEvaluator,
    /// The cluster has no task that can lead (TensorFlow: `AssertionError`).
    #[error("the cluster has neither a chief nor workers, so no process can lead it")]
    NoLeader,
    /// Two clusters of a union have the same task (TensorFlow: `KeyError`).
    #[error("task {index} of job '{job}' is in more than one of the clusters to unite")]
    DuplicateTask {
        /// The job.
        job: String,
        /// The task.
        index: i64,
    },
    /// A union of nothing (TensorFlow: `ValueError`).
    #[error("at least one resolver is needed")]
    NoResolvers,
    /// A variable is needed and not set (TensorFlow: `RuntimeError` in SLURM).
    #[error("{variables} is not set; {hint}")]
    MissingVariable {
        /// The variables, any of which would do.
        variables: String,
        /// What to do.
        hint: &'static str,
    },
    /// A variable's value cannot be used.
    #[error("{variable}={value}: {why}")]
    InvalidVariable {
        /// The variable.
        variable: String,
        /// Its value, cut if long.
        value: String,
        /// What is wrong, and what it should be.
        why: String,
    },
    /// A variable's value is not text.
    #[error("the value of {variable} is not valid UTF-8")]
    NotUnicode {
        /// The variable.
        variable: String,
    },
    /// The file with the cluster cannot be read.
    #[error(
        "the cluster cannot be read from {path}, which {} names: {why}; `launch` makes this file \
         and removes it at the end of the job: start the process in the job, or name a file that \
         it can read",
        CLUSTER_FILE_VARIABLE
    )]
    UnreadableFile {
        /// The file, as the variable has it.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// The file with the cluster has something else.
    #[error("{path} (named by {}): {error}", CLUSTER_FILE_VARIABLE)]
    InFile {
        /// The file, as the variable has it.
        path: String,
        /// What is wrong with its content.
        error: Box<ClusterError>,
    },
    /// `TF_CONFIG` says that the cluster is in a file, and no variable names it.
    #[error(
        "TF_CONFIG says that the cluster is in a file, and {} is not set: give the process this \
         variable of its launcher too",
        CLUSTER_FILE_VARIABLE
    )]
    NoClusterFile,
    /// A SLURM host list cannot be read (TensorFlow: `ValueError`).
    #[error("host list '{text}': {why}; `scontrol show hostnames` shows how SLURM reads it")]
    Hostlist {
        /// The list, cut if long.
        text: String,
        /// What is wrong.
        why: String,
    },
    /// A range of hosts ends before it starts. TensorFlow makes no hosts of it.
    #[error("host list '{text}': the range {first}-{last} runs backwards")]
    BackwardsRange {
        /// The list, cut if long.
        text: String,
        /// The range's start.
        first: u64,
        /// The range's end.
        last: u64,
    },
    /// SLURM's tasks per node cannot be read (TensorFlow: `ValueError`).
    #[error("tasks per node '{text}': a list such as 2(x3),1 is needed")]
    TasksPerNode {
        /// The list, cut if long.
        text: String,
    },
    /// SLURM names more or fewer nodes than it says how many tasks they have.
    #[error("there are {hosts} nodes, but numbers of tasks for {counts}")]
    NodeCount {
        /// The nodes.
        hosts: usize,
        /// The numbers of tasks.
        counts: usize,
    },
    /// The jobs need another number of tasks than there are (TensorFlow: `RuntimeError`).
    #[error("the jobs have {requested} tasks, but {assigned} processes were started")]
    TaskCount {
        /// The tasks of all jobs.
        requested: usize,
        /// The processes there are.
        assigned: usize,
    },
    /// The tasks of one node need more accelerators than it has (TensorFlow: `RuntimeError`).
    #[error("{tasks} tasks of one node need {per_task} GPUs each, but it has {available}")]
    TooFewAccelerators {
        /// The tasks on the node.
        tasks: usize,
        /// The GPUs each task is to have.
        per_task: usize,
        /// The GPUs of the node.
        available: usize,
    },
    /// This process' rank is beyond the number of processes.
    #[error("{variable}={rank}, but there are {size} processes; ranks start at 0")]
    RankTooBig {
        /// The variable.
        variable: &'static str,
        /// The rank.
        rank: usize,
        /// The processes there are.
        size: usize,
    },
    /// There is no such port.
    #[error("the tasks need ports {first} to {last}, and 65535 is the last; choose a lower first")]
    Port {
        /// The first task's port.
        first: u32,
        /// The last task's port.
        last: u64,
    },
    /// More than [`super::MAX_TASKS`], or more text than a cluster needs.
    #[error("{what}: more than {limit}")]
    TooMany {
        /// What there is too much of.
        what: String,
        /// The most that is accepted.
        limit: usize,
    },
}

distribute_error::debug_as_message!(ClusterError);

impl ClusterError {
    /// Whether the same start would fail again. All of these are about what a process was told of
    /// its cluster, which no new start changes; a member that may still come is no such error.
    pub const fn is_permanent(&self) -> bool {
        true
    }

    pub(super) fn no_such_task(job: &str, index: Option<i64>) -> Self {
        let job = job.to_string();
        Self::NoSuchTask { job, index }
    }

    pub(super) fn unreadable(path: &str, why: impl ToString) -> Self {
        Self::UnreadableFile {
            path: shortened(path),
            why: why.to_string(),
        }
    }

    pub(super) fn missing(variables: &[&str], hint: &'static str) -> Self {
        Self::MissingVariable {
            variables: variables.join(" or "),
            hint,
        }
    }

    pub(super) fn invalid_variable(variable: &str, value: &str, why: impl Into<String>) -> Self {
        Self::InvalidVariable {
            variable: variable.to_string(),
            value: shortened(value),
            why: why.into(),
        }
    }

    pub(super) fn invalid_index(what: impl Into<String>, text: impl Into<String>) -> Self {
        let (what, text) = (what.into(), text.into());
        Self::InvalidIndex { what, text }
    }

    /// Refuses more than `limit` of something.
    pub(super) fn check_limit(count: usize, limit: usize, what: impl Into<String>) -> Result<()> {
        if count > limit {
            let what = what.into();
            return Err(Self::TooMany { what, limit });
        }
        Ok(())
    }

    /// Refuses a rank that none of `size` processes has.
    pub(super) fn check_rank(variable: &'static str, rank: usize, size: usize) -> Result<()> {
        if rank >= size {
            return Err(Self::RankTooBig {
                variable,
                rank,
                size,
            });
        }
        Ok(())
    }
}

fn name(job: Option<&str>) -> String {
    job.map_or_else(|| "(unknown)".to_string(), |job| format!("'{job}'"))
}

fn number(index: Option<i64>) -> String {
    index.map_or_else(|| "(unknown)".to_string(), |index| index.to_string())
}

/// Text that is short enough for an error message.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 120;
    if text.chars().count() <= MOST {
        return text.to_string();
    }
    let start: String = text.chars().take(MOST).collect();
    format!("{start}... ({} bytes)", text.len())
}
