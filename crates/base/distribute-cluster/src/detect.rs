//! Finds out which launcher started this process.

use std::fmt;

use super::contradiction;
use super::environment::{Environment, Variables};
use super::launchers::{self, JAX, Launcher, OPEN_MPI, TORCHRUN, TRAINER};
use super::{
    CLUSTER_FILE_VARIABLE, ClusterError, ClusterKind, ClusterResolver, ClusterSpec, Description,
    KubernetesResolver, Overridden, Overrides, RankResolver, Result, SimpleResolver, SlurmResolver,
    TfConfigResolver,
};

/// A kind of cluster that was not chosen although some of its variables are set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// The kind.
    pub kind: ClusterKind,
    /// Why not.
    pub why: String,
}

/// The resolver that [`detect`] chose. `Display` says which, why and from which variables, on a
/// line, and what was passed over, on a line each.
#[derive(Debug)]
pub struct Detected {
    /// The kind of cluster.
    pub kind: ClusterKind,
    /// Why it was chosen.
    pub reason: String,
    /// Reads the cluster; its errors come when it is asked.
    pub resolver: Box<dyn ClusterResolver>,
    /// What else looked like a cluster.
    pub passed_over: Vec<PassedOver>,
}

impl fmt::Display for Detected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (found, reason) = (self.resolver.describe(), &self.reason);
        write!(f, "cluster from {found} ({reason})")?;
        for PassedOver { kind, why } in &self.passed_over {
            write!(f, "\nnot from {kind}: {why}")?;
        }
        Ok(())
    }
}

/// Chooses the resolver for this environment: the first kind of
/// [`ClusterKind::ALL`] whose description is complete. Where none is, and yet there are signs of
/// several processes (a rank without the number of ranks, a rank without the host to meet at), the
/// resolver's error says what is missing: a description that is there but broken is better news
/// than a process that quietly runs by itself.
pub fn detect(env: impl Environment + 'static) -> Detected {
    detect_with(env, Overrides::default())
}

/// [`detect`], with parts of the answer given by flags or the program.
pub fn detect_with(env: impl Environment + 'static, overrides: Overrides) -> Detected {
    let env = Variables::new(env);
    let meets = overrides.rendezvous.is_some();
    let looks = ClusterKind::ALL.map(|kind| (kind, look(kind, &env, meets)));
    let (mut kind, mut reason, mut refused) = choose(&looks, &env);
    let mut passed_over = Vec::new();
    for (other, found) in &looks {
        let why = match found {
            Found::Yes(why) => format!("{why}, but {kind} comes first"),
            Found::Unclear(why) | Found::Partly(why) => why.clone(),
            Found::No => continue,
        };
        if *other != kind {
            passed_over.push(PassedOver { kind: *other, why });
        }
    }
    if let Some(wanted) = overrides.kind {
        if wanted != kind && kind != ClusterKind::OneProcess {
            let why = format!("{wanted} was asked for, although {reason}");
            passed_over.retain(|other| !other.why.ends_with("comes first"));
            passed_over.push(PassedOver { kind, why });
        }
        passed_over.retain(|other| other.kind != wanted);
        (kind, reason, refused) = (wanted, "asked for".to_string(), None);
    }
    refused = refused.or_else(|| unused_rendezvous(kind, &overrides));
    let resolver: Box<dyn ClusterResolver> = match refused {
        Some(error) => {
            let resolver = resolver(kind, env, &Overrides::default());
            let description = resolver.describe();
            let refused = Box::new(Refused { error, description });
            // A cluster that was given replaces what a launcher left out, not a wrong flag.
            match overrides.rendezvous {
                Some(_) => refused,
                None => Box::new(Overridden::new(refused, overrides)),
            }
        }
        None => {
            let inner = resolver(kind, env, &overrides);
            Box::new(Overridden::new(inner, overrides))
        }
    };
    Detected {
        kind,
        reason,
        resolver,
        passed_over,
    }
}

/// The first kind that is complete, else the first that left something out, with the reason and
/// what is wrong.
fn choose(
    looks: &[(ClusterKind, Found)],
    env: &Variables,
) -> (ClusterKind, String, Option<ClusterError>) {
    let complete = looks.iter().find_map(|(kind, found)| match found {
        Found::Yes(why) => Some((*kind, why.clone(), contradiction::find(*kind, env))),
        _ => None,
    });
    let unclear = || {
        looks.iter().find_map(|(kind, found)| match found {
            Found::Unclear(seen) => {
                let error = ClusterError::UnclearLauncher { seen: seen.clone() };
                Some((*kind, seen.clone(), Some(error)))
            }
            _ => None,
        })
    };
    let alone = || {
        let reason = "no launcher's variables".to_string();
        (ClusterKind::OneProcess, reason, None)
    };
    complete.or_else(unclear).unwrap_or_else(alone)
}

