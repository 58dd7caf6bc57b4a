//! `doctor`: a report about this machine.

use std::fmt;
use std::path::Path;

use distribute_core::cluster::{Cluster, ProcessEnvironment, TaskType, detect};
use distribute_core::{LogicalDevice, available_cores};
use serde_json::{Value, json};

use super::certificates::Certificates;
use super::doctor_peers;
use super::gpus::{self, Gpus};
use super::libraries::{Library, find_all};
use crate::cpu_features::cpu_features;
use crate::events::{self, EventName};
use crate::failure::Failure;
use crate::flags::{DoctorArgs, OutputFormat, VERSION};
use crate::memory::Memory;
use crate::notes::wrapped;

/// Variables by which a cluster describes itself to a process. None of them is a secret.
const CLUSTER_VARIABLES: [(&str, &[&str]); 7] = [
    ("TF_CONFIG", &["TF_CONFIG", "DISTRIBUTE_CLUSTER_FILE"]),
    (
        "SLURM",
        &[
            "SLURM_JOB_ID",
            "SLURM_PROCID",
            "SLURM_NTASKS",
            "SLURM_STEP_NODELIST",
        ],
    ),
    ("Kubernetes", &["KUBERNETES_SERVICE_HOST"]),
    (
        "Open MPI",
        &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    ),
    (
        "torchrun",
        &[
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_USE_AGENT_STORE",
        ],
    ),
    (
        "other launchers",
        &distribute_core::cluster::LAUNCHER_VARIABLES,
    ),
    (
        "TPU",
        &[
            "TPU_WORKER_ID",
            "TPU_WORKER_HOSTNAMES",
            "TPU_ACCELERATOR_TYPE",
        ],
    ),
];

/// The text if there are no variables of a launcher.
const NONE_DETECTED: &str = "none detected: this process is on its own";

/// Longer values are cut.
const MAX_VALUE: usize = 200;

/// The indentation of continued lines.
const NAME_COLUMNS: usize = 15;

/// The whole report.
struct Report {
    cores: usize,
    memory: Option<Memory>,
    features: Vec<&'static str>,
    libraries: Vec<Library>,
    gpus: Gpus,
    cluster: Vec<(&'static str, &'static str, String)>,
    place: Place,
    /// Of `--certs`.
    certificates: Option<Certificates>,
}

/// The cluster that `train --strategy multi-worker` would read from the variables.
struct Place {
    /// The source, with its variables.
    found: String,
    /// Why this source was chosen, and which others were not.
    reasons: Vec<String>,
    /// This process' task, or why there is none.
    task: Result<Option<Task>, String>,
}

/// A task of a cluster.
struct Task {
    name: String,
    /// `None` for a task that does not train with others.
    rank: Option<usize>,
    workers: usize,
    is_chief: bool,
    /// The purpose of a task that does not train.
    purpose: Option<String>,
    /// The address at which it meets the others.
    meeting: Option<String>,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    if args.probe_gpus {
        return gpus::run_probe();
    }
    if args.peers.peers {
        return doctor_peers::run(args);
    }
    let report = Report::collect(args.certs.as_deref());
    match args.output() {
        OutputFormat::Json => events::line(&report.json()),
        OutputFormat::Text => events::line(&report.text()),
    }
}

impl DoctorArgs {
    pub(super) fn output(&self) -> OutputFormat {
        if self.json {
            OutputFormat::Json
        } else {
            self.general.output
        }
    }
}

impl Report {
    fn collect(certs: Option<&Path>) -> Self {
        Self {
            cores: available_cores(),
            memory: Memory::of_this_process(),
            features: cpu_features(),
            libraries: find_all(&|name| std::env::var_os(name)),
            gpus: Gpus::find(),
            cluster: cluster(&|name| std::env::var(name).ok()),
            place: Place::find(),
            certificates: certs.map(Certificates::find),
        }
    }

