//! Finds out which launcher started this process.

use std::fmt;

use super::environment::{Environment, Variables};
use super::launchers::{self, OPEN_MPI};
use super::{
    ClusterError, ClusterKind, ClusterResolver, ClusterSpec, Description, KubernetesResolver,
    Overridden, Overrides, RankResolver, Result, SimpleResolver, SlurmResolver, TfConfigResolver,
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
    let looks = ClusterKind::ALL.map(|kind| (kind, look(kind, &env)));
    let complete = |found: &Found| matches!(found, Found::Yes(_));
    let unclear = |found: &Found| matches!(found, Found::Unclear(_));
    let mut chosen = looks.iter().find(|(_, found)| complete(found));
    chosen = chosen.or_else(|| looks.iter().find(|(_, found)| unclear(found)));
    let (mut kind, mut reason, mut unclear) = match chosen {
        Some((kind, Found::Yes(why))) => (*kind, why.clone(), None),
        Some((kind, Found::Unclear(seen))) => (*kind, seen.clone(), Some(seen.clone())),
        _ => (
            ClusterKind::OneProcess,
            "no launcher's variables".to_string(),
            None,
        ),
    };
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
        (kind, reason, unclear) = (wanted, "asked for".to_string(), None);
    }
    let inner = match unclear {
        Some(seen) => Box::new(Unclear { seen, kind, env }),
        None => resolver(kind, env, overrides.port_base),
    };
    Detected {
        kind,
        reason,
        resolver: Box::new(Overridden::new(inner, overrides)),
        passed_over,
    }
}

fn resolver(kind: ClusterKind, env: Variables, port: Option<u16>) -> Box<dyn ClusterResolver> {
    match kind {
        ClusterKind::TfConfig => Box::new(TfConfigResolver::new(env)),
        ClusterKind::Torchrun => Box::new(RankResolver::torchrun(env).port_base(port)),
        ClusterKind::OpenMpi => Box::new(RankResolver::open_mpi(env).port_base(port)),
        ClusterKind::Mpi => Box::new(RankResolver::mpi(env).port_base(port)),
        ClusterKind::Slurm => Box::new(SlurmResolver::new(env).port_base(port)),
        ClusterKind::Kubernetes => Box::new(KubernetesResolver::new(env).port_base(port)),
        ClusterKind::OneProcess => Box::new(SimpleResolver::default()),
    }
}

/// A launcher has left its marks, and does not say enough: every question about the cluster is an
/// error that says what is missing.
#[derive(Debug)]
struct Unclear {
    seen: String,
    kind: ClusterKind,
    env: Variables,
}

impl Unclear {
    fn error<T>(&self) -> Result<T> {
        let seen = self.seen.clone();
        Err(ClusterError::UnclearLauncher { seen })
    }
}

impl ClusterResolver for Unclear {
    fn cluster_spec(&self) -> Result<ClusterSpec> {
        self.error()
    }

    fn task_type(&self) -> Result<Option<String>> {
        self.error()
    }

    fn task_id(&self) -> Result<Option<i64>> {
        self.error()
    }

    fn describe(&self) -> Description {
        resolver(self.kind, self.env.clone(), None).describe()
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

fn look(kind: ClusterKind, env: &Variables) -> Found {
    match kind {
        ClusterKind::TfConfig => tf_config(env),
        ClusterKind::Torchrun => torchrun(env),
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

fn torchrun(env: &Variables) -> Found {
    let names = ["RANK", "WORLD_SIZE", "MASTER_ADDR"];
    let (set, missing): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| env.has(name));
    match (&set[..], &missing[..]) {
        (_, []) => Found::Yes("MASTER_ADDR is set".to_string()),
        // It is also given to other launchers, which do not say where rank 0 is.
        (["MASTER_ADDR"], _) => Found::No,
        // A single process needs no meeting point.
        (["RANK", "WORLD_SIZE"], _) if is_one(env, "WORLD_SIZE") => {
            Found::Partly("WORLD_SIZE is 1".to_string())
        }
        (["WORLD_SIZE"] | ["WORLD_SIZE", _], _) if is_one(env, "WORLD_SIZE") => {
            Found::Partly("WORLD_SIZE is 1".to_string())
        }
        (set, missing) => part(set, missing),
    }
}

fn is_one(env: &Variables, name: &'static str) -> bool {
    env.number(&[name], usize::MAX) == Ok(Some(1))
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
