//! The variables of launchers that number their processes.

use super::environment::{Environment, Variables, is_digits, number_in};
use super::{ClusterError, Result};

/// A launcher that tells each process its rank, and how many there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Launcher {
    pub(super) name: &'static str,
    /// This process' rank, the number of processes, of this host's processes, and this process'
    /// place among these. Of the names of one thing the first that is set counts.
    pub(super) rank: &'static str,
    pub(super) size: &'static str,
    pub(super) local_size: &'static [&'static str],
    pub(super) local_rank: &'static [&'static str],
    /// The number of processes may be a range `MIN:MAX`, of which the launcher's own program makes
    /// a number later.
    pub(super) has_range: bool,
    /// The host of rank 0, where the processes meet, and the port there.
    pub(super) meeting: Meeting,
    /// Says whether the launcher itself listens on `MASTER_PORT`.
    pub(super) store: Option<&'static str>,
    /// The host of processes that are all on one, where none is named.
    pub(super) one_host: Option<&'static str>,
    pub(super) hint: &'static str,
    pub(super) host_hint: &'static str,
}

/// The variables that say where rank 0 is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Meeting {
    /// The host in the first, the port in the second.
    HostAndPort(&'static str, &'static str),
    /// `HOST:PORT` in one.
    Address(&'static str),
}

impl Meeting {
    /// The variable without which there is no place to meet at.
    pub(super) const fn host(self) -> &'static str {
        match self {
            Self::HostAndPort(host, _) => host,
            Self::Address(both) => both,
        }
    }

    /// All of them.
    pub(super) fn variables(self) -> Vec<&'static str> {
        match self {
            Self::HostAndPort(host, port) => vec![host, port],
            Self::Address(both) => vec![both],
        }
    }
}

const MASTER: Meeting = Meeting::HostAndPort("MASTER_ADDR", "MASTER_PORT");

pub(super) const TORCHRUN: Launcher = Launcher {
    name: "torchrun variables",
    rank: "RANK",
    size: "WORLD_SIZE",
    local_size: &["LOCAL_WORLD_SIZE"],
    local_rank: &["LOCAL_RANK"],
    has_range: false,
    meeting: MASTER,
    store: Some("TORCHELASTIC_USE_AGENT_STORE"),
    one_host: None,
    hint: "torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
    host_hint: "set it to the host that rank 0 runs on, or give `--rendezvous HOST:PORT`",
};

/// What Kubeflow Trainer v2 gives the pods of a runtime with `mlPolicy.torch`, for torchrun to
/// read: one process per pod, so the pods are the ranks. torchrun's children have
/// [`TORCHRUN`]'s variables too, which come first.
pub(super) const TRAINER: Launcher = Launcher {
    name: "Kubeflow Trainer",
    rank: "PET_NODE_RANK",
    size: "PET_NNODES",
    local_size: &[],
    local_rank: &[],
    has_range: true,
    meeting: Meeting::HostAndPort("PET_MASTER_ADDR", "PET_MASTER_PORT"),
    hint: "Kubeflow Trainer sets PET_NODE_RANK, PET_NNODES, PET_MASTER_ADDR and PET_MASTER_PORT",
    ..TORCHRUN_LIKE
};

/// What Kubeflow Trainer v2 gives the pods of a runtime with `mlPolicy.jax`, and scripts their JAX
/// processes.
pub(super) const JAX: Launcher = Launcher {
    name: "JAX variables",
    rank: "JAX_PROCESS_ID",
    size: "JAX_NUM_PROCESSES",
    local_size: &[],
    local_rank: &[],
    meeting: Meeting::Address("JAX_COORDINATOR_ADDRESS"),
    hint: "set JAX_PROCESS_ID, JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS, as Kubeflow Trainer \
           does",
    ..TORCHRUN_LIKE
};

/// As torchrun's variables, without a store on the port to meet at.
const TORCHRUN_LIKE: Launcher = Launcher {
    store: None,
    ..TORCHRUN
};

/// What all launchers below have alike: none of them says where rank 0 is.
const MPI: Launcher = Launcher {
    name: "",
    rank: "",
    size: "",
    local_size: &[],
    local_rank: &[],
    has_range: false,
    meeting: MASTER,
    store: None,
    one_host: Some("127.0.0.1"),
    hint: "start the program with the launcher of your MPI",
    host_hint: "the launcher does not say where rank 0 runs: give all processes `--rendezvous \
                HOST:PORT`, or the variable MASTER_ADDR with the host of rank 0 (mpirun -genv \
                MASTER_ADDR HOST, or export it)",
};

pub(super) const OPEN_MPI: Launcher = Launcher {
    name: "Open MPI",
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
    hint: "start the program with Open MPI's mpirun",
    host_hint: "Open MPI does not say where rank 0 runs: give all processes `--rendezvous \
                HOST:PORT`, or the host of rank 0 (mpirun -x MASTER_ADDR=HOST)",
    ..MPI
};

