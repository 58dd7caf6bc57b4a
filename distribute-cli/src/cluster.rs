//! What the flags about several workers describe: the cluster and its strategy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use distribute_core::cluster::{
    Cluster, ClusterKind, ClusterSpec, Detected, Overrides, ProcessEnvironment, detect_with,
};
use distribute_core::collectives::control::security::{Security, TlsIdentity, Token};
use distribute_core::collectives::{CollectiveError, Interruption};
use distribute_core::{CommunicationOptions, Error, LogicalDevice, MultiWorkerMirroredStrategy};

use crate::failure::Failure;
use crate::flags::{ClusterArgs, ClusterName, CommunicationName, TransportName, WireName};
use crate::output_file::check_directory;

/// The secret that the workers of a job share.
pub(crate) const TOKEN_VARIABLE: &str = "DISTRIBUTE_JOB_TOKEN";
/// The port for this process' gradients, as its launcher has chosen.
/// The memory file from `launch`, which outlives this process.
const LINK_MEMORY_VARIABLE: &str = "DISTRIBUTE_LINK_MEMORY";
/// The index of this start of the job, from 0: set by `launch`, and by SLURM for a job that
/// was put back into the queue.
const RESTART_VARIABLES: [&str; 2] = ["DISTRIBUTE_RESTART", "SLURM_RESTART_COUNT"];

/// The error of workers whose flags ask for different connections; it names these flags.
fn other_options(refused: &CollectiveError) -> Failure {
    let differs = |name: &str| refused.differing_options().iter().any(|it| it == name);
    let flag = match (
        differs("transport"),
        differs("algorithm") || differs("order"),
    ) {
        (true, true) => "--transport and --communication",
        (true, false) => "--transport",
        (false, true) => "--communication",
        (false, false) => "flags",
    };
    Failure::usage(format!("{refused}; give all workers the same {flag}"))
}

/// The index of this start of the job, from 0, according to its launcher.
///
/// # Errors
/// If the variable is not a number.
pub(crate) fn restarts() -> Result<u64, Failure> {
    let mut most = 0;
    for name in RESTART_VARIABLES {
        let Some(value) = std::env::var_os(name) else {
            continue;
        };
        let number: Option<u64> = value.to_str().and_then(|value| value.parse().ok());
        let number = number.ok_or_else(|| {
            let value = value.to_string_lossy();
            Failure::usage(format!(
                "the variable {name} is `{value}`: set it to the number of earlier starts of \
                 this job, or remove it"
            ))
        });
        most = number?.max(most);
    }
    Ok(most)
}

/// The flags about this process' place in a cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaceFlags<'a> {
    pub(crate) cluster: Option<ClusterName>,
    pub(crate) cluster_spec: Option<&'a str>,
    pub(crate) task_type: Option<&'a str>,
    pub(crate) task_id: Option<i64>,
    pub(crate) port: Option<u16>,
    pub(crate) address: Option<&'a str>,
    pub(crate) rendezvous: Option<&'a str>,
}

