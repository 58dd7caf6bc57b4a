//! Launchers that number the processes but do not say where each of them is: Open MPI, torchrun.

use super::environment::{Environment, Variables};
use super::{ClusterError, ClusterResolver, ClusterSpec, DEFAULT_PORT, Description, MAX_TASKS};

/// Ends the addresses of tasks that are not known yet (a name that never resolves, RFC 2606).
const UNKNOWN: &str = ".invalid:0";

/// Whether an address only stands for a task whose place is not known. Launchers such as
/// torchrun tell every process where rank 0 is; the others have to be asked there.
pub fn is_placeholder(address: &str) -> bool {
    address.ends_with(UNKNOWN)
}

/// Checks that `tasks` tasks can listen on ports from `first` on.
pub(super) fn check_ports(first: u16, tasks: usize) -> Result<(), ClusterError> {
    let last = (u64::from(first) + tasks as u64).saturating_sub(1);
    if last > u64::from(u16::MAX) {
        let first = u32::from(first);
        return Err(ClusterError::Port { first, last });
    }
    Ok(())
}

/// What a launcher says about this process.
struct Ranks {
    rank: usize,
    size: usize,
    /// The processes of this host, if the launcher says so.
    local_size: Option<usize>,
}

impl Ranks {
    /// Reads and checks the variables `[rank, size, local size]`.
    fn read(
        env: &Variables,
        names: [&'static str; 3],
        hint: &'static str,
    ) -> Result<Self, ClusterError> {
        let [rank_name, size_name, local_name] = names;
        let rank = env.require_number(&[rank_name], usize::MAX, hint)?;
        let size = env.require_number(&[size_name], MAX_TASKS, hint)?;
        let local_size = env.number(&[local_name], size)?;
        if rank >= size {
            return Err(ClusterError::RankTooBig {
                variable: rank_name,
                rank,
                size,
            });
        }
        Ok(Self {
            rank,
            size,
            local_size,
        })
    }

    fn is_one_host(&self) -> bool {
        self.size == 1 || self.local_size == Some(self.size)
    }

    fn index(&self) -> i64 {
        i64::try_from(self.rank).unwrap_or(i64::MAX)
    }

    /// All on one host: ports from `port` on. Else only worker 0's address is known.
    fn spec(&self, host: &str, port: u16) -> Result<ClusterSpec, ClusterError> {
        let host = bracketed(host);
        let one_host = self.is_one_host();
        if one_host {
            check_ports(port, self.size)?;
        }
        let address = |rank: usize| match rank {
            0 => format!("{host}:{port}"),
            _ if one_host => format!("{host}:{}", usize::from(port) + rank),
            _ => format!("worker-{rank}{UNKNOWN}"),
        };
        ClusterSpec::new([("worker", (0..self.size).map(address))])
    }
}

/// An IPv6 address needs brackets in front of a port.
fn bracketed(host: &str) -> String {
    let is_bare_v6 = host.contains(':') && !host.starts_with('[');
    if is_bare_v6 {
        format!("[{host}]")
    } else {
        host.to_string()
    }
}

fn port(env: &Variables, name: &'static str) -> Result<Option<u16>, ClusterError> {
    let number = env.number(&[name], usize::from(u16::MAX))?;
    Ok(number.and_then(|number| u16::try_from(number).ok()))
}

/// Reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, which torchrun sets, and
/// Kubeflow's PyTorchJob, and many scripts.
///
/// All processes are workers. On one host (`LOCAL_WORLD_SIZE` equals `WORLD_SIZE`) rank `i`
/// listens on port `MASTER_PORT + i`; between hosts only rank 0's address is known, and the
/// others have placeholders ([`is_placeholder`]). Under torchrun its own store has
/// `MASTER_PORT`, so ports start one later there.
#[derive(Debug, Clone)]
#[must_use]
pub struct TorchrunResolver {
    env: Variables,
    port_base: Option<u16>,
}

impl TorchrunResolver {
    const NAMES: [&'static str; 3] = ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"];
    const AGENT_STORE: &'static str = "TORCHELASTIC_USE_AGENT_STORE";

    /// Reads the variables of this environment.
    pub fn new(env: impl Environment + 'static) -> Self {
        Self::with_variables(Variables::new(env))
    }

    pub(super) fn with_variables(env: Variables) -> Self {
        Self {
            env,
            port_base: None,
        }
    }

    /// The port of rank 0, whatever `MASTER_PORT` says.
    pub fn port_base(mut self, port: u16) -> Self {
        self.port_base = Some(port);
        self
    }

    fn ranks(&self) -> Result<Ranks, ClusterError> {
        let hint = "torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT";
        Ranks::read(&self.env, Self::NAMES, hint)
    }

    fn port(&self) -> Result<u16, ClusterError> {
        if let Some(port) = self.port_base {
            return Ok(port);
        }
        let port = port(&self.env, "MASTER_PORT")?.unwrap_or(DEFAULT_PORT);
        let store = self.env.get(Self::AGENT_STORE)?.unwrap_or_default();
        if store.eq_ignore_ascii_case("true") {
            check_ports(port, 2)?;
            return Ok(port + 1);
        }
        Ok(port)
    }
}

impl ClusterResolver for TorchrunResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        let hint = "set it to the host that rank 0 runs on";
        let ranks = self.ranks()?;
        let (_, host) = self.env.require(&["MASTER_ADDR"], hint)?;
        ranks.spec(host.trim(), self.port()?)
    }

