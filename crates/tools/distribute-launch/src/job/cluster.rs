//! What is new in every attempt: ports, `TF_CONFIG` and a token.

use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::error::{LaunchError, Result};
use crate::job::ports::ReservedPorts;
use crate::job::task::{Role, Task};

/// The addresses of all tasks, by job. The fields' order is the order in `TF_CONFIG`.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cluster {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    chief: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    worker: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ps: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evaluator: Vec<String>,
}

#[derive(Serialize)]
struct TfConfig<'a> {
    cluster: &'a Cluster,
    task: TfTask,
}

/// `TF_CONFIG` of a process that finds the cluster in a file. A program that does not know of the
/// file refuses the text in place of the cluster, rather than working alone.
#[derive(Serialize)]
struct TfConfigBesideFile {
    cluster: &'static str,
    task: TfTask,
}

#[derive(Serialize)]
struct ClusterFile<'a> {
    cluster: &'a Cluster,
}

const IN_FILE: &str = "in the file that DISTRIBUTE_CLUSTER_FILE names";

/// The longest string among the variables of a process, with its name and the zero at its end
/// (Linux: `MAX_ARG_STRLEN`).
const STRING_BYTES_MAX: usize = 128 << 10;

#[derive(Serialize)]
struct TfTask {
    r#type: &'static str,
    index: usize,
}

impl Cluster {
    /// Gives each task one of these ports.
    pub fn with_ports(ports: &ReservedPorts, tasks: &[Task]) -> Cluster {
        let mut ports = ports.addresses().iter().map(SocketAddr::to_string);
        let mut of_role = |role| {
            let count = tasks.iter().filter(|task| task.role == role).count();
            ports.by_ref().take(count).collect()
        };
        Cluster {
            chief: of_role(Role::Chief),
            worker: of_role(Role::Worker),
            ps: of_role(Role::ParameterServer),
            evaluator: of_role(Role::Evaluator),
        }
    }

    /// Appends the tasks of another host, role by role, and returns the numbers that they got.
    pub fn append(&mut self, part: &Cluster) -> Vec<Task> {
        let jobs = [
            (Role::Chief, &mut self.chief, &part.chief),
            (Role::Worker, &mut self.worker, &part.worker),
            (Role::ParameterServer, &mut self.ps, &part.ps),
            (Role::Evaluator, &mut self.evaluator, &part.evaluator),
        ];
        let mut tasks = Vec::new();
        for (role, all, added) in jobs {
            let first = all.len();
            all.extend_from_slice(added);
            tasks.extend((first..all.len()).map(|index| Task { role, index }));
        }
        tasks
    }

    /// Removes a chief that is not needed or refuses its absence: parameter servers need a
    /// chief, and without them there is none. The launcher of host 0 offers one before it knows
    /// what the other hosts start.
    pub fn reconcile_chief(&mut self, own: &mut Vec<Task>) {
        if self.ps.is_empty() {
            self.chief.clear();
            own.retain(|task| task.role != Role::Chief);
        }
    }

    /// Refuses a job in which no host starts workers, and hosts that start nothing.
    pub fn check_parts<'a>(
        &self,
        mut parts: impl Iterator<Item = (usize, &'a Cluster)>,
    ) -> Result<()> {
        let brings_nothing = |part: &Cluster| {
            let has_chief = !part.chief.is_empty() && !self.chief.is_empty();
            let others = [&part.worker, &part.ps, &part.evaluator];
            !has_chief && others.into_iter().all(Vec::is_empty)
        };
        let what = if self.worker.is_empty() {
            "no host starts a worker: give --workers 1 or more on at least one".to_owned()
        } else if let Some((host, _)) = parts.find(|(_, part)| brings_nothing(part)) {
            format!(
                "host {host} starts nothing: it has no workers, and no host has the parameter \
                 servers for which it would start the chief"
            )
        } else {
            return Ok(());
        };
        Err(LaunchError::InvalidHosts { what })
    }

    /// The process whose output passes through.
    pub fn first(&self) -> Task {
        let role = self.leading();
        Task { role, index: 0 }
    }

    /// The role whose processes end the job when they end.
    pub fn leading(&self) -> Role {
        if self.chief.is_empty() {
            Role::Worker
        } else {
            Role::Chief
        }
    }

    /// How many tasks of this role there are.
    pub fn count(&self, role: Role) -> usize {
        match role {
            Role::Chief => self.chief.len(),
            Role::Worker => self.worker.len(),
            Role::ParameterServer => self.ps.len(),
            Role::Evaluator => self.evaluator.len(),
        }
    }

