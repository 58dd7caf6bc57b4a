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

/// The addresses of a job, all of which must be known.
fn tasks<'a>(cluster: &'a Cluster, job: &str) -> Result<Vec<&'a str>> {
    let spec = cluster.spec();
    let failed = |error| PsError::from(distribute_core::Error::from(error));
    let indices = spec.task_indices(job).map_err(failed)?.into_iter();
    let addresses = indices.map(|index| spec.task_address(job, index).map_err(failed));
    addresses.collect()
}

/// The chief's address, for messages.
fn chief(cluster: &Cluster) -> Option<String> {
    let chiefs = tasks(cluster, "chief").unwrap_or_default();
    chiefs.first().map(ToString::to_string)
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
    let (workers, servers) = (tasks(cluster, "worker")?, tasks(cluster, "ps")?);
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
    options.worker = Some(cluster.task_id());
    options.chief = chief(cluster).or(options.chief);
    WorkerServer::bind(own_address(cluster)?, registry, options)?.serve()
}

/// A parameter server.
pub(super) fn hold(cluster: &Cluster, mut options: ServerOptions) -> Result<()> {
    options.server = Some(cluster.task_id());
    options.chief = chief(cluster).or(options.chief);
    let server = ParameterServer::bind(own_address(cluster)?, options)?;
    server.wait(None)?;
    server.shutdown();
    Ok(())
}
