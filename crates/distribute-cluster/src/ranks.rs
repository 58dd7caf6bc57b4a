//! Launchers that number the processes but do not say where each of them is: Open MPI, torchrun.

use super::environment::{Environment, Variables};
use super::{ClusterError, ClusterResolver, ClusterSpec, Description, MAX_TASKS, Result};

/// Ends the addresses of tasks that are not known yet (a name that never resolves, RFC 2606).
const UNKNOWN: &str = ".invalid:0";

/// Whether an address only stands for a task whose place is not known. Launchers such as
/// torchrun tell every process where rank 0 is; the others have to be asked there.
pub fn is_placeholder(address: &str) -> bool {
    address.ends_with(UNKNOWN)
}

/// Checks that `tasks` tasks can listen on ports from `first` on.
pub(super) fn check_ports(first: u16, tasks: usize) -> Result<()> {
    let last = (u64::from(first) + tasks as u64).saturating_sub(1);
    if last > u64::from(u16::MAX) {
        let first = u32::from(first);
        return Err(ClusterError::Port { first, last });
    }
    Ok(())
}

/// What a launcher calls its variables.
#[derive(Debug, Clone)]
struct Launcher {
    name: &'static str,
    /// This process' rank, the number of processes, and that of this host's.
    ranks: [&'static str; 3],
    /// Says whether the launcher itself listens on `MASTER_PORT`.
    store: Option<&'static str>,
    /// The host of processes that are all on one, where none is named.
    one_host: Option<&'static str>,
    hint: &'static str,
    host_hint: &'static str,
}

const TORCHRUN: Launcher = Launcher {
    name: "torchrun variables",
    ranks: ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"],
    store: Some("TORCHELASTIC_USE_AGENT_STORE"),
    one_host: None,
    hint: "torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
    host_hint: "set it to the host that rank 0 runs on",
};

const OPEN_MPI: Launcher = Launcher {
    name: "Open MPI",
    ranks: [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    store: None,
    one_host: Some("127.0.0.1"),
    hint: "start the program with Open MPI's mpirun",
    host_hint: "Open MPI does not say where rank 0 runs: mpirun -x MASTER_ADDR=HOST",
};

const HOST: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";

/// What a launcher says about this process.
struct Ranks {
    rank: usize,
    size: usize,
    is_one_host: bool,
}

/// Reads the ranks that torchrun or Open MPI number the processes with.
///
/// All processes are workers. On one host (as many processes there as in all) rank `i` listens on
/// port `MASTER_PORT + i`; between hosts only the address of rank 0 is known, at `MASTER_ADDR`,
/// and the other ranks have placeholders ([`is_placeholder`]).
#[derive(Debug, Clone)]
#[must_use]
pub struct RankResolver {
    env: Variables,
    launcher: Launcher,
    port_base: Option<u16>,
}

impl RankResolver {
    /// Reads `RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, which
    /// torchrun sets, and Kubeflow's PyTorchJob, and many scripts. Under torchrun its own store
    /// has `MASTER_PORT`, so ports start one later there.
    pub fn torchrun(env: impl Environment + 'static) -> Self {
        Self::new(env, TORCHRUN)
    }

    /// Reads `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` and `OMPI_COMM_WORLD_LOCAL_SIZE`,
    /// which `mpirun` sets.
    ///
    /// Open MPI does not say which hosts it uses: on one host the loopback is taken, between hosts
    /// `MASTER_ADDR` has to be given (`mpirun -x MASTER_ADDR=host1 -x MASTER_PORT=8888`).
    pub fn open_mpi(env: impl Environment + 'static) -> Self {
        Self::new(env, OPEN_MPI)
    }

    fn new(env: impl Environment + 'static, launcher: Launcher) -> Self {
        Self {
            env: Variables::new(env),
            launcher,
            port_base: None,
        }
    }

    /// The port of rank 0, whatever `MASTER_PORT` says; [`super::DEFAULT_PORT`] if nothing does.
    pub fn port_base(mut self, port: impl Into<Option<u16>>) -> Self {
        self.port_base = port.into();
        self
    }

    fn ranks(&self) -> Result<Ranks> {
        let Launcher { ranks, hint, .. } = self.launcher;
        let [rank_name, size_name, local_name] = ranks;
        let rank = self.env.require_number(&[rank_name], usize::MAX, hint)?;
        let size = self.env.require_number(&[size_name], MAX_TASKS, hint)?;
        let local_size = self.env.number(&[local_name], size)?;
        ClusterError::check_rank(rank_name, rank, size)?;
        Ok(Ranks {
            rank,
            size,
            is_one_host: size == 1 || local_size == Some(size),
        })
    }

    fn host(&self, is_one_host: bool) -> Result<String> {
        let one_host = self.launcher.one_host.filter(|_| is_one_host);
        let host = match (self.env.var(HOST)?, one_host) {
            (None, Some(host)) => host.to_string(),
            (host, _) => {
                host.ok_or_else(|| ClusterError::missing(&[HOST], self.launcher.host_hint))?
            }
        };
        let host = host.trim();
        // An IPv6 address needs brackets in front of a port.
        Ok(match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host.to_string(),
        })
    }

    fn port(&self) -> Result<u16> {
        if let Some(port) = self.port_base {
            return Ok(port);
        }
        let port = self.env.port(PORT)?;
        let store = self.launcher.store.map(|name| self.env.var(name));
        let store = store.transpose()?.flatten().unwrap_or_default();
        if store.eq_ignore_ascii_case("true") {
            check_ports(port, 2)?;
            return Ok(port + 1);
        }
        Ok(port)
    }
}

impl ClusterResolver for RankResolver {
    /// All on one host: ports from the first on. Else only worker 0's address is known.
    fn cluster_spec(&self) -> Result<ClusterSpec> {
        let Ranks {
            size, is_one_host, ..
        } = self.ranks()?;
        let (host, port) = (self.host(is_one_host)?, self.port()?);
        if is_one_host {
            check_ports(port, size)?;
        }
        let address = |rank: usize| match rank {
            0 => format!("{host}:{port}"),
            _ if is_one_host => format!("{host}:{}", usize::from(port) + rank),
            _ => format!("worker-{rank}{UNKNOWN}"),
        };
        ClusterSpec::new([("worker", (0..size).map(address))])
    }

    fn task_type(&self) -> Result<Option<String>> {
        self.ranks().map(|_| Some("worker".to_string()))
    }

    fn task_id(&self) -> Result<Option<i64>> {
        self.ranks().map(|ranks| i64::try_from(ranks.rank).ok())
    }

    fn describe(&self) -> Description {
        let mut names = [&self.launcher.ranks[..], &[HOST, PORT]].concat();
        names.extend(self.launcher.store);
        Description::new(self.launcher.name, self.env.set_among(&names))
            .given("port_base", self.port_base)
    }
}
