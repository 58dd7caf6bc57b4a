//! The flags of `doctor --peers`.

use clap::Args;

use super::cluster::{ClusterName, host, seconds};

/// The processes of a job, and this one's place among them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Peers")]
pub(crate) struct PeersArgs {
    /// Find out which processes of the job reach each other, and how fast; all of them run this
    #[arg(long)]
    pub(crate) peers: bool,
    /// Address of rank 0, where nothing describes a cluster; all need the same token
    #[arg(long, value_name = "HOST:PORT", requires_all = ["peers", "hosts", "host"])]
    pub(crate) rendezvous: Option<String>,
    /// With --rendezvous: the number of hosts, with one process on each
    #[arg(long, value_name = "N", requires = "rendezvous", value_parser = super::positive)]
    pub(crate) hosts: Option<usize>,
    /// With --rendezvous: the number of this host, from 0
    #[arg(long, value_name = "N", requires = "rendezvous")]
    pub(crate) host: Option<usize>,
    /// Source of the cluster's description [default: detected, see `doctor`]
    #[arg(long, value_name = "NAME", requires = "peers")]
    pub(crate) cluster: Option<ClusterName>,
    /// The cluster itself, as in TF_CONFIG: {"worker":["host:port",...]}
    #[arg(
        long,
        value_name = "JSON",
        requires = "peers",
        conflicts_with = "rendezvous"
    )]
    pub(crate) cluster_spec: Option<String>,
    /// Type of this process: chief, worker, ps or evaluator
    #[arg(
        long,
        value_name = "NAME",
        requires = "peers",
        conflicts_with = "rendezvous"
    )]
    pub(crate) task_type: Option<String>,
    /// Number of this process among the processes of its type, from 0
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        requires = "peers",
        conflicts_with = "rendezvous"
    )]
    pub(crate) task_id: Option<i64>,
    /// First port of the workers if the cluster lists no ports [default: 8888]
    #[arg(long, value_name = "PORT", value_parser = super::port(), requires = "peers")]
    pub(crate) port: Option<u16>,
    /// Address of this host if only rank 0's is known [default: as in the connection to rank 0]
    #[arg(long, value_name = "HOST", value_parser = host, requires = "peers")]
    pub(crate) address: Option<String>,
    /// How long to wait for the others; then the report names who is missing [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), requires = "peers")]
    pub(crate) rendezvous_timeout: Option<u64>,
    /// Allow addresses beyond this machine without token and certificates
    #[arg(long, requires = "peers")]
    pub(crate) insecure: bool,
}