/// The error of a place to meet at that has no effect.
fn unused_rendezvous(kind: ClusterKind, overrides: &Overrides) -> Option<ClusterError> {
    let address = overrides.rendezvous.clone()?;
    let why = match kind {
        _ if overrides.cluster_spec.is_some() => {
            "the cluster that was given (--cluster-spec) lists the address of every task: leave \
             one of the two out"
                .to_string()
        }
        kind if kind.says_only_where_to_meet() => return None,
        ClusterKind::OneProcess => "nothing numbers the processes that meet there: set RANK and \
                                    WORLD_SIZE in each of them, or start them with torchrun, an \
                                    MPI or Kubeflow Trainer"
            .to_string(),
        kind => format!(
            "{kind} lists the address of every task: leave --rendezvous out (to use other ranks, \
             name their source: `--cluster torchrun` reads RANK and WORLD_SIZE)"
        ),
    };
    Some(ClusterError::RendezvousUnused { address, why })
}

fn resolver(kind: ClusterKind, env: Variables, given: &Overrides) -> Box<dyn ClusterResolver> {
    let port = given.port_base;
    let ranks = |resolver: RankResolver| {
        let rendezvous = given.rendezvous.clone();
        Box::new(resolver.port_base(port).rendezvous(rendezvous))
    };
    match kind {
        ClusterKind::TfConfig => Box::new(TfConfigResolver::new(env)),
        ClusterKind::Torchrun => ranks(RankResolver::torchrun(env)),
        ClusterKind::OpenMpi => ranks(RankResolver::open_mpi(env)),
        ClusterKind::Mpi => ranks(RankResolver::mpi(env)),
        ClusterKind::Jax => ranks(RankResolver::jax(env)),
        ClusterKind::Trainer => ranks(RankResolver::trainer(env)),
        ClusterKind::Slurm => Box::new(SlurmResolver::new(env).port_base(port)),
        ClusterKind::Kubernetes => Box::new(KubernetesResolver::new(env).port_base(port)),
        ClusterKind::OneProcess => Box::new(SimpleResolver::default()),
    }
}

/// A launcher has left its marks, and does not say enough, or contradicts another one: every
/// question about the cluster is an error that says what is wrong.
#[derive(Debug)]
struct Refused {
    error: ClusterError,
    description: Description,
}

impl ClusterResolver for Refused {
    fn cluster_spec(&self) -> Result<ClusterSpec> {
        Err(self.error.clone())
    }

    fn task_type(&self) -> Result<Option<String>> {
        Err(self.error.clone())
    }

    fn task_id(&self) -> Result<Option<i64>> {
        Err(self.error.clone())
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }
}

enum Found {
    /// All that is needed is there, right or wrong.
    Yes(String),
    /// Several processes were started, and what they were told is not enough.
    Unclear(String),
    /// Nothing that concerns this process, but worth a word.
    Partly(String),
    No,
}

/// What there is of a kind; `meets` if the place to meet at is given.
fn look(kind: ClusterKind, env: &Variables, meets: bool) -> Found {
    match kind {
        ClusterKind::TfConfig => tf_config(env),
        ClusterKind::Torchrun => by_rank(&TORCHRUN, env, meets),
        ClusterKind::Jax => by_rank(&JAX, env, meets),
        ClusterKind::Trainer => by_rank(&TRAINER, env, meets),
        ClusterKind::OpenMpi => match OPEN_MPI.found(env) {
            (set, missing) if missing.is_empty() && !set.is_empty() => {
                Found::Yes("started by Open MPI's mpirun".to_string())
            }
            (set, missing) => part(&set, &missing),
        },
        ClusterKind::Mpi => mpi(env),
        ClusterKind::Slurm => slurm(env),
        ClusterKind::Kubernetes => kubernetes(env),
        ClusterKind::OneProcess => Found::No,
    }
}

fn tf_config(env: &Variables) -> Found {
    let text = match env.var("TF_CONFIG") {
        Ok(None) if env.has(CLUSTER_FILE_VARIABLE) => {
            return part(&[CLUSTER_FILE_VARIABLE], &["TF_CONFIG"]);
        }
        Ok(None) => return Found::No,
        Ok(Some(text)) if text.trim().is_empty() => {
            return Found::Partly("TF_CONFIG is empty".to_string());
        }
        Ok(Some(_)) => "TF_CONFIG is set".to_string(),
        Err(error) => error.to_string(),
    };
    match TfConfigResolver::new(env.clone()).cluster_spec() {
        Ok(spec) if spec.is_empty() => Found::Partly("TF_CONFIG names no cluster".to_string()),
        _ => Found::Yes(text),
    }
}

