//! Launchers that number the processes but do not say where each of them is: Open MPI, torchrun.

use super::environment::{Environment, Variables};
use super::launchers::{self, JAX, Launcher, Meeting, OPEN_MPI, OTHERS, TORCHRUN, TRAINER};
use super::meeting::{self, Place};
use super::{
    ClusterError, ClusterResolver, ClusterSpec, DEFAULT_PORT, Description, MAX_TASKS, Result,
};

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

/// The launcher's information about this process.
struct Ranks {
    rank: usize,
    size: usize,
    is_one_host: bool,
}

/// Reads the ranks that torchrun, Open MPI or another MPI, or Kubeflow Trainer number the processes
/// with.
///
/// All processes are workers. On one host (as many processes there as in all) rank `i` listens on
/// port `MASTER_PORT + i`. Between hosts only the address of rank 0 is known, at `MASTER_ADDR` or
/// [`Self::rendezvous`]; the others have none in the [`ClusterSpec`]: each tells rank 0 where it
/// listens when it comes, and rank 0 tells the others.
///
/// | launcher | rank, size | of this host | rank 0 is at |
/// |---|---|---|---|
/// | [torchrun] | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `MASTER_ADDR` |
/// | [Open MPI] | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `_LOCAL_RANK`, `_LOCAL_SIZE` | not said |
/// | [MPICH], Intel MPI | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALRANKID`, `_LOCALNRANKS` | not said |
/// | [PALS] | `PMI_RANK`, `PMI_SIZE` | `PALS_LOCAL_RANKID`, `_LOCAL_SIZE` | not said |
/// | [MVAPICH] | `MVP_COMM_WORLD_RANK` (2: `MV2_`), `_SIZE` | `_LOCAL_RANK`, `_SIZE` | not said |
/// | [JSM] | `JSM_NAMESPACE_RANK`, `_SIZE` | `_LOCAL_RANK`, `_LOCAL_SIZE` | not said |
/// | [Flux] | `FLUX_TASK_RANK`, `FLUX_JOB_SIZE` | `FLUX_TASK_LOCAL_ID` | not said |
/// | [Trainer], torch | `PET_NODE_RANK`, `PET_NNODES` | one per pod | `PET_MASTER_ADDR` |
/// | [Trainer], [JAX] | `JAX_PROCESS_ID`, `_NUM_PROCESSES` | not said | `JAX_COORDINATOR_ADDRESS` |
///
/// [torchrun]: https://docs.pytorch.org/docs/stable/elastic/run.html
/// [Open MPI]: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
/// [MPICH]: https://github.com/pmodels/mpich/blob/main/doc/wiki/how_to
/// [PALS]: https://docs.alcf.anl.gov/aurora/running-jobs-aurora
/// [MVAPICH]: https://mvapich.cse.ohio-state.edu/userguide
/// [JSM]: https://www.ibm.com/docs/en/SSWRJV_10.1.0/jsm/jsm_kickoff.html
/// [Flux]: https://flux-framework.readthedocs.io/projects/flux-core/en/latest/man7
/// [Trainer]: https://www.kubeflow.org/docs/components/trainer/user-guides/pytorch
/// [JAX]: https://www.kubeflow.org/docs/components/trainer/user-guides/jax
#[derive(Debug, Clone)]
#[must_use]
pub struct RankResolver {
    env: Variables,
    launcher: Launcher,
    port_base: Option<u16>,
    rendezvous: Option<String>,
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
    /// `MASTER_ADDR` has to be given (`mpirun -x MASTER_ADDR=host1 -x MASTER_PORT=8888`), or
    /// [`Self::rendezvous`].
    pub fn open_mpi(env: impl Environment + 'static) -> Self {
        Self::new(env, |_| OPEN_MPI)
    }

    /// Reads what other launchers set: `PMI_RANK` and `PMI_SIZE` (MPICH, Intel MPI, MVAPICH, PALS),
    /// `MVP_COMM_WORLD_*` and `MV2_COMM_WORLD_*`, `JSM_NAMESPACE_*`, `FLUX_TASK_RANK` and
    /// `FLUX_JOB_SIZE`, `HOROVOD_*`. Between hosts `MASTER_ADDR` has to be given, as for Open MPI.
    pub fn mpi(env: impl Environment + 'static) -> Self {
        let [_, _, pmi, ..] = OTHERS;
        Self::new(env, |env| launchers::other_in_part(env).unwrap_or(pmi))
    }

