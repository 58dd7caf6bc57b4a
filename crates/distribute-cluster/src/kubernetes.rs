//! Pods of a Kubernetes Indexed Job or of a JobSet.

use super::environment::{Environment, Variables, shortened};
use super::{ClusterError, ClusterResolver, ClusterSpec, DEFAULT_PORT, Description, MAX_TASKS};

const INDEX: [&str; 1] = ["JOB_COMPLETION_INDEX"];
const COMPLETIONS: [&str; 1] = ["JOB_COMPLETIONS"];
const SUBDOMAIN: &str = "JOB_SUBDOMAIN";
const PORT: [&str; 1] = ["JOB_PORT_BASE"];
const JOBSET: &str = "JOBSET_NAME";
const REPLICATED_JOB: &str = "REPLICATED_JOB_NAME";
const REPLICAS: [&str; 1] = ["REPLICATED_JOB_REPLICAS"];
const JOB_INDEX: [&str; 1] = ["JOB_INDEX"];
const JOBSET_JOBS: &str = "JOBSET_JOBS";
const ALL: [&str; 10] = [
    INDEX[0],
    "HOSTNAME",
    COMPLETIONS[0],
    SUBDOMAIN,
    PORT[0],
    JOBSET,
    REPLICATED_JOB,
    REPLICAS[0],
    JOB_INDEX[0],
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
/// | `JOB_PORT_BASE` | the manifest | the port of every pod; [`DEFAULT_PORT`] if not set |
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
    completions: Option<usize>,
    subdomain: Option<String>,
}

/// The pods of the cluster, and which of them this one is.
struct Pods {
    /// Task types and host names without the subdomain, in order.
    jobs: Vec<(String, Vec<String>)>,
    task: (String, usize),
    subdomain: Option<String>,
}

impl KubernetesResolver {
    /// Reads the variables of this environment.
    pub fn new(env: impl Environment + 'static) -> Self {
        Self::with_variables(Variables::new(env))
    }

    pub(super) fn with_variables(env: Variables) -> Self {
        Self {
            env,
            port: None,
            completions: None,
            subdomain: None,
        }
    }