/// Some of the variables that are needed together are set.
fn part(set: &[&str], missing: &[&str]) -> Found {
    if set.is_empty() {
        Found::No
    } else {
        Found::Unclear(format!(
            "{} set, but not {}",
            set.join(" and "),
            missing.join(" and ")
        ))
    }
}

/// A launcher that says rank, size and where rank 0 is.
fn by_rank(launcher: &Launcher, env: &Variables, meets: bool) -> Found {
    let (rank, size, host) = (launcher.rank, launcher.size, launcher.meeting.host());
    let is_set = |name: &&str| env.has(name) || (meets && *name == host);
    let (set, missing): (Vec<&str>, Vec<&str>) = [rank, size, host].into_iter().partition(is_set);
    let is_one = || launcher.count(env, usize::MAX) == Ok(Some(1));
    match &missing[..] {
        [] if env.has(host) => Found::Yes(format!("{host} is set")),
        [] => Found::Yes(format!("{rank} and {size} are set")),
        // The address is also given to other launchers, which do not say where rank 0 is.
        [_, _] if set[..] == [host] => Found::No,
        // A single process needs no meeting point.
        _ if env.has(size) && is_one() => Found::Partly(format!("{size} is 1")),
        missing => {
            let of_torchrun = format!("{size} (a range, of which only torchrun makes a number)");
            let is_range = launcher.range(env).is_ok_and(|range| range.is_some());
            let mut set: Vec<&str> = set.into_iter().filter(|name| env.has(name)).collect();
            if let Some(name) = set.iter_mut().find(|name| is_range && **name == size) {
                *name = &of_torchrun;
            }
            part(&set, missing)
        }
    }
}

/// Another MPI's launcher, or one that only leaves a sign.
fn mpi(env: &Variables) -> Found {
    let Some(launcher) = launchers::other(env) else {
        return launchers::sign(env).map_or(Found::No, Found::Unclear);
    };
    // `srun --mpi=pmi2` numbers the tasks in this way too, and says where they are.
    let number = |name: &'static str| env.number(&[name], usize::MAX).ok().flatten();
    let says_the_same = |one, other| number(one).is_some() && number(one) == number(other);
    let is_srun = matches!(slurm(env), Found::Yes(_))
        && says_the_same(launcher.rank, "SLURM_PROCID")
        && says_the_same(launcher.size, "SLURM_STEP_NUM_TASKS");
    if is_srun {
        Found::Partly(format!("{} says what srun says", launcher.rank))
    } else {
        Found::Yes(format!("{} is set", launcher.rank))
    }
}

fn slurm(env: &Variables) -> Found {
    // The batch script itself has the job's variables and rank 0, but the other ranks were never
    // started.
    let is_step = env.has("SLURM_STEP_NUM_TASKS") || env.has("SLURM_STEP_NODELIST");
    let why = match (env.has("SLURM_PROCID"), is_step) {
        (true, true) => return Found::Yes("started by srun".to_string()),
        (true, false) => "in a SLURM batch script, not in a step: use srun",
        (false, _) if env.has("SLURM_JOB_ID") => {
            "in a SLURM job, but SLURM_PROCID is not set: use srun"
        }
        (false, _) => return Found::No,
    };
    let tasks = env.number(&["SLURM_NTASKS", "SLURM_NPROCS"], usize::MAX);
    match tasks {
        Ok(Some(tasks)) if tasks > 1 => Found::Unclear(format!("{why} for its {tasks} tasks")),
        _ => Found::Partly(why.to_string()),
    }
}

fn kubernetes(env: &Variables) -> Found {
    let several = || {
        let pods = env.number(&["JOB_COMPLETIONS"], usize::MAX);
        matches!(pods, Ok(Some(pods)) if pods > 1)
    };
    if env.has("JOB_COMPLETION_INDEX") {
        Found::Yes("in a pod of an Indexed Job".to_string())
    } else if env.has("KUBERNETES_SERVICE_HOST") && env.has("JOBSET_NAME") {
        Found::Unclear("in a JobSet, but JOB_COMPLETION_INDEX is not set".to_string())
    } else if several() {
        Found::Unclear("JOB_COMPLETIONS is set, but not JOB_COMPLETION_INDEX".to_string())
    } else {
        Found::No
    }
}