impl PlaceFlags<'_> {
    /// The source of the cluster's description, and the cluster; `None` without a cluster.
    pub(crate) fn resolve(&self) -> Result<(Detected, Option<Cluster>), Failure> {
        let spec = self.cluster_spec.map(ClusterSpec::parse);
        let overrides = Overrides {
            kind: self.cluster.map(ClusterKind::from),
            cluster_spec: spec.transpose().map_err(Error::from)?,
            task_type: self.task_type.map(str::to_string),
            task_id: self.task_id,
            port_base: self.port,
            rendezvous: self.rendezvous.map(str::to_string),
            ..Overrides::default()
        };
        let detected = detect_with(ProcessEnvironment, overrides);
        let cluster = Cluster::resolve(&*detected.resolver).map_err(Error::from)?;
        let is_listed = !detected.kind.says_only_where_to_meet() || self.cluster_spec.is_some();
        if self.address.is_some() && is_listed {
            return Err(Failure::usage(
                "--address is for torchrun, MPI and Kubeflow Trainer, which only say where worker \
                 0 is; this cluster lists the address of every task: write it there",
            ));
        }
        self.refuse_unused(detected.kind)?;
        Ok((detected, cluster))
    }

    /// Refuses flags about this process' task that have no effect in such a cluster.
    fn refuse_unused(&self, kind: ClusterKind) -> Result<(), Failure> {
        let has_list = self.cluster_spec.is_some();
        let is_alone = kind == ClusterKind::OneProcess && !has_list;
        let placed = [
            ("--port", self.port.is_some()),
            ("--task-type", self.task_type.is_some()),
            ("--task-id", self.task_id.is_some()),
        ];
        let given = placed.into_iter().find(|(_, given)| *given);
        if let (Some((flag, _)), true) = (given, is_alone) {
            return Err(Failure::usage(format!(
                "{flag} is about this process among others, and no cluster is described: give \
                 --cluster-spec or TF_CONFIG, start it with `launch`, SLURM, Kubernetes, torchrun \
                 or MPI, or leave {flag} out to train alone"
            )));
        }
        if self.port.is_some() && (has_list || kind == ClusterKind::TfConfig) {
            return Err(Failure::usage(
                "--port is for SLURM, Kubernetes, torchrun and MPI, which list no ports; this \
                 cluster lists the address of every task, with its port: write it there (`launch \
                 --ports` chooses the ports of its processes)",
            ));
        }
        Ok(())
    }
}

impl ClusterArgs {
    /// Refuses flags about workers if there is only this process.
    pub(crate) fn refuse_without_workers(&self) -> Result<(), Failure> {
        if self.replicate_state.is_some() {
            return Err(Failure::usage(
                "--replicate-state is about workers that hold the same variables; add --strategy \
                 multi-worker, or save with --checkpoint-steps",
            ));
        }
        let given = [
            ("--total-replicas", self.total_replicas.is_some()),
            ("--cluster", self.cluster.is_some()),
            ("--cluster-spec", self.cluster_spec.is_some()),
            ("--task-type", self.task_type.is_some()),
            ("--task-id", self.task_id.is_some()),
            ("--port", self.port.is_some()),
            ("--address", self.address.is_some()),
            ("--rendezvous", self.rendezvous.is_some()),
            ("--transport", self.transport.is_some()),
            ("--communication", self.communication.is_some()),
            ("--bytes-per-pack", self.bytes_per_pack.is_some()),
            ("--wire", self.wire.is_some()),
            ("--rendezvous-timeout", self.rendezvous_timeout.is_some()),
            ("--timeout", self.timeout.is_some()),
            ("--heartbeat-timeout", self.heartbeat_timeout.is_some()),
            ("--certs", self.certs.is_some()),
            ("--insecure", self.insecure),
            ("--flight-records", self.flight_records.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::usage(format!(
                "{flag} is about several workers; add --strategy multi-worker or parameter-server"
            ))),
            None => Ok(()),
        }
    }

    /// Refuses a directory of flight records that cannot be written.
    pub(crate) fn check_files(&self) -> Result<(), Failure> {
        let Some(directory) = &self.flight_records else {
            return Ok(());
        };
        check_directory(directory).map_err(|error| {
            let path = directory.display();
            Failure::usage(format!(
                "--flight-records: {path} cannot be written ({error}); choose a directory that can"
            ))
        })
    }

    #[cfg(feature = "full")]
    /// Refuses flags about collectives, which parameter servers do not use.
    pub(crate) fn refuse_collectives(&self) -> Result<(), Failure> {
        if self.replicate_state.is_some() {
            return Err(Failure::usage(
                "--replicate-state is for --strategy multi-worker, whose workers hold all \
                 variables; with parameter servers use --checkpoint-steps",
            ));
        }
        if self.wire == Some(WireName::F16) {
            return Err(Failure::usage(
                "--wire f16 is for --strategy multi-worker; parameter servers take bf16, which \
                 also holds large weights",
            ));
        }
        let given = [
            ("--total-replicas", self.total_replicas.is_some()),
            ("--address", self.address.is_some()),
            ("--rendezvous", self.rendezvous.is_some()),
            ("--transport", self.transport.is_some()),
            ("--communication", self.communication.is_some()),
            ("--bytes-per-pack", self.bytes_per_pack.is_some()),
            ("--timeout", self.timeout.is_some()),
            ("--heartbeat-timeout", self.heartbeat_timeout.is_some()),
            ("--flight-records", self.flight_records.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::usage(format!(
                "{flag} is about gradients that workers exchange; with --strategy \
                 parameter-server they do not"
            ))),
            None => Ok(()),
        }
    }

