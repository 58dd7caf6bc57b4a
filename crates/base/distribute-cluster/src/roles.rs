//! The roles of a task: whether it is chief, its rank, and which task leads (TensorFlow's
//! `multi_worker_util`).

use std::fmt;
use std::str::FromStr;

use super::{ClusterError, ClusterSpec, Result};

/// The types of tasks there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskType {
    /// A worker that also writes checkpoints and summaries.
    Chief,
    /// A worker.
    Worker,
    /// Evaluates checkpoints beside the training.
    Evaluator,
    /// A parameter server: holds variables.
    ParameterServer,
}

impl TaskType {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Chief,
        Self::Worker,
        Self::Evaluator,
        Self::ParameterServer,
    ];

    /// TensorFlow's name of it: `chief`, `worker`, `evaluator`, `ps`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chief => "chief",
            Self::Worker => "worker",
            Self::Evaluator => "evaluator",
            Self::ParameterServer => "ps",
        }
    }
}

impl fmt::Display for TaskType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TaskType {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL
            .into_iter()
            .find(|task_type| task_type.as_str() == text);
        found.ok_or_else(|| ClusterError::UnrecognizedTaskType {
            task_type: super::error::shortened(text),
        })
    }
}

/// Checks a task against its cluster (TensorFlow's `_validate_cluster_spec`), in this order: the
/// cluster has only jobs there are, the task type is one of them, the cluster has it (an
/// evaluator may be missing), there is at most one chief and one evaluator, the task's index is
/// below the number of tasks.
///
/// A task type that is not known (`None`) is fine. A negative index passes, as in TensorFlow;
/// [`super::Cluster::resolve`] refuses it.
///
/// # Errors
///
/// [`ClusterError::DisallowedJob`], [`ClusterError::UnrecognizedTaskType`],
/// [`ClusterError::TaskTypeNotInCluster`], [`ClusterError::MoreThanOne`],
/// [`ClusterError::TaskIdMissing`], [`ClusterError::TaskIdTooBig`].
pub fn validate(spec: &ClusterSpec, task_type: Option<&str>, task_id: Option<i64>) -> Result<()> {
    if let Some(job) = spec.jobs().find(|job| TaskType::from_str(job).is_err()) {
        return Err(ClusterError::DisallowedJob {
            job: job.to_string(),
            spec: super::error::shortened(&spec.to_string()),
        });
    }
    let known = task_type.map(TaskType::from_str).transpose()?;
    if let Some(known) = known
        && known != TaskType::Evaluator
        && !spec.has_job(known.as_str())
    {
        return Err(ClusterError::TaskTypeNotInCluster {
            task_type: known.to_string(),
        });
    }
    for job in ["chief", "evaluator"] {
        let tasks = spec.task_count(job);
        if tasks > 1 {
            return Err(ClusterError::MoreThanOne { job, tasks });
        }
    }
    let Some(task_type) = task_type.filter(|job| spec.has_job(job)) else {
        return Ok(());
    };
    let task_type = task_type.to_string();
    let Some(task_id) = task_id else {
        return Err(ClusterError::TaskIdMissing { task_type });
    };
    let tasks = spec.task_count(&task_type);
    if usize::try_from(task_id).is_ok_and(|task_id| task_id >= tasks) {
        return Err(ClusterError::TaskIdTooBig {
            task_type,
            task_id,
            tasks,
        });
    }
    Ok(())
}

/// Whether the task is the chief: the job `chief`, an evaluator (the chief of its own cluster),
/// or worker 0 of a cluster without a chief.
///
/// # Errors
///
/// As [`validate`].
pub fn is_chief(spec: &ClusterSpec, task_type: Option<&str>, task_id: Option<i64>) -> Result<bool> {
    validate(spec, task_type, task_id)?;
    Ok(match task_type {
        Some("chief" | "evaluator") => true,
        Some("worker") => !spec.has_job("chief") && task_id == Some(0),
        _ => false,
    })
}

/// The task's rank among chief and workers: the chief is 0, workers follow it; an evaluator has
/// its own index.
///
/// # Errors
///
/// As [`validate`]; [`ClusterError::NoRank`] for parameter servers and unknown tasks;
/// [`ClusterError::TaskIdMissing`] for an evaluator without index outside the cluster (for which
/// TensorFlow returns nothing).
pub fn id_in_cluster(
    spec: &ClusterSpec,
    task_type: Option<&str>,
    task_id: Option<i64>,
) -> Result<i64> {
    validate(spec, task_type, task_id)?;
    let id = task_id.ok_or_else(|| ClusterError::TaskIdMissing {
        task_type: task_type.unwrap_or_default().to_string(),
    });
    match task_type {
        Some("chief") => Ok(0),
        // A cluster has at most one chief after validation.
        Some("worker") => Ok(id?.saturating_add(i64::from(spec.task_count("chief") > 0))),
        Some("evaluator") => id,
        other => Err(ClusterError::NoRank {
            task_type: other.map(str::to_string),
        }),
    }
}

/// The number of tasks that train together: chief and workers, or the evaluators for an
/// evaluator.
///
/// # Errors
///
/// As [`validate`] for task 0 of that type; [`ClusterError::NotAWorker`] for parameter servers
/// and unknown tasks; [`ClusterError::NoEvaluator`] for an evaluator outside the cluster.
pub fn worker_count(spec: &ClusterSpec, task_type: Option<&str>) -> Result<usize> {
    validate(spec, task_type, Some(0))?;
    match task_type {
        Some("chief" | "worker") => Ok(spec.task_count("chief") + spec.task_count("worker")),
        Some("evaluator") if spec.has_job("evaluator") => Ok(spec.task_count("evaluator")),
        Some("evaluator") => Err(ClusterError::NoEvaluator),
        other => Err(ClusterError::NotAWorker {
            task_type: other.map(str::to_string),
        }),
    }
}

/// The device string of the task that leads the collectives: the chief, else worker 0; nothing
/// (an empty string) for a process by itself and for an evaluator.
///
/// # Errors
///
/// As [`validate`]; [`ClusterError::NoLeader`] if there is neither chief nor worker.
pub fn collective_leader(
    spec: &ClusterSpec,
    task_type: Option<&str>,
    task_id: Option<i64>,
) -> Result<String> {
    if spec.is_empty() {
        return Ok(String::new());
    }
    validate(spec, task_type, task_id)?;
    if task_type == Some("evaluator") {
        return Ok(String::new());
    }
    leader(spec, &["chief", "worker"])
}

/// The device string of the task that runs the coordination service: parameter server 0, else
/// the chief, else worker 0; an empty string for a process by itself.
///
/// # Errors
///
/// [`ClusterError::NoLeader`] if there is none of these.
pub fn coordination_leader(spec: &ClusterSpec) -> Result<String> {
    if spec.is_empty() {
        return Ok(String::new());
    }
    leader(spec, &["ps", "chief", "worker"])
}

fn leader(spec: &ClusterSpec, jobs: &[&str]) -> Result<String> {
    let job = jobs
        .iter()
        .find(|job| spec.has_job(job))
        .ok_or(ClusterError::NoLeader)?;
    Ok(format!("/job:{job}/replica:0/task:0"))
}
