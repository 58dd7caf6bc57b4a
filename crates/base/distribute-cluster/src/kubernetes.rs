//! Pods of a Kubernetes Indexed Job or of a JobSet.

use indexmap::IndexMap;

use super::environment::{Environment, Variables};
use super::error::shortened;
use super::{ClusterError, ClusterResolver, ClusterSpec, Description, MAX_TASKS, Result, TaskType};

const INDEX: &str = "JOB_COMPLETION_INDEX";
const HOSTNAME: &str = "HOSTNAME";
const COMPLETIONS: &str = "JOB_COMPLETIONS";
const SUBDOMAIN: &str = "JOB_SUBDOMAIN";
const PORT: &str = "JOB_PORT_BASE";
const JOBSET: &str = "JOBSET_NAME";
const REPLICATED_JOB: &str = "REPLICATED_JOB_NAME";
const REPLICAS: &str = "REPLICATED_JOB_REPLICAS";
const JOB_INDEX: &str = "JOB_INDEX";
const JOBSET_JOBS: &str = "JOBSET_JOBS";
const ALL: [&str; 10] = [
    INDEX,
    HOSTNAME,
    COMPLETIONS,
    SUBDOMAIN,
    PORT,
    JOBSET,
    REPLICATED_JOB,
    REPLICAS,
    JOB_INDEX,
    JOBSET_JOBS,
];

/// Works out the cluster from the names that Kubernetes gives the pods of an Indexed Job
/// (`JOB-INDEX.SUBDOMAIN`) or of a JobSet (`JOBSET-JOB-JOBINDEX-INDEX.SUBDOMAIN`). Nothing is
/// asked of the API server. Kubeflow's TFJob sets `TF_CONFIG` instead
/// ([`super::TfConfigResolver`]).
///
/// | variable | who sets it | meaning |
/// |---|---|---|
/// | `JOB_COMPLETION_INDEX` | Kubernetes | this pod's index |
/// | `HOSTNAME` | Kubernetes | this pod's name |
/// | `JOB_COMPLETIONS` | the manifest | pods of a job; 1 in a JobSet with replicas |
/// | `JOB_SUBDOMAIN` | the manifest | the headless service; the JobSet's name in a JobSet |
/// | `JOB_PORT_BASE` | the manifest | the port of every pod; [`super::DEFAULT_PORT`] if not set |
/// | `JOBSET_NAME` | the manifest | the JobSet's name |
/// | `REPLICATED_JOB_NAME` | the manifest | this pod's job; else read from `HOSTNAME` |
/// | `REPLICATED_JOB_REPLICAS` | the manifest | its replicas; 1 if not set |
/// | `JOB_INDEX` | the manifest | this pod's replica; else read from `HOSTNAME` |
/// | `JOBSET_JOBS` | the manifest | all jobs and their pods: `chief=1,worker=4,ps=2` |
///
/// The manifest takes the JobSet's from its annotations (`jobset.sigs.k8s.io/jobset-name`,
/// `replicatedjob-name`, `replicatedjob-replicas`, `job-index`). Pods of jobs called `chief`,
/// `ps` or `evaluator` are tasks of that type, all others are workers.
#[derive(Debug, Clone)]
#[must_use]
pub struct KubernetesResolver {
    env: Variables,
    port: Option<u16>,
}

/// Task types and their pods, in order.
type Jobs = IndexMap<String, Vec<String>>;

/// The pods of the cluster, and which of them this one is.
struct Pods {
    /// By host names without the subdomain.
    jobs: Jobs,
    task: (String, usize),
    subdomain: Option<String>,
}

impl KubernetesResolver {
    /// Reads the variables of this environment.
    pub fn new(env: impl Environment + 'static) -> Self {
        Self {
            env: Variables::new(env),
            port: None,
        }
    }

    /// The port of every pod, whatever `JOB_PORT_BASE` says.
    pub fn port_base(mut self, port: impl Into<Option<u16>>) -> Self {
        self.port = port.into();
        self
    }

    fn pods(&self) -> Result<Pods> {
        let hint = "run the pods as a Job with completionMode: Indexed";
        let index = self.env.require_number(&[INDEX], usize::MAX, hint)?;
        match self.env.var(JOBSET)? {
            Some(jobset) => self.jobset(jobset.trim(), index),
            None => self.indexed_job(index),
        }
    }

    fn completions_or(&self, default: Option<usize>) -> Result<usize> {
        let hint = "set it to the Job's `completions` in the manifest: Kubernetes does not";
        let completions = self.env.number(&[COMPLETIONS], MAX_TASKS)?.or(default);
        completions.ok_or_else(|| ClusterError::missing(&[COMPLETIONS], hint))
    }

    fn hostname(&self) -> Result<String> {
        let hint = "Kubernetes sets it to the pod's name";
        self.env.require(&[HOSTNAME], hint)
    }

    fn indexed_job(&self, index: usize) -> Result<Pods> {
        let hostname = self.hostname()?;
        let job = hostname.strip_suffix(&format!("-{index}")).ok_or_else(|| {
            let why = format!("a pod of an Indexed Job with index {index} is called JOB-{index}");
            ClusterError::invalid_variable(HOSTNAME, &hostname, why)
        })?;
        let completions = self.completions_or(None)?;
        let subdomain = self.env.var(SUBDOMAIN)?;
        if subdomain.is_none() && completions > 1 {
            let hint = "pods find each other through a headless service: set `subdomain` in the \
                        pod template and this variable to its name";
            return Err(ClusterError::missing(&[SUBDOMAIN], hint));
        }
        ClusterError::check_rank(INDEX, index, completions)?;
        check_count(completions)?;
        let hosts = (0..completions).map(|pod| format!("{job}-{pod}"));
        let worker = TaskType::Worker.to_string();
        Ok(Pods {
            jobs: Jobs::from([(worker.clone(), hosts.collect())]),
            task: (worker, index),
            subdomain,
        })
    }

