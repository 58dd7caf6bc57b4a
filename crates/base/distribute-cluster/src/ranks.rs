//! Launchers that number the processes but do not say where each of them is: Open MPI, torchrun.

use super::addresses::check_host;
use super::environment::{Environment, Variables};
use super::launchers::{self, Launcher, OPEN_MPI, OTHERS, TORCHRUN};
use super::{ClusterError, ClusterResolver, ClusterSpec, Description, MAX_TASKS, Result};

/// Checks that `tasks` tasks can listen on ports from `first` on.
pub(super) fn check_ports(first: u16, tasks: usize) -> Result<()> {
    let last = (u64::from(first) + tasks as u64).saturating_sub(1);
    if last > u64::from(u16::MAX) {
        let first = u32::from(first);
        return Err(ClusterError::Port { first, last });
    }
    Ok(())
}

/// Refuses port 0 as the first one.
pub(super) fn check_base(port: u16) -> Result<()> {
    match port {
        0 => {
            let why = "0 is no port to meet at: choose one from 1 to 65535";
            Err(ClusterError::invalid_variable(
                "port_base (--port)",
                "0",
                why,
            ))
        }
        _ => Ok(()),
    }
}

const HOST: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";

/// The launcher's information about this process.
struct Ranks {
    rank: usize,
    size: usize,
    is_one_host: bool,
}

/// Reads the ranks that torchrun, Open MPI or another MPI number the processes with.
///
/// All processes are workers. On one host (as many processes there as in all) rank `i` listens on
/// port `MASTER_PORT + i`. Between hosts only the address of rank 0 is known, at `MASTER_ADDR`; the
/// others have none in the [`ClusterSpec`]: each tells rank 0 where it listens when it comes, and
/// rank 0 tells the others.
#[derive(Debug, Clone)]
#[must_use]
pub struct RankResolver {
    env: Variables,
    launcher: Launcher,
    port_base: Option<u16>,
}

impl RankResolver {
    /// Reads `RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and
    /// `MASTER_PORT`, which torchrun sets, and Kubeflow's PyTorchJob, and many scripts. Under
    /// torchrun its own store has `MASTER_PORT` (then `TORCHELASTIC_USE_AGENT_STORE` is set), so
    /// ports start one later there.
    pub fn torchrun(env: impl Environment + 'static) -> Self {
        Self::new(env, |_| TORCHRUN)
    }

    /// Reads `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`, `OMPI_COMM_WORLD_LOCAL_SIZE` and
    /// `OMPI_COMM_WORLD_LOCAL_RANK`, which `mpirun` sets.
    ///
    /// Open MPI does not say which hosts it uses: on one host the loopback is taken, between hosts
    /// `MASTER_ADDR` has to be given (`mpirun -x MASTER_ADDR=host1 -x MASTER_PORT=8888`).
    pub fn open_mpi(env: impl Environment + 'static) -> Self {
        Self::new(env, |_| OPEN_MPI)
    }

    /// Reads what other launchers set: `PMI_RANK` and `PMI_SIZE` (MPICH, Intel MPI, MVAPICH, PALS),
    /// `MV2_COMM_WORLD_*`, `JSM_NAMESPACE_*`, `FLUX_TASK_RANK` and `FLUX_JOB_SIZE`, `HOROVOD_*`.
    /// Between hosts `MASTER_ADDR` has to be given, as for Open MPI.
    pub fn mpi(env: impl Environment + 'static) -> Self {
        let [_, pmi, ..] = OTHERS;
        Self::new(env, |env| launchers::other(env).unwrap_or(pmi))
    }

    fn new(env: impl Environment + 'static, launcher: impl FnOnce(&Variables) -> Launcher) -> Self {
        let env = Variables::new(env);
        Self {
            launcher: launcher(&env),
            env,
            port_base: None,
        }
    }

    /// The port of rank 0, whatever `MASTER_PORT` says; [`super::DEFAULT_PORT`] if nothing does.
    /// With it the others, too, listen on the port of their place on their host from there on.
    pub fn port_base(mut self, port: impl Into<Option<u16>>) -> Self {
        self.port_base = port.into();
        self
    }

