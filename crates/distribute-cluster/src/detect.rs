//! Finds out which launcher started this process.

use std::fmt;

use super::environment::{Environment, Variables};
use super::{
    ClusterKind, ClusterResolver, KubernetesResolver, Overridden, Overrides, RankResolver,
    SimpleResolver, SlurmResolver, TfConfigResolver,
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

/// Chooses the resolver for this environment. A description that is there but broken is chosen
/// all the same: its error is better news than a process that quietly runs by itself.
pub fn detect(env: impl Environment + 'static) -> Detected {
    detect_with(env, Overrides::default())
}

/// [`detect`], with parts of the answer given by flags or the program.
pub fn detect_with(env: impl Environment + 'static, overrides: Overrides) -> Detected {
    let env = Variables::new(env);
    let mut passed_over = Vec::new();
    let none = "no launcher's variables".to_string();
    let (mut chosen, mut reason) = (ClusterKind::OneProcess, none);
    for kind in ClusterKind::ALL {
        match look(kind, &env) {
            Found::Yes(why) => {
                (chosen, reason) = (kind, why);
                break;
            }
            Found::Partly(why) => passed_over.push(PassedOver { kind, why }),
            Found::No => {}
        }
    }
    if let Some(wanted) = overrides.kind {
        if wanted != chosen && chosen != ClusterKind::OneProcess {
            let why = format!("{wanted} was asked for, although {reason}");
            passed_over.push(PassedOver { kind: chosen, why });
        }
        passed_over.retain(|other| other.kind != wanted);
        (chosen, reason) = (wanted, "asked for".to_string());
    }
    let inner = resolver(chosen, env, overrides.port_base);
    Detected {
        kind: chosen,
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
        ClusterKind::Slurm => Box::new(SlurmResolver::new(env).port_base(port)),
        ClusterKind::Kubernetes => Box::new(KubernetesResolver::new(env).port_base(port)),
        ClusterKind::OneProcess => Box::new(SimpleResolver::default()),
    }
}

enum Found {
    Yes(String),
    Partly(String),
    No,
}

fn look(kind: ClusterKind, env: &Variables) -> Found {
    match kind {
        ClusterKind::TfConfig => tf_config(env),
        ClusterKind::Torchrun => {
            let names = ["RANK", "WORLD_SIZE", "MASTER_ADDR"];
            all_or_part(env, &names, "MASTER_ADDR is set")
        }
        ClusterKind::OpenMpi => {
            let names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"];
            all_or_part(env, &names, "started by Open MPI's mpirun")
        }
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

/// All of these variables are needed; some of them are worth a word.
fn all_or_part(env: &Variables, names: &[&str], reason: &str) -> Found {
    let (set, missing): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| env.has(name));
    if missing.is_empty() {
        return Found::Yes(reason.to_string());
    }
    if set.is_empty() {
        return Found::No;
    }
    let (set, missing) = (set.join(" and "), missing.join(" and "));
    Found::Partly(format!("{set} set, but not {missing}"))
}

fn slurm(env: &Variables) -> Found {
    // The batch script itself has the job's variables and rank 0, but the other ranks were never
    // started.
    let is_step = env.has("SLURM_STEP_NUM_TASKS") || env.has("SLURM_STEP_NODELIST");
    match (env.has("SLURM_PROCID"), is_step) {
        (true, true) => Found::Yes("started by srun".to_string()),
        (true, false) => {
            Found::Partly("in a SLURM batch script, not in a step: use srun".to_string())
        }
        (false, _) if env.has("SLURM_JOB_ID") => {
            Found::Partly("in a SLURM job, but SLURM_PROCID is not set: use srun".to_string())
        }
        (false, _) => Found::No,
    }
}

fn kubernetes(env: &Variables) -> Found {
    if env.has("JOB_COMPLETION_INDEX") {
        Found::Yes("in a pod of an Indexed Job".to_string())
    } else if env.has("KUBERNETES_SERVICE_HOST") && env.has("JOBSET_NAME") {
        Found::Partly("in a JobSet, but JOB_COMPLETION_INDEX is not set".to_string())
    } else {
        Found::No
    }
}