    fn jobset(&self, jobset: &str, index: usize) -> Result<Pods> {
        let subdomain = self.env.var(SUBDOMAIN)?.or(Some(jobset.to_string()));
        let (job, job_index) = self.replicated_job(jobset)?;
        let (jobs, task) = match self.env.var(JOBSET_JOBS)? {
            Some(list) => listed_jobs(jobset, &list, &job, job_index, index)?,
            None => {
                let replicas = self.env.number(&[REPLICAS], MAX_TASKS)?;
                let completions = self.completions_or(replicas.map(|_| 1))?;
                let replicas = replicas.unwrap_or(1);
                ClusterError::check_rank(INDEX, index, completions)?;
                ClusterError::check_rank(JOB_INDEX, job_index, replicas)?;
                let count = replicas.saturating_mul(completions);
                check_count(count)?;
                let hosts = (0..count).map(|pod| {
                    format!("{jobset}-{job}-{}-{}", pod / completions, pod % completions)
                });
                let role = task_type(&job).to_string();
                let task = (role.clone(), job_index * completions + index);
                (Jobs::from([(role, hosts.collect())]), task)
            }
        };
        Ok(Pods {
            jobs,
            task,
            subdomain,
        })
    }

    /// The name and replica of the job that this pod belongs to.
    fn replicated_job(&self, jobset: &str) -> Result<(String, usize)> {
        let job = self.env.var(REPLICATED_JOB)?;
        let job_index = self.env.number(&[JOB_INDEX], MAX_TASKS)?;
        if let (Some(job), Some(job_index)) = (&job, job_index) {
            return Ok((job.clone(), job_index));
        }
        let hostname = self.hostname()?;
        let parts = hostname
            .strip_prefix(&format!("{jobset}-"))
            .and_then(|rest| {
                let (rest, _pod) = rest.rsplit_once('-')?;
                let (name, replica) = rest.rsplit_once('-')?;
                Some((name.to_string(), replica.parse().ok()?))
            });
        let (name, replica) = parts.ok_or_else(|| {
            let why = format!("a pod of JobSet {jobset} is called {jobset}-JOB-JOBINDEX-INDEX");
            ClusterError::invalid_variable(HOSTNAME, &hostname, why)
        })?;
        Ok((job.unwrap_or(name), job_index.unwrap_or(replica)))
    }
}

fn task_type(job: &str) -> &str {
    match job {
        "chief" | "ps" | "evaluator" => job,
        _ => "worker",
    }
}

fn check_count(pods: usize) -> Result<()> {
    ClusterError::check_limit(pods, MAX_TASKS, "pods")
}

/// All jobs of `JOBSET_JOBS`, each with one replica, and the task of pod `(job, replica, index)`.
fn listed_jobs(
    jobset: &str,
    list: &str,
    own: &str,
    replica: usize,
    index: usize,
) -> Result<(Jobs, (String, usize))> {
    let invalid = |why: &str| ClusterError::invalid_variable(JOBSET_JOBS, list, why);
    if replica != 0 {
        return Err(invalid(
            "a JobSet of several jobs needs `replicas: 1` in each",
        ));
    }
    let mut jobs = Jobs::new();
    let (mut task, mut total) = (None, 0_usize);
    for entry in list.split(',') {
        let entry = entry.trim();
        let parsed = entry
            .split_once('=')
            .and_then(|(job, pods)| Some((job, pods.parse().ok()?)));
        let (job, pods): (&str, usize) =
            parsed.ok_or_else(|| invalid(&format!("'{}' is not JOB=PODS", shortened(entry))))?;
        total = total.saturating_add(pods);
        check_count(total)?;
        let role = task_type(job);
        let hosts = jobs.entry(role.to_string()).or_default();
        if job == own {
            ClusterError::check_rank(INDEX, index, pods)?;
            task = Some((role.to_string(), hosts.len() + index));
        }
        hosts.extend((0..pods).map(|pod| format!("{jobset}-{job}-0-{pod}")));
    }
    let task = task.ok_or_else(|| invalid(&format!("this pod's job '{own}' is missing")))?;
    Ok((jobs, task))
}

impl ClusterResolver for KubernetesResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec> {
        let Pods {
            jobs, subdomain, ..
        } = self.pods()?;
        let port = self.port.map_or_else(|| self.env.port(PORT), Ok)?;
        super::ranks::check_base(port)?;
        let end = subdomain.map_or_else(String::new, |name| format!(".{name}"));
        ClusterSpec::new(jobs.into_iter().map(|(job, hosts)| {
            let hosts = hosts.into_iter().map(|host| format!("{host}{end}:{port}"));
            (job, hosts.collect::<Vec<_>>())
        }))
    }

    fn task_type(&self) -> Result<Option<String>> {
        self.pods().map(|pods| Some(pods.task.0))
    }

    fn task_id(&self) -> Result<Option<i64>> {
        self.pods().map(|pods| i64::try_from(pods.task.1).ok())
    }

    fn describe(&self) -> Description {
        Description::new("Kubernetes", self.env.set_among(&ALL)).given("port_base", self.port)
    }
}