/// The other launchers that say rank and size, in the order they are tried in.
pub(super) const OTHERS: [Launcher; 6] = [
    Launcher {
        name: "MVAPICH",
        rank: "MVP_COMM_WORLD_RANK",
        size: "MVP_COMM_WORLD_SIZE",
        local_size: &["MVP_COMM_WORLD_LOCAL_SIZE"],
        local_rank: &["MVP_COMM_WORLD_LOCAL_RANK"],
        ..MPI
    },
    Launcher {
        name: "MVAPICH2",
        rank: "MV2_COMM_WORLD_RANK",
        size: "MV2_COMM_WORLD_SIZE",
        local_size: &["MV2_COMM_WORLD_LOCAL_SIZE"],
        local_rank: &["MV2_COMM_WORLD_LOCAL_RANK"],
        ..MPI
    },
    Launcher {
        name: "PMI (MPICH, Intel MPI, MVAPICH, PALS)",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"],
        ..MPI
    },
    Launcher {
        name: "JSM",
        rank: "JSM_NAMESPACE_RANK",
        size: "JSM_NAMESPACE_SIZE",
        local_size: &["JSM_NAMESPACE_LOCAL_SIZE"],
        local_rank: &["JSM_NAMESPACE_LOCAL_RANK"],
        ..MPI
    },
    Launcher {
        name: "Flux",
        rank: "FLUX_TASK_RANK",
        size: "FLUX_JOB_SIZE",
        local_rank: &["FLUX_TASK_LOCAL_ID"],
        ..MPI
    },
    Launcher {
        name: "Horovod",
        rank: "HOROVOD_RANK",
        size: "HOROVOD_SIZE",
        local_size: &["HOROVOD_LOCAL_SIZE"],
        local_rank: &["HOROVOD_LOCAL_RANK"],
        ..MPI
    },
];

/// The variables by which launchers other than torchrun, Open MPI and `srun` number processes: for
/// a report of what is set.
pub const LAUNCHER_VARIABLES: [&str; 28] = [
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_ID",
    "PMIX_RANK",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "MVP_COMM_WORLD_RANK",
    "MVP_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_RANK",
    "JSM_NAMESPACE_SIZE",
    "FLUX_TASK_RANK",
    "FLUX_JOB_SIZE",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "PALS_RANKID",
    "ALPS_APP_PE",
    "MP_CHILD",
    "LSF_PM_TASKID",
    "JAX_PROCESS_ID",
    "JAX_NUM_PROCESSES",
    "JAX_COORDINATOR_ADDRESS",
    "PET_NODE_RANK",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
];

/// Variables by which launchers number processes without saying how many there are.
const SIGNS: [(&str, &str); 8] = [
    ("PMIX_RANK", "PMIx"),
    ("PMI_ID", "PMI"),
    ("PALS_RANKID", "PALS"),
    ("ALPS_APP_PE", "ALPS"),
    ("MPI_RANKID", "an MPI"),
    ("MPIRUN_RANK", "an MPI"),
    ("MP_CHILD", "IBM's POE"),
    ("LSF_PM_TASKID", "LSF"),
];

impl Launcher {
    /// The variables of rank and size that are set, and the missing ones.
    pub(super) fn found(&self, env: &Variables) -> (Vec<&'static str>, Vec<&'static str>) {
        [self.rank, self.size]
            .into_iter()
            .partition(|name| env.has(name))
    }

    /// How many processes there are, at most `max`; `None` if nothing says so.
    ///
    /// # Errors
    /// For a range, which says nothing about the number of now; for what is no number.
    pub(super) fn count(&self, env: &Variables, max: usize) -> Result<Option<usize>> {
        let Some((value, [least, most])) = self.range(env)? else {
            return env.number(&[self.size], max);
        };
        let count = number_in(self.size, &value, &least, max)?;
        if number_in(self.size, &value, &most, max)? == count {
            return Ok(Some(count));
        }
        let why = format!(
            "a range, of which only torchrun makes a number: start the program with torchrun, \
             which sets RANK and WORLD_SIZE; or set {} to the number of processes that there are, \
             as for a job without a range; or start a job whose number of workers may change with \
             `distribute-cli launch --workers {least}..{most}`",
            self.size
        );
        Err(ClusterError::invalid_variable(self.size, &value, why))
    }

    /// The number of processes, if it is written as a range, and its two ends.
    pub(super) fn range(&self, env: &Variables) -> Result<Option<(String, [String; 2])>> {
        let value = env.var(self.size)?.filter(|_| self.has_range);
        let ends = value.as_deref().and_then(|value| value.split_once(':'));
        let ends = ends.map(|(least, most)| [least, most].map(|end| end.trim().to_string()));
        let ends = ends.filter(|ends| ends.iter().all(|end| is_digits(end)));
        Ok(value.zip(ends))
    }

    /// All variables that it may set, for a description.
    pub(super) fn variables(&self) -> Vec<&'static str> {
        let mut names = vec![self.rank, self.size];
        names.extend(self.local_size);
        names.extend(self.local_rank);
        names.extend(self.meeting.variables());
        names.extend(self.store);
        names
    }
}

/// The first of the other launchers that says both rank and size.
pub(super) fn other(env: &Variables) -> Option<Launcher> {
    let is_complete = |launcher: &Launcher| launcher.found(env).1.is_empty();
    OTHERS.into_iter().find(is_complete)
}

/// The one of the other launchers that says both rank and size, or else one of them.
pub(super) fn other_in_part(env: &Variables) -> Option<Launcher> {
    let is_begun = |launcher: &Launcher| !launcher.found(env).0.is_empty();
    other(env).or_else(|| OTHERS.into_iter().find(is_begun))
}

/// What shows that there are several processes, where no launcher says enough.
pub(super) fn sign(env: &Variables) -> Option<String> {
    for launcher in OTHERS {
        let (set, missing) = launcher.found(env);
        if let ([set], [missing]) = (&set[..], &missing[..]) {
            return Some(format!(
                "{set} is set ({}), but not {missing}",
                launcher.name
            ));
        }
    }
    let (name, whose) = SIGNS.into_iter().find(|(name, _)| env.has(name))?;
    Some(format!(
        "{name} is set ({whose}), but nothing says how many processes there are"
    ))
}