    fn json(&self) -> String {
        let devices: Vec<String> = LogicalDevice::all_cpus()
            .iter()
            .map(ToString::to_string)
            .collect();
        let libraries = self.libraries.iter().map(|library| {
            json!({
                "name": library.name,
                "purpose": library.purpose,
                "found": library.path.is_some(),
                "path": library.path,
                "version": library.version,
                "searched": library.searched,
            })
        });
        let cluster = self.cluster.iter().map(
            |(system, name, value)| json!({ "system": system, "variable": name, "value": value }),
        );
        events::event(
            EventName::Doctor,
            [
                ("version", json!(env!("CARGO_PKG_VERSION"))),
                ("os", json!(std::env::consts::OS)),
                ("architecture", json!(std::env::consts::ARCH)),
                ("cores", json!(self.cores)),
                (
                    "memory_bytes",
                    json!(self.memory.as_ref().map(|memory| memory.total)),
                ),
                (
                    "memory_available_bytes",
                    json!(self.memory.as_ref().map(|memory| memory.available)),
                ),
                (
                    "memory_limited_by",
                    json!(self.memory.as_ref().map(Memory::limited_by)),
                ),
                ("cpu_features", json!(self.features)),
                ("devices", json!(devices)),
                ("libraries", json!(libraries.collect::<Vec<_>>())),
                ("gpus", self.gpus.json()),
                ("cluster", json!(cluster.collect::<Vec<_>>())),
                ("place", self.place.json()),
                (
                    "certificates",
                    json!(self.certificates.as_ref().map(Certificates::json)),
                ),
            ],
        )
    }

    fn text(&self) -> String {
        let devices: Vec<String> = LogicalDevice::all_cpus()
            .iter()
            .map(ToString::to_string)
            .collect();
        let memory = match &self.memory {
            Some(memory) => memory.text(),
            None => "unknown".to_string(),
        };
        let mut lines = vec![
            format!("distribute-cli {VERSION}"),
            format!(
                "machine        {} {}, {} cores for this process",
                std::env::consts::OS,
                std::env::consts::ARCH,
                self.cores
            ),
            wrapped(&format!("memory         {memory}"), NAME_COLUMNS),
            format!("CPU features   {}", list(&self.features)),
            format!("devices        {}", devices.join(", ")),
        ];
        for library in &self.libraries {
            let version = library
                .version
                .as_ref()
                .map(|version| format!(" {version}"));
            let line = |found: String| format!("{:<14} {found}", library.name);
            lines.push(match &library.path {
                // Not wrapped, so that a path can be copied.
                Some(path) => line(format!(
                    "found{} at {}",
                    version.unwrap_or_default(),
                    path.display()
                )),
                None => {
                    let text = line(format!(
                        "not found ({}); searched {} places, --output json lists them",
                        library.purpose,
                        library.searched.len()
                    ));
                    wrapped(&text, NAME_COLUMNS)
                }
            });
        }
        lines.extend(
            self.gpus
                .lines()
                .iter()
                .map(|line| wrapped(line, NAME_COLUMNS)),
        );
        self.add_cluster(&mut lines);
        let certificates = self.certificates.iter().flat_map(Certificates::lines);
        let certificates = certificates.map(|line| format!("certificates   {line}"));
        lines.extend(certificates.map(|line| wrapped(&line, NAME_COLUMNS)));
        lines.join("\n")
    }

    /// The variables of a cluster, and this process' task.
    fn add_cluster(&self, lines: &mut Vec<String>) {
        if self.cluster.is_empty() {
            let alone = matches!(self.place.task, Ok(None));
            lines.push(format!(
                "cluster        {}",
                if alone { NONE_DETECTED } else { "see below" }
            ));
        }
        for (system, name, value) in &self.cluster {
            let system = if system == name {
                String::new()
            } else {
                format!("{system}: ")
            };
            lines.push(format!("cluster        {system}{name}={value}"));
        }
        if !self.cluster.is_empty() || self.place.task.as_ref().map_or(true, Option::is_some) {
            lines.extend(self.place.lines());
        }
    }
}

impl Place {
    fn find() -> Self {
        let detected = detect(ProcessEnvironment);
        let task = match Cluster::resolve(&*detected.resolver) {
            Ok(cluster) => Ok(cluster.as_ref().map(Task::of)),
            Err(error) => Err(error.to_string()),
        };
        let passed = detected
            .passed_over
            .iter()
            .map(|it| format!("not from {}: {}", it.kind, it.why));
        let chosen = format!("from {} ({})", detected.kind, detected.reason);
        Self {
            found: detected.to_string(),
            reasons: [chosen].into_iter().chain(passed).collect(),
            task,
        }
    }

