//! The purposes of connections.

use serde::{Deserialize, Serialize};

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Purpose {
    /// The control plane of a group of ranks.
    Control,
    /// The data of a group of ranks.
    Data,
    /// The memory that the ranks of one host share.
    SharedMemory,
    /// The variables of a parameter server.
    ParameterServer,
    /// The closures of a worker.
    Worker,
    /// The launchers of the hosts of a job.
    Launcher,
    /// A check of the network between the processes of a job.
    Doctor,
    /// A purpose that this version does not know.
    #[serde(other)]
    Unknown,
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Purpose::Control => "control plane",
            Purpose::Data => "data connection",
            Purpose::SharedMemory => "shared memory",
            Purpose::ParameterServer => "parameter server",
            Purpose::Worker => "worker",
            Purpose::Launcher => "launcher",
            Purpose::Doctor => "check of the network (doctor)",
            Purpose::Unknown => "process of another version",
        })
    }
}
