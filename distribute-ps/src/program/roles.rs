//! What a process does in each role.

use std::sync::Arc;

use distribute_core::cluster::{Cluster, ClusterResolver};
use distribute_core::collectives::control::security::{Security, Token};

use crate::coordinator::{ClusterCoordinator, CoordinatorOptions};
use crate::error::{PsError, Result};
use crate::server::{ParameterServer, ServerOptions};
use crate::worker::{StepRegistry, WorkerOptions, WorkerServer};

/// Where the launcher puts the job's token.
const TOKEN_VARIABLE: &str = "DISTRIBUTE_JOB_TOKEN";

fn role(what: impl Into<String>) -> PsError {
    PsError::Role { what: what.into() }
}

/// The cluster, which must have a chief, workers and parameter servers.
pub(super) fn resolve(resolver: &dyn ClusterResolver) -> Result<Cluster> {
    let failed = |error| PsError::from(distribute_core::Error::from(error));
    let cluster = Cluster::resolve(resolver).map_err(failed)?.ok_or_else(|| {
        role(
            "there is no cluster: set TF_CONFIG in each process, or start all of them with \
             `distribute-cli launch --ps 1 --workers 2`",
        )
    })?;
    for (job, what) in [
        ("ps", "a parameter server, which holds the variables"),
        ("worker", "a worker, which runs steps"),
        ("chief", "a chief, which schedules steps"),
    ] {
        let tasks = cluster.spec().job_tasks(job).unwrap_or_default();
        if tasks.is_empty() {
            return Err(role(format!(
                "the cluster has no job `{job}`: it needs at least {what}; add it to TF_CONFIG in \
                 all processes"
            )));
        }
    }
    Ok(cluster)
}

/// The job's token, if the launcher has set one.
pub(super) fn security_of_environment() -> Result<Security> {
    let none = Security::default();
    match std::env::var_os(TOKEN_VARIABLE) {
        None => Ok(none),
        Some(_) => Token::from_env(TOKEN_VARIABLE)
            .map(|token| none.token(token))
            .map_err(|error| PsError::invalid(error.to_string())),
    }
}

/// The addresses of a job.
fn tasks<'a>(cluster: &'a Cluster, job: &str) -> Vec<&'a str> {
    let tasks = cluster.spec().job_tasks(job).unwrap_or_default();
    tasks.into_iter().flatten().collect()
}

/// The number of this process among those of its job that there are.
fn own_number(cluster: &Cluster, job: &str) -> Option<usize> {
    let tasks = cluster.spec().job_tasks(job).unwrap_or_default();
    Some(tasks.iter().take(cluster.task_id()).flatten().count())
}

/// The chief's address, for messages.
fn chief(cluster: &Cluster) -> Option<String> {
    tasks(cluster, "chief").first().map(ToString::to_string)
}

/// This process' own address.
fn own_address(cluster: &Cluster) -> Result<&str> {
    let missing = || role("the cluster has no address for this process");
    cluster.address().ok_or_else(missing)
}

/// The chief: calls the program's body and ends the job.
pub(super) fn coordinate(
    cluster: &Cluster,
    registry: Arc<StepRegistry>,
    options: CoordinatorOptions,
    body: impl FnOnce(&ClusterCoordinator) -> Result<()>,
) -> Result<()> {
    let (workers, servers) = (tasks(cluster, "worker"), tasks(cluster, "ps"));
    let coordinator = ClusterCoordinator::connect(&workers, &servers, registry, options)?;
    match body(&coordinator) {
        Ok(()) => coordinator.finish(),
        Err(error) => {
            // Its own failure is what counts.
            if let Err(at_end) = coordinator.end(error.to_string()) {
                tracing::warn!(error = %at_end, "the servers were not told that the job ends");
            }
            Err(error)
        }
    }
}

/// A worker.
pub(super) fn work(
    cluster: &Cluster,
    registry: Arc<StepRegistry>,
    mut options: WorkerOptions,
) -> Result<()> {
    options.worker = own_number(cluster, "worker");
    options.chief = chief(cluster).or(options.chief);
    WorkerServer::bind(own_address(cluster)?, registry, options)?.serve()
}

/// A parameter server.
pub(super) fn hold(cluster: &Cluster, mut options: ServerOptions) -> Result<()> {
    options.server = own_number(cluster, "ps");
    options.chief = chief(cluster).or(options.chief);
    let server = ParameterServer::bind(own_address(cluster)?, options)?;
    server.wait(None)?;
    server.shutdown();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use distribute_core::cluster::TfConfigResolver;

    use super::*;

    /// In the chief's lists the tasks stand one after the other, whatever numbers are left out.
    #[test]
    fn a_task_of_a_sparse_list_is_numbered_by_its_place() {
        let number = |job: &str, index: usize| {
            let config = format!(
                r#"{{"cluster": {{"chief": ["a:1"], "worker": {{"1": "b:1", "4": "c:1"}},
                    "ps": {{"0": "d:1", "2": "e:1", "7": "f:1"}}}},
                    "task": {{"type": "{job}", "index": {index}}}}}"#
            );
            let environment = BTreeMap::from([("TF_CONFIG".to_string(), config)]);
            let cluster = resolve(&TfConfigResolver::new(environment)).unwrap();
            let place = tasks(&cluster, job)
                .iter()
                .position(|it| Some(*it) == cluster.address());
            let number = own_number(&cluster, job);
            assert_eq!(number, place);
            number
        };
        assert_eq!(
            [1, 4].map(|index| number("worker", index)),
            [Some(0), Some(1)]
        );
        assert_eq!(
            [0, 2, 7].map(|index| number("ps", index)),
            [Some(0), Some(1), Some(2)]
        );
    }
}