    /// All tasks, the first one first.
    pub fn tasks(&self) -> impl Iterator<Item = Task> {
        let roles = [
            Role::Chief,
            Role::Worker,
            Role::ParameterServer,
            Role::Evaluator,
        ];
        let of_role = |role| (0..self.count(role)).map(move |index| Task { role, index });
        roles.into_iter().flat_map(of_role)
    }

    /// The value of `TF_CONFIG` for `task`.
    pub fn tf_config(&self, task: Task) -> Result<String> {
        let task = TfTask::new(task);
        text(&TfConfig {
            cluster: self,
            task,
        })
    }

    /// The same for a process that finds the cluster in a file.
    pub fn tf_config_beside_file(task: Task) -> Result<String> {
        let (cluster, task) = (IN_FILE, TfTask::new(task));
        text(&TfConfigBesideFile { cluster, task })
    }

    /// The content of that file.
    pub fn file_text(&self) -> Result<String> {
        text(&ClusterFile { cluster: self })
    }
}

impl TfTask {
    fn new(task: Task) -> TfTask {
        TfTask {
            r#type: task.role.name(),
            index: task.index,
        }
    }
}

fn text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(LaunchError::system("cannot write TF_CONFIG"))
}

/// Whether a variable of a process may have this value.
pub fn fits(name: &str, value: &str) -> bool {
    name.len() + value.len() + "=\0".len() <= STRING_BYTES_MAX
}

/// A secret of one attempt, or another random text. It is never printed.
#[derive(Clone)]
pub struct Token(String);

const TOKEN_BYTES: usize = 32;

impl Token {
    pub fn random() -> Result<Token> {
        let bytes = distribute_net::random::<TOKEN_BYTES>()
            .map_err(io::Error::other)
            .map_err(LaunchError::system("no random numbers for the job's token"))?;
        Ok(Token::of(&bytes))
    }

    /// These bytes as hexadecimal digits.
    pub fn of(bytes: &[u8]) -> Token {
        Token(hex::encode(bytes))
    }

    /// A token received from another process of the job.
    pub fn from_text(text: &str) -> Option<Token> {
        let is_digit = |byte: u8| byte.is_ascii_hexdigit();
        let is_token = text.len() == 2 * TOKEN_BYTES && text.bytes().all(is_digit);
        is_token.then(|| Token(text.to_owned()))
    }

    pub fn secret(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::{Cluster, Token};
    use crate::job::Job;
    use crate::job::ports::ReservedPorts;

    #[test]
    fn tf_config_has_all_jobs_and_distinct_ports() {
        let job = Job::new(["true"]).workers(20).parameter_servers(2);
        let tasks = job.evaluator(true).tasks(20);
        let ports = ReservedPorts::new(tasks.len(), std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
        let cluster = Cluster::with_ports(&ports, &tasks);
        let mut addresses = BTreeSet::new();
        for (job, count) in [("chief", 1), ("worker", 20), ("ps", 2), ("evaluator", 1)] {
            let text = cluster.tf_config(tasks[22]).unwrap();
            let config: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(config["task"], json!({"type": "ps", "index": 1}));
            let listed = config["cluster"][job].as_array().unwrap().clone();
            assert_eq!(listed.len(), count);
            addresses.extend(
                listed
                    .iter()
                    .map(|value| value.as_str().unwrap().to_owned()),
            );
        }
        assert_eq!(addresses.len(), 24);
        assert!(
            addresses
                .iter()
                .all(|address| address.starts_with("127.0.0.1:"))
        );
    }

    #[test]
    fn jobs_without_tasks_are_left_out() {
        let tasks = Job::new(["true"]).tasks(1);
        let cluster = Cluster {
            worker: vec!["127.0.0.1:7".to_owned()],
            ..Cluster::default()
        };
        assert_eq!(
            cluster.tf_config(tasks[0]).unwrap(),
            r#"{"cluster":{"worker":["127.0.0.1:7"]},"task":{"type":"worker","index":0}}"#
        );
    }

    #[test]
    fn a_variable_holds_what_the_system_lets_through() {
        let starts = |bytes| {
            let value = "x".repeat(bytes);
            let started = std::process::Command::new("true")
                .env("NAME", &value)
                .status();
            (super::fits("NAME", &value), started.is_ok())
        };
        assert_eq!(starts((128 << 10) - 6), (true, true));
        let (fits, started) = starts((128 << 10) - 5);
        assert!(!fits);
        assert!(!started || cfg!(not(target_os = "linux")));
    }

    #[test]
    fn tokens_are_long_and_differ() {
        let [a, b] = [Token::random().unwrap(), Token::random().unwrap()];
        assert_ne!(a.secret(), b.secret());
        assert!(Token::from_text(a.secret()).is_some());
        assert!(Token::from_text("abc").is_none());
    }
}
