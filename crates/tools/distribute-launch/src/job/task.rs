use std::fmt;

use serde::{Deserialize, Serialize};

/// What a process is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Role {
    /// Coordinates the workers of a job with parameter servers.
    Chief,
    /// Trains; its index is its rank.
    Worker,
    /// StoppedProcesses variables for the workers.
    ParameterServer,
    /// Evaluates the checkpoints that the workers write.
    Evaluator,
}

impl Role {
    /// TensorFlow's name of the job: `chief`, `worker`, `ps` or `evaluator`.
    pub fn name(self) -> &'static str {
        match self {
            Role::Chief => "chief",
            Role::Worker => "worker",
            Role::ParameterServer => "ps",
            Role::Evaluator => "evaluator",
        }
    }
}

/// One process of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Task {
    /// What the process is for.
    pub role: Role,
    /// The index of the process within its role, from 0.
    pub index: usize,
}

impl Task {
    /// The worker with this rank.
    pub(crate) fn worker(index: usize) -> Task {
        let role = Role::Worker;
        Task { role, index }
    }
}

/// `chief`, `rank 1`, `ps 0` or `evaluator`.
impl fmt::Display for Task {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Chief => write!(formatter, "chief"),
            Role::Worker => write!(formatter, "rank {}", self.index),
            Role::ParameterServer => write!(formatter, "ps {}", self.index),
            Role::Evaluator => write!(formatter, "evaluator"),
        }
    }
}
