//! The flags about several workers.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use distribute_core::CommunicationImplementation;
use distribute_core::cluster::ClusterKind;
use distribute_core::collectives::{ProcessTransport, WireType};

/// This worker's rank, and how the workers communicate.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several workers (--strategy multi-worker or parameter-server)")]
pub(crate) struct ClusterArgs {
    /// Copies of the model in the whole job, distributed over any number of workers
    #[arg(
        long,
        value_name = "N",
        value_parser = super::positive,
        allow_negative_numbers = true,
        conflicts_with_all = ["replicas", "replicas_per_device"]
    )]
    pub(crate) total_replicas: Option<usize>,
    /// Source of the cluster's description [default: detected, see `doctor`]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<ClusterName>,
    /// The cluster itself, as in TF_CONFIG: {"worker":["host:port",...]}
    #[arg(long, value_name = "JSON")]
    pub(crate) cluster_spec: Option<String>,
    /// Type of this process: chief, worker, ps or evaluator
    #[arg(long, value_name = "NAME")]
    pub(crate) task_type: Option<String>,
    /// Number of this process among the processes of its type, from 0
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) task_id: Option<i64>,
    /// First port of the workers if the cluster lists no ports [default: 8888]
    #[arg(long, value_name = "PORT", value_parser = super::port())]
    pub(crate) port: Option<u16>,
    /// Address of this host if only worker 0's is known [default: as in the connection to worker 0]
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub(crate) address: Option<String>,
    /// Where worker 0 listens and the others meet it [default: as the launcher says, MASTER_ADDR]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) rendezvous: Option<String>,
    /// Transport between workers [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) transport: Option<TransportName>,
    /// How gradients are reduced between workers [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(crate) communication: Option<CommunicationName>,
    /// Reduce gradients in packs of about N bytes [default: one pack]
    #[arg(long, value_name = "N")]
    pub(crate) bytes_per_pack: Option<usize>,
    /// Type of sent gradients, with servers also of values; sums and weights are f32 [default: f32]
    #[arg(long, value_name = "NAME")]
    pub(crate) wire: Option<WireName>,
    /// How long to wait for the other workers at the start [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds())]
    pub(crate) rendezvous_timeout: Option<u64>,
    /// How long the others wait for a live worker in an exchange [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = seconds())]
    pub(crate) timeout: Option<u64>,
    /// How long a worker may give no sign of life [default: 3]
    #[arg(long, value_name = "SECONDS", value_parser = seconds())]
    pub(crate) heartbeat_timeout: Option<u64>,
    /// Encrypt: this host's directory from `certs`, next to ca.pem and token
    #[arg(long, value_name = "DIR")]
    pub(crate) certs: Option<PathBuf>,
    /// Allow addresses beyond this machine without token and certificates
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Keep the state of every N-th step in memory [N: 1]; `launch` continues from it after a loss
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = super::positive_u64,
        allow_negative_numbers = true
    )]
    pub(crate) replicate_state: Option<u64>,
    /// Write the last operations here when a worker fails, for `blame`
    #[arg(long, value_name = "DIR")]
    pub(crate) flight_records: Option<PathBuf>,
}

/// A name or an IP address, without a port.
pub(super) fn host(text: &str) -> Result<String, String> {
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let host = inner.unwrap_or(text);
    let ip: Option<IpAddr> = host.split('%').next().and_then(|it| it.parse().ok());
    match ip {
        Some(ip) if ip.is_unspecified() => {
            Err("it is the address by which the others reach this host: name one".to_string())
        }
        Some(_) => Ok(host.to_string()),
        None if host.is_empty() || host.contains([':', '/', ' ']) => {
            Err("it is a name or an IP address, without a port; --port chooses that".to_string())
        }
        None => Ok(host.to_string()),
    }
}

pub(super) fn seconds() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=10_000_000)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClusterName {
    /// The variable TF_CONFIG
    TfConfig,
    /// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
    Torchrun,
    /// The variables of Open MPI's mpirun
    OpenMpi,
    /// The variables of MPICH, Intel MPI, MVAPICH, JSM, Flux or Horovod, such as PMI_RANK
    Mpi,
    /// The variables of a SLURM step
    Slurm,
    /// JAX_PROCESS_ID, JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS (Kubeflow Trainer)
    Jax,
    /// PET_NODE_RANK, PET_NNODES, PET_MASTER_ADDR and PET_MASTER_PORT (Kubeflow Trainer)
    Trainer,
    /// An Indexed Job or a JobSet
    Kubernetes,
    /// No cluster: this process trains by itself
    None,
}

impl From<ClusterName> for ClusterKind {
    fn from(name: ClusterName) -> Self {
        match name {
            ClusterName::TfConfig => Self::TfConfig,
            ClusterName::Torchrun => Self::Torchrun,
            ClusterName::OpenMpi => Self::OpenMpi,
            ClusterName::Mpi => Self::Mpi,
            ClusterName::Slurm => Self::Slurm,
            ClusterName::Jax => Self::Jax,
            ClusterName::Trainer => Self::Trainer,
            ClusterName::Kubernetes => Self::Kubernetes,
            ClusterName::None => Self::OneProcess,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// Shared memory within a host, gRPC between hosts
    Auto,
    /// Shared memory only
    Shm,
    /// gRPC only
    Grpc,
}

impl From<TransportName> for ProcessTransport {
    fn from(name: TransportName) -> Self {
        match name {
            TransportName::Auto => Self::Auto,
            TransportName::Shm => Self::SharedMemory,
            TransportName::Grpc => Self::Grpc,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CommunicationName {
    /// The best algorithm for each size
    Auto,
    /// A ring
    Ring,
    /// NCCL for gradients of GPUs, or an error; auto uses it if possible
    Nccl,
}

impl From<CommunicationName> for CommunicationImplementation {
    fn from(name: CommunicationName) -> Self {
        match name {
            CommunicationName::Auto => Self::Auto,
            CommunicationName::Ring => Self::Ring,
            CommunicationName::Nccl => Self::Nccl,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WireName {
    F32,
    Bf16,
    /// At most 65504; not for parameter servers
    F16,
}

impl WireName {
    /// The wire type, if it is narrower than f32.
    pub(crate) fn narrow(self) -> Option<WireType> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(WireType::Bf16),
            Self::F16 => Some(WireType::F16),
        }
    }
}