    fn task_type(&self) -> Result<Option<String>, ClusterError> {
        self.ranks().map(|_| Some("worker".to_string()))
    }

    fn task_id(&self) -> Result<Option<i64>, ClusterError> {
        self.ranks().map(|ranks| Some(ranks.index()))
    }

    fn describe(&self) -> Description {
        let [rank, size, local] = Self::NAMES;
        let names = [
            rank,
            size,
            local,
            "MASTER_ADDR",
            "MASTER_PORT",
            Self::AGENT_STORE,
        ];
        Description::new("torchrun variables", self.env.set_among(&names))
            .given("port_base", self.port_base)
    }
}

/// Reads `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` and `OMPI_COMM_WORLD_LOCAL_SIZE`, which
/// `mpirun` sets.
///
/// All processes are workers. Open MPI does not say which hosts it uses: on one host rank `i`
/// listens on port `port_base + i` of the loopback; between hosts `MASTER_ADDR` has to name rank
/// 0's (`mpirun -x MASTER_ADDR=host1 -x MASTER_PORT=8888`), and the other ranks have
/// placeholders ([`is_placeholder`]).
#[derive(Debug, Clone)]
#[must_use]
pub struct OpenMpiResolver {
    env: Variables,
    port_base: Option<u16>,
}

impl OpenMpiResolver {
    const NAMES: [&'static str; 3] = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ];

    /// Reads the variables of this environment.
    pub fn new(env: impl Environment + 'static) -> Self {
        Self::with_variables(Variables::new(env))
    }

    pub(super) fn with_variables(env: Variables) -> Self {
        Self {
            env,
            port_base: None,
        }
    }

    /// The port of rank 0; else `MASTER_PORT`, else [`DEFAULT_PORT`].
    pub fn port_base(mut self, port: u16) -> Self {
        self.port_base = Some(port);
        self
    }

    fn ranks(&self) -> Result<Ranks, ClusterError> {
        Ranks::read(
            &self.env,
            Self::NAMES,
            "start the program with Open MPI's mpirun",
        )
    }
}

impl ClusterResolver for OpenMpiResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        let ranks = self.ranks()?;
        let port = match self.port_base {
            Some(port) => port,
            None => port(&self.env, "MASTER_PORT")?.unwrap_or(DEFAULT_PORT),
        };
        let host = match self.env.get("MASTER_ADDR")? {
            Some(host) => host,
            None if ranks.is_one_host() => "127.0.0.1".to_string(),
            None => {
                return Err(ClusterError::MissingVariable {
                    variables: "MASTER_ADDR".to_string(),
                    hint: "Open MPI does not say where rank 0 runs: mpirun -x MASTER_ADDR=HOST",
                });
            }
        };
        ranks.spec(host.trim(), port)
    }

    fn task_type(&self) -> Result<Option<String>, ClusterError> {
        self.ranks().map(|_| Some("worker".to_string()))
    }

    fn task_id(&self) -> Result<Option<i64>, ClusterError> {
        self.ranks().map(|ranks| Some(ranks.index()))
    }

    fn describe(&self) -> Description {
        let [rank, size, local] = Self::NAMES;
        let names = [rank, size, local, "MASTER_ADDR", "MASTER_PORT"];
        Description::new("Open MPI", self.env.set_among(&names)).given("port_base", self.port_base)
    }
}