    /// The source of the cluster's description, and the cluster; `None` without a cluster.
    pub(crate) fn resolve(&self) -> Result<(Detected, Option<Cluster>), Failure> {
        let place = PlaceFlags {
            cluster: self.cluster,
            cluster_spec: self.cluster_spec.as_deref(),
            task_type: self.task_type.as_deref(),
            task_id: self.task_id,
            port: self.port,
            address: self.address.as_deref(),
            rendezvous: self.rendezvous.as_deref(),
        };
        place.resolve()
    }

    /// Connects to the other workers, with replicas on these devices, `per_device` on each.
    pub(crate) fn strategy(
        &self,
        devices: Option<Vec<LogicalDevice>>,
        per_device: Option<usize>,
        cluster: Option<Cluster>,
        interruption: Interruption,
    ) -> Result<MultiWorkerMirroredStrategy, Failure> {
        let timeout = Duration::from_secs(self.timeout.unwrap_or(300));
        let rendezvous = Duration::from_secs(self.rendezvous_timeout.unwrap_or(60));
        let transport = self.transport.unwrap_or(TransportName::Auto);
        let communication = self.communication.unwrap_or(CommunicationName::Auto);
        let mut builder = MultiWorkerMirroredStrategy::builder()
            .cluster(cluster)
            .communication_options(CommunicationOptions {
                bytes_per_pack: self.bytes_per_pack.unwrap_or(0),
                timeout: Some(timeout),
                implementation: communication.into(),
                wire: self.wire.and_then(WireName::narrow),
            })
            .transport(transport.into())
            .security(self.security()?)
            .own_host(self.address.clone())
            .generation(restarts()?)
            .rendezvous_timeout(rendezvous)
            .interruption(interruption)
            .heartbeat_timeout(Duration::from_secs(self.heartbeat_timeout.unwrap_or(3)))
            .timeout(timeout);
        if let Some(devices) = devices {
            builder = builder.devices(devices);
        }
        if let Some(count) = per_device {
            builder = builder.replicas_per_device(count);
        }
        if let Some(total) = self.total_replicas {
            builder = builder.total_replicas(total);
        }
        if let Some(directory) = &self.flight_records {
            builder = builder.flight_records(directory);
        }
        if let Some(path) = std::env::var_os(LINK_MEMORY_VARIABLE) {
            builder = builder.link_memory(path);
        }
        builder.build().map_err(|error| match &error {
            Error::Collective(refused) if !refused.differing_options().is_empty() => {
                other_options(refused)
            }
            _ => error.into(),
        })
    }

    /// Token and certificates.
    pub(crate) fn security(&self) -> Result<Security, Failure> {
        security(self.certs.as_deref(), self.insecure)
    }
}

/// A file of all hosts: `certs` puts the files of each host below it.
pub(crate) fn beside(directory: &Path, name: &str) -> PathBuf {
    match directory.join(name) {
        own if own.exists() => own,
        _ => directory.join("..").join(name),
    }
}

/// Token and certificates from a host's directory of `certs`; the token of the environment takes
/// precedence.
pub(crate) fn security(certs: Option<&Path>, insecure: bool) -> Result<Security, Failure> {
    let failed = |error| Failure::from(Error::Collective(CollectiveError::from(error)));
    let mut security = Security::default();
    if insecure {
        security = security.insecure();
    }
    if let Some(directory) = certs {
        let identity = TlsIdentity::from_files(
            beside(directory, "ca.pem"),
            directory.join("certificate.pem"),
            directory.join("key.pem"),
        );
        security = security.tls(identity.map_err(failed)?);
        if std::env::var_os(TOKEN_VARIABLE).is_none() {
            security =
                security.token(Token::from_file(beside(directory, "token")).map_err(failed)?);
        }
    }
    if std::env::var_os(TOKEN_VARIABLE).is_some() {
        security = security.token(Token::from_env(TOKEN_VARIABLE).map_err(failed)?);
    }
    Ok(security)
}