    fn lines(&self) -> Vec<String> {
        let task = match &self.task {
            Ok(None) => "this process is on its own: it trains alone, on all data".to_string(),
            Ok(Some(task)) => task.to_string(),
            Err(error) => format!("cannot be used: {error}"),
        };
        let lines = [&task].into_iter().chain(&self.reasons);
        let line = |line: &String| wrapped(&format!("{:15}{line}", ""), NAME_COLUMNS);
        lines.map(line).collect()
    }

    fn json(&self) -> Value {
        let (task, error) = match &self.task {
            Ok(task) => (task.as_ref(), None),
            Err(error) => (None, Some(error)),
        };
        json!({
            "found": self.found,
            "task": task.map(|task| &task.name),
            "rank": task.map(|task| task.rank),
            "workers": task.map(|task| task.workers),
            "is_chief": task.map(|task| task.is_chief),
            "purpose": task.and_then(|task| task.purpose.as_ref()),
            "meeting": task.and_then(|task| task.meeting.as_ref()),
            "reasons": self.reasons,
            "error": error,
        })
    }
}

impl Task {
    fn of(cluster: &Cluster) -> Self {
        let trainers = cluster.workers().len();
        let purpose = match cluster.task_type() {
            // For TensorFlow's functions it is the chief of its own cluster; but it does not train,
            // and writes no checkpoint.
            TaskType::Evaluator => Some(format!(
                "it does not train: it measures the checkpoints of {trainers} workers"
            )),
            TaskType::ParameterServer => Some(format!(
                "it does not train: it holds variables for {trainers} workers"
            )),
            _ => None,
        };
        let trains = purpose.is_none();
        Self {
            name: format!("{} {}", cluster.task_type(), cluster.task_id()),
            rank: cluster.rank().filter(|_| trains),
            workers: trainers,
            is_chief: trains && cluster.is_chief(),
            purpose,
            meeting: meeting(cluster).filter(|_| trains),
        }
    }
}

/// The address at which a worker meets the others, and its own.
fn meeting(cluster: &Cluster) -> Option<String> {
    let leader = cluster.leader_address()?;
    if cluster.worker_count() < 2 {
        return None;
    }
    let own = match (cluster.address(), cluster.own_port()) {
        (Some(own), _) => format!("listens at {own}"),
        (None, Some(port)) => format!("listens on port {port} and sends it to rank 0"),
        (None, None) => {
            "listens on a free port and sends it to rank 0 (--port sets it)".to_string()
        }
    };
    let is_local = leader.starts_with("127.") || leader.starts_with("[::1]");
    let is_local = is_local || leader.starts_with("localhost:");
    let local = if is_local && cluster.address().is_none() {
        "; that address reaches this host only"
    } else {
        ""
    };
    Some(format!("it {own}; the workers meet at {leader}{local}"))
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this process is {}", self.name)?;
        if let Some(rank) = self.rank {
            write!(f, ", rank {rank} of {}", self.workers)?;
        }
        f.write_str(if self.is_chief { ", the chief" } else { "" })?;
        let mut more = [&self.purpose, &self.meeting].into_iter().flatten();
        more.try_for_each(|text| write!(f, "; {text}"))
    }
}

fn list(names: &[&str]) -> String {
    match names {
        [] => "none known".to_string(),
        names => names.join(", "),
    }
}

fn cluster(variable: &dyn Fn(&str) -> Option<String>) -> Vec<(&'static str, &'static str, String)> {
    let mut found = Vec::new();
    for (system, names) in CLUSTER_VARIABLES {
        for name in names {
            if let Some(value) = variable(name) {
                let value: String = value.chars().take(MAX_VALUE).collect();
                found.push((system, *name, value.replace('\n', " ")));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_variables_are_reported_on_one_line() {
        let variable = |name: &str| (name == "TF_CONFIG").then(|| "{\n}".to_string());
        assert_eq!(
            cluster(&variable),
            [("TF_CONFIG", "TF_CONFIG", "{ }".to_string())]
        );
    }
}