    /// Reads `JAX_PROCESS_ID`, `JAX_NUM_PROCESSES` and `JAX_COORDINATOR_ADDRESS`, which Kubeflow
    /// Trainer v2 sets under `mlPolicy.jax`.
    pub fn jax(env: impl Environment + 'static) -> Self {
        Self::new(env, |_| JAX)
    }

    /// Reads `PET_NODE_RANK`, `PET_NNODES`, `PET_MASTER_ADDR` and `PET_MASTER_PORT`, which Kubeflow
    /// Trainer v2 sets under `mlPolicy.torch`, for a pod that runs this program and not torchrun.
    /// Each pod is one worker: `PET_NPROC_PER_NODE` tells torchrun how many processes to start, and
    /// is not read. A range in `PET_NNODES` (`2:4`) is an error, as only torchrun makes a number of
    /// it; `2:2` is 2.
    pub fn trainer(env: impl Environment + 'static) -> Self {
        Self::new(env, |_| TRAINER)
    }

    fn new(env: impl Environment + 'static, launcher: impl FnOnce(&Variables) -> Launcher) -> Self {
        let env = Variables::new(env);
        Self {
            launcher: launcher(&env),
            env,
            port_base: None,
            rendezvous: None,
        }
    }

    /// The port of rank 0, whatever `MASTER_PORT` says; [`super::DEFAULT_PORT`] if nothing does.
    /// With it the others, too, listen on the port of their place on their host from there on. Rank
    /// 0 listens on the port of [`Self::rendezvous`], if that is given.
    pub fn port_base(mut self, port: impl Into<Option<u16>>) -> Self {
        self.port_base = port.into();
        self
    }

    /// Where rank 0 listens and the others meet it, `HOST:PORT`, whatever the launcher says of it.
    pub fn rendezvous(mut self, address: impl Into<Option<String>>) -> Self {
        self.rendezvous = address.into();
        self
    }

    fn ranks(&self) -> Result<Ranks> {
        let Launcher {
            rank, size, hint, ..
        } = self.launcher;
        let number = self.env.require_number(&[rank], MAX_TASKS, hint)?;
        let count = self.launcher.count(&self.env, MAX_TASKS)?;
        let count = count.ok_or_else(|| ClusterError::missing(&[size], hint))?;
        let local_size = self.env.number(self.launcher.local_size, count)?;
        ClusterError::check_rank(rank, number, count)?;
        Ok(Ranks {
            rank: number,
            size: count,
            is_one_host: count == 1 || local_size == Some(count),
        })
    }

    /// Where rank 0 listens.
    fn meeting(&self, is_one_host: bool) -> Result<Place> {
        if let Some(address) = &self.rendezvous {
            return meeting::from_address("--rendezvous", address);
        }
        let one_host = self.launcher.one_host.filter(|_| is_one_host);
        let (host, port) = match self.launcher.meeting {
            Meeting::HostAndPort(host, port) => (host, port),
            Meeting::Address(name) => {
                let address = self.env.require(&[name], self.launcher.host_hint)?;
                let place = meeting::from_address(name, &address)?;
                return Ok(place.with_port(self.port_base));
            }
        };
        let given = self.env.var(host)?.filter(|host| !host.trim().is_empty());
        let given = match (given, one_host) {
            (None, Some(host)) => host.to_string(),
            (given, _) => {
                given.ok_or_else(|| ClusterError::missing(&[host], self.launcher.host_hint))?
            }
        };
        let host = meeting::host(host, port, &given, self.launcher.host_hint)?;
        let port = self.port(port)?;
        Ok(Place { host, port })
    }

    fn port(&self, variable: &'static str) -> Result<u16> {
        if let Some(port) = self.port_base {
            check_base(port)?;
            return Ok(port);
        }
        let port = self.env.port(variable)?;
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
            let port = self.port_base.unwrap_or(DEFAULT_PORT);
            check_base(port)?;
            return ClusterSpec::new([("worker", [format!("127.0.0.1:{port}")])]);
        }
        if let Some(port) = self.port_base {
            check_base(port)?;
        }
        let Place { host, port } = self.meeting(is_one_host)?;
        let first = self.port_base.unwrap_or(port);
        if is_one_host {
            check_ports(first, size)?;
        }
        let address = |rank: usize| match rank {
            0 => Some(format!("{host}:{port}")),
            _ if is_one_host => Some(format!("{host}:{}", usize::from(first) + rank)),
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
        let names = self.launcher.variables();
        Description::new(self.launcher.name, self.env.set_among(&names))
            .given("port_base", self.port_base)
            .given("rendezvous", self.rendezvous.as_ref())
    }
}
