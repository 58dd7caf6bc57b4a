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
    /// A Kubernetes Indexed Job or JobSet.
    Kubernetes,
    /// No cluster: the process runs by itself.
    OneProcess,
}

impl ClusterKind {
    /// All kinds, in the order in which they are tried: settings written for this program come
    /// before what a launcher sets, and the launcher before the scheduler it runs under.
    pub const ALL: [Self; 7] = [
        Self::TfConfig,
        Self::Torchrun,
        Self::OpenMpi,
        Self::Mpi,
        Self::Slurm,
        Self::Kubernetes,
        Self::OneProcess,
    ];
}

/// A name for flags: `tf-config`, `torchrun`, `open-mpi`, `mpi`, `slurm`, `kubernetes`, `none`.
impl fmt::Display for ClusterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TfConfig => "tf-config",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "open-mpi",
            Self::Mpi => "mpi",
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
            Self::OneProcess => "none",
        })
    }
}
