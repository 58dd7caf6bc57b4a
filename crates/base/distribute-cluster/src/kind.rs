//! The ways in which a cluster is described.

use std::fmt;

/// The ways a cluster can be described, in the order they are tried in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClusterKind {
    /// `TF_CONFIG`.
    TfConfig,
    /// `RANK`, `WORLD_SIZE` and `MASTER_ADDR`.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// The process manager of another MPI, or one like it: MPICH, Intel MPI, MVAPICH, JSM, Flux,
    /// Horovod.
    Mpi,
    /// A SLURM step.
    Slurm,
    /// `JAX_PROCESS_ID`, `JAX_NUM_PROCESSES` and `JAX_COORDINATOR_ADDRESS`: Kubeflow Trainer v2
    /// under `mlPolicy.jax`.
    Jax,
    /// `PET_NODE_RANK`, `PET_NNODES` and `PET_MASTER_ADDR`: Kubeflow Trainer v2 under
    /// `mlPolicy.torch`.
    Trainer,
    /// A Kubernetes Indexed Job or JobSet.
    Kubernetes,
    /// No cluster: the process runs by itself.
    OneProcess,
}

impl ClusterKind {
    /// All kinds, in the order in which they are tried: settings written for this program come
    /// before what a launcher sets, and the launcher before the scheduler it runs under.
    pub const ALL: [Self; 9] = [
        Self::TfConfig,
        Self::Torchrun,
        Self::OpenMpi,
        Self::Mpi,
        Self::Slurm,
        Self::Jax,
        Self::Trainer,
        Self::Kubernetes,
        Self::OneProcess,
    ];

    /// Whether it numbers the processes and says at most where rank 0 is, so that the others tell
    /// their addresses there; `false` where every address is listed, or there are no others.
    pub const fn says_only_where_to_meet(self) -> bool {
        matches!(
            self,
            Self::Torchrun | Self::OpenMpi | Self::Mpi | Self::Jax | Self::Trainer
        )
    }
}

/// A name for flags: `tf-config`, `torchrun`, `open-mpi`, `mpi`, `slurm`, `jax`,
/// `trainer`, `kubernetes`, `none`.
impl fmt::Display for ClusterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TfConfig => "tf-config",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "open-mpi",
            Self::Mpi => "mpi",
            Self::Slurm => "slurm",
            Self::Jax => "jax",
            Self::Trainer => "trainer",
            Self::Kubernetes => "kubernetes",
            Self::OneProcess => "none",
        })
    }
}
