//! Finds out which processes belong to a job, and which rank this process has.
//!
//! A [`ClusterSpec`] says which jobs (`chief`, `worker`, `ps`, `evaluator`) there are and at which
//! addresses their tasks listen. A [`ClusterResolver`] finds it, and the task this process is:
//!
//! | resolver | reads |
//! |---|---|
//! | [`TfConfigResolver`] | `TF_CONFIG`, exactly as TensorFlow does; a large cluster from a file |
//! | [`SlurmResolver`] | the variables of a SLURM step, else of the job |
//! | [`KubernetesResolver`] | an Indexed Job or a JobSet |
//! | [`RankResolver::open_mpi`] | `OMPI_COMM_WORLD_*` |
//! | [`RankResolver::torchrun`] | `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` |
//! | [`RankResolver::mpi`] | `PMI_RANK`, `PMI_SIZE` (MPICH, Intel MPI) and others |
//! | [`RankResolver::jax`], [`RankResolver::trainer`] | `JAX_*` or `PET_*` of Kubeflow Trainer v2 |
//! | [`SimpleResolver`], [`UnionResolver`] | what the program gives them |
//!
//! [`detect`] picks one and says why; [`Overrides`] replaces any part of what it found. Roles and
//! ranks follow TensorFlow's `multi_worker_util`: [`is_chief`], [`id_in_cluster`],
//! [`worker_count`], [`collective_leader`], [`coordination_leader`], [`validate`]. [`Cluster`] is
//! all of it together, checked once.
//!
//! Nothing here does input or output, except that [`ProcessEnvironment`] reads the file that
//! [`CLUSTER_FILE_VARIABLE`] names. Variables come from an [`Environment`], which is
//! [`ProcessEnvironment`] in a program and a map in a test:
//!
//! ```
//! use std::collections::BTreeMap;
//! use distribute_cluster::{Cluster, detect};
//!
//! let tf_config = r#"{"cluster": {"worker": ["h1:2222", "h2:2222"]},
//!                     "task": {"type": "worker", "index": 1}}"#;
//! let env = BTreeMap::from([("TF_CONFIG".to_string(), tf_config.to_string())]);
//! let detected = detect(env);
//! let cluster = Cluster::resolve(&*detected.resolver)?.expect("TF_CONFIG names a cluster");
//! assert_eq!(cluster.rank(), Some(1));
//! assert_eq!(cluster.leader_address(), Some("h1:2222"));
//! assert!(!cluster.is_chief());
//! # Ok::<(), distribute_cluster::ClusterError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod addresses;
mod contradiction;
mod detect;
mod environment;
mod error;
mod hostlist;
mod json;
mod kind;
mod kubernetes;
mod launchers;
mod meeting;
mod member;
mod overrides;
mod ranks;
mod resolver;
mod roles;
mod simple;
mod slurm;
mod spec;
mod tf_config;
mod union;

pub use detect::{Detected, PassedOver, detect, detect_with};
pub use environment::{Environment, ProcessEnvironment};
pub use error::{CLUSTER_FILE_VARIABLE, ClusterError, Result};
pub use hostlist::{expand_hostlist, expand_tasks_per_node};
pub use json::parse_task_index;
pub use kind::ClusterKind;
pub use kubernetes::KubernetesResolver;
pub use launchers::LAUNCHER_VARIABLES;
pub use member::Cluster;
pub use overrides::{Overridden, Overrides};
pub use ranks::RankResolver;
pub use resolver::{Accelerators, ClusterResolver, Description, MasterTarget};
pub use roles::{
    TaskType, collective_leader, coordination_leader, id_in_cluster, is_chief, validate,
    worker_count,
};
pub use simple::SimpleResolver;
pub use slurm::SlurmResolver;
pub use spec::{ClusterSpec, Tasks};
pub use tf_config::{TfConfigResolver, tf_config_json};
pub use union::UnionResolver;

/// The most tasks (and SLURM nodes) that a cluster may have. Text such as `[1-999999999]` is
/// refused before memory is taken for it.
pub const MAX_TASKS: usize = 1 << 16;

/// The first port that tasks listen on where the environment names none (TensorFlow's SLURM
/// resolver has the same).
pub const DEFAULT_PORT: u16 = 8888;