    /// The port of every pod, whatever `JOB_PORT_BASE` says.
    pub fn port_base(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// The pods of the job, whatever `JOB_COMPLETIONS` says.
    pub fn completions(mut self, completions: usize) -> Self {
        self.completions = Some(completions);
        self
    }

    /// The headless service, whatever `JOB_SUBDOMAIN` says.
    pub fn subdomain(mut self, subdomain: impl Into<String>) -> Self {
        self.subdomain = Some(subdomain.into());
        self
    }

    fn pods(&self) -> Result<Pods, ClusterError> {
        let hint = "run the pods as a Job with completionMode: Indexed";
        let index = self.env.require_number(&INDEX, usize::MAX, hint)?;
        match self.env.get(JOBSET)? {
            Some(jobset) => self.jobset(jobset.trim(), index),
            None => self.indexed_job(index),
        }
    }

    fn completions_or(&self, default: Option<usize>) -> Result<usize, ClusterError> {
        let hint = "set it to the Job's `completions` in the manifest: Kubernetes does not";
        match self
            .completions
            .map_or_else(|| self.env.number(&COMPLETIONS, MAX_TASKS), |n| Ok(Some(n)))?
        {
            Some(completions) => Ok(completions),
            None => default.ok_or_else(|| ClusterError::MissingVariable {
                variables: COMPLETIONS[0].to_string(),
                hint,
            }),
        }
    }

    fn given_subdomain(&self) -> Result<Option<String>, ClusterError> {
        self.subdomain
            .clone()
            .map_or_else(|| self.env.get(SUBDOMAIN), |name| Ok(Some(name)))
    }

    fn hostname(&self) -> Result<String, ClusterError> {
        let hint = "Kubernetes sets it to the pod's name";
        self.env.require(&["HOSTNAME"], hint).map(|(_, name)| name)
    }

    fn indexed_job(&self, index: usize) -> Result<Pods, ClusterError> {
        let hostname = self.hostname()?;
        let Some(job) = hostname.strip_suffix(&format!("-{index}")) else {
            return Err(ClusterError::InvalidVariable {
                variable: "HOSTNAME".to_string(),
                value: shortened(&hostname),
                why: format!("a pod of an Indexed Job with index {index} is called JOB-{index}"),
            });
        };
        let completions = self.completions_or(None)?;
        let subdomain = self.given_subdomain()?;
        if subdomain.is_none() && completions > 1 {
            return Err(ClusterError::MissingVariable {
                variables: SUBDOMAIN.to_string(),
                hint: "pods find each other through a headless service: set `subdomain` in the \
                       pod template and this variable to its name",
            });
        }
        check_index(index, completions)?;
        let hosts = names(completions, |pod| format!("{job}-{pod}"))?;
        Ok(Pods {
            jobs: vec![("worker".to_string(), hosts)],
            task: ("worker".to_string(), index),
            subdomain,
        })
    }

    fn jobset(&self, jobset: &str, index: usize) -> Result<Pods, ClusterError> {
        let subdomain = self
            .given_subdomain()?
            .unwrap_or_else(|| jobset.to_string());
        let (job, job_index) = self.replicated_job(jobset)?;
        let (jobs, task) = match self.env.get(JOBSET_JOBS)? {
            Some(list) => listed_jobs(jobset, &list, (&job, job_index, index))?,
            None => {
                let replicas = self.env.number(&REPLICAS, MAX_TASKS)?;
                let completions = self.completions_or(replicas.map(|_| 1))?;
                let replicas = replicas.unwrap_or(1);
                check_index(index, completions)?;
                if job_index >= replicas {
                    let (variable, rank, size) = (JOB_INDEX[0], job_index, replicas);
                    return Err(ClusterError::RankTooBig {
                        variable,
                        rank,
                        size,
                    });
                }
                let hosts = names(replicas.saturating_mul(completions), |pod| {
                    format!("{jobset}-{job}-{}-{}", pod / completions, pod % completions)
                })?;
                let task = (task_type(&job).to_string(), job_index * completions + index);
                (vec![(task.0.clone(), hosts)], task)
            }
        };
        Ok(Pods {
            jobs,
            task,
            subdomain: Some(subdomain),
        })
    }

    /// The name and replica of the job that this pod belongs to.
    fn replicated_job(&self, jobset: &str) -> Result<(String, usize), ClusterError> {
        let job = self.env.get(REPLICATED_JOB)?;
        let job_index = self.env.number(&JOB_INDEX, MAX_TASKS)?;
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
        let (name, replica) = parts.ok_or_else(|| ClusterError::InvalidVariable {
            variable: "HOSTNAME".to_string(),
            value: shortened(&hostname),
            why: format!("a pod of JobSet {jobset} is called {jobset}-JOB-JOBINDEX-INDEX"),
        })?;
        Ok((job.unwrap_or(name), job_index.unwrap_or(replica)))
    }

    fn port(&self) -> Result<u16, ClusterError> {
        match self.port {
            Some(port) => Ok(port),
            None => {
                let port = self.env.number(&PORT, usize::from(u16::MAX))?;
                Ok(port
                    .and_then(|port| u16::try_from(port).ok())
                    .unwrap_or(DEFAULT_PORT))
            }
        }
    }
}

fn task_type(job: &str) -> &str {
    match job {
        "chief" | "ps" | "evaluator" => job,
        _ => "worker",
    }
}

fn check_index(index: usize, completions: usize) -> Result<(), ClusterError> {
    if index >= completions {
        let (variable, rank, size) = (INDEX[0], index, completions);
        return Err(ClusterError::RankTooBig {
            variable,
            rank,
            size,
        });
    }
    Ok(())
}

fn names(count: usize, name: impl FnMut(usize) -> String) -> Result<Vec<String>, ClusterError> {
    check_count(count)?;
    Ok((0..count).map(name).collect())
}

fn check_count(pods: usize) -> Result<(), ClusterError> {
    if pods > MAX_TASKS {
        let (what, limit) = ("pods".to_string(), MAX_TASKS);
        return Err(ClusterError::TooMany { what, limit });
    }
    Ok(())
}

type Jobs = Vec<(String, Vec<String>)>;

/// All jobs of `JOBSET_JOBS`, each with one replica, and the task of pod `(job, replica, index)`.
fn listed_jobs(
    jobset: &str,
    list: &str,
    (own, replica, index): (&str, usize, usize),
) -> Result<(Jobs, (String, usize)), ClusterError> {
    let invalid = |why: String| ClusterError::InvalidVariable {
        variable: JOBSET_JOBS.to_string(),
        value: shortened(list),
        why,
    };
    if replica != 0 {
        return Err(invalid(
            "a JobSet of several jobs needs `replicas: 1` in each".to_string(),
        ));
    }
    let mut jobs: Jobs = Vec::new();
    let (mut task, mut total) = (None, 0_usize);
    for entry in list.split(',') {
        let entry = entry.trim();
        let parsed = entry
            .split_once('=')
            .and_then(|(job, pods)| Some((job, pods.parse().ok()?)));
        let (job, pods): (&str, usize) =
            parsed.ok_or_else(|| invalid(format!("'{}' is not JOB=PODS", shortened(entry))))?;
        total = total.saturating_add(pods);
        check_count(total)?;
        let hosts = names(pods, |pod| format!("{jobset}-{job}-0-{pod}"))?;
        let role = task_type(job);
        let place = jobs
            .iter()
            .position(|(name, _)| name == role)
            .unwrap_or_else(|| {
                jobs.push((role.to_string(), Vec::new()));
                jobs.len() - 1
            });
        if job == own {
            check_index(index, pods)?;
            task = Some((role.to_string(), jobs[place].1.len() + index));
        }
        jobs[place].1.extend(hosts);
    }
    let task = task.ok_or_else(|| invalid(format!("this pod's job '{own}' is missing")))?;
    Ok((jobs, task))
}

impl ClusterResolver for KubernetesResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        let Pods {
            jobs, subdomain, ..
        } = self.pods()?;
        let port = self.port()?;
        let end = subdomain.map_or_else(String::new, |name| format!(".{name}"));
        ClusterSpec::new(jobs.into_iter().map(|(job, hosts)| {
            let hosts = hosts.into_iter().map(|host| format!("{host}{end}:{port}"));
            (job, hosts.collect::<Vec<_>>())
        }))
    }

    fn task_type(&self) -> Result<Option<String>, ClusterError> {
        self.pods().map(|pods| Some(pods.task.0))
    }

    fn task_id(&self) -> Result<Option<i64>, ClusterError> {
        let index = self.pods()?.task.1;
        Ok(Some(i64::try_from(index).unwrap_or(i64::MAX)))
    }

    fn describe(&self) -> Description {
        Description::new("Kubernetes", self.env.set_among(&ALL))
            .given("port_base", self.port)
            .given("completions", self.completions)
            .given("subdomain", self.subdomain.as_ref())
    }
}