    fn ranks(&self) -> Result<Ranks> {
        let Launcher {
            rank, size, hint, ..
        } = self.launcher;
        let number = self.env.require_number(&[rank], usize::MAX, hint)?;
        let count = self.env.require_number(&[size], MAX_TASKS, hint)?;
        let local_size = self.env.number(self.launcher.local_size, count)?;
        ClusterError::check_rank(rank, number, count)?;
        Ok(Ranks {
            rank: number,
            size: count,
            is_one_host: count == 1 || local_size == Some(count),
        })
    }

    fn host(&self, is_one_host: bool) -> Result<String> {
        let one_host = self.launcher.one_host.filter(|_| is_one_host);
        let given = self.env.var(HOST)?.filter(|host| !host.trim().is_empty());
        let host = match (given, one_host) {
            (None, Some(host)) => host.to_string(),
            (host, _) => {
                host.ok_or_else(|| ClusterError::missing(&[HOST], self.launcher.host_hint))?
            }
        };
        let host = host.trim();
        let refuse = |why: String| Err(ClusterError::invalid_variable(HOST, host, why));
        // An IPv6 address has several colons, or none outside of brackets.
        let is_ipv6 = host.starts_with('[') || host.matches(':').count() > 1;
        let end = host.rsplit_once(':').filter(|(before, port)| {
            let outside = !is_ipv6 || before.ends_with(']');
            outside && port.parse::<u16>().is_ok()
        });
        if let (Some((before, port)), false) = (end, host.contains("://")) {
            let why = format!("a port is not part of it: {HOST}={before} and {PORT}={port}");
            return refuse(why);
        }
        if let Err(why) = check_host(host) {
            return refuse(format!("{why}; {}", self.launcher.host_hint));
        }
        let inner = host.trim_start_matches('[').trim_end_matches(']');
        let address = inner.split('%').next().unwrap_or_default();
        if host.contains([':', '[']) && address.parse::<std::net::Ipv6Addr>().is_err() {
            return refuse("it is neither a name nor an IP address".to_string());
        }
        // An IPv6 address needs brackets in front of a port.
        Ok(if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host.to_string()
        })
    }

    fn port(&self) -> Result<u16> {
        if let Some(port) = self.port_base {
            check_base(port)?;
            return Ok(port);
        }
        let port = self.env.port(PORT)?;
        let store = self
            .launcher
            .store
            .map(|name| self.env.var(name))
            .transpose()?
            .flatten()
            .unwrap_or_default();
        let is_taken = ["true", "1"].contains(&store.trim().to_ascii_lowercase().as_str());
        if is_taken {
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
        if size == 1 {
            // It is alone, so the address does not matter.
            return ClusterSpec::new([("worker", [format!("127.0.0.1:{}", self.port()?)])]);
        }
        let (host, port) = (self.host(is_one_host)?, self.port()?);
        if is_one_host {
            check_ports(port, size)?;
        }
        let address = |rank: usize| match rank {
            0 => Some(format!("{host}:{port}")),
            _ if is_one_host => Some(format!("{host}:{}", usize::from(port) + rank)),
            _ => None,
        };
        let tasks = (0_i64..).zip((0..size).map(address));
        ClusterSpec::partly_known([("worker", tasks)])
    }

    fn task_type(&self) -> Result<Option<String>> {
        self.ranks().map(|_| Some("worker".to_string()))
    }

    fn task_id(&self) -> Result<Option<i64>> {
        self.ranks().map(|ranks| i64::try_from(ranks.rank).ok())
    }

    fn local_rank(&self) -> Result<Option<usize>> {
        self.env.number(self.launcher.local_rank, MAX_TASKS)
    }

    fn own_port(&self) -> Result<Option<u16>> {
        let Some(first) = self.port_base else {
            return Ok(None);
        };
        let place = self.local_rank()?.unwrap_or(0);
        check_ports(first, place.saturating_add(1))?;
        Ok(u16::try_from(usize::from(first) + place).ok())
    }

    fn describe(&self) -> Description {
        let mut names = self.launcher.variables();
        names.extend([HOST, PORT]);
        names.extend(self.launcher.store);
        Description::new(self.launcher.name, self.env.set_among(&names))
            .given("port_base", self.port_base)
    }
}
