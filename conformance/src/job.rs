//! Controls the processes of a job from outside.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use distribute_launch::ReservedPorts;
use serde_json::{Value, json};

use crate::compare::Tolerance;
use crate::outcome::{Checked, Deviation, Failure, Outcome, Rule};
use crate::program::WorkerProgram;

/// A worker that sends nothing for this long has hung.
const LIMIT: Duration = Duration::from_secs(60);

/// Which processes a job has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setting {
    /// Job names and their numbers of tasks.
    pub(crate) roles: Vec<(String, usize)>,
    /// Replicas of every worker.
    pub(crate) replicas: usize,
    /// How long a worker waits for the others.
    pub(crate) timeout: Duration,
}

/// Jobs that serve many cases.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Mutex<BTreeMap<Setting, Job>>);

impl Jobs {
    /// Lends the job with this setting, which is started if need be. A job that did not do the same
    /// as TensorFlow is not used again: an error in a step ends the group of its workers.
    pub(crate) fn with(
        &self,
        program: &WorkerProgram,
        setting: &Setting,
        use_it: impl FnOnce(&mut Job) -> Checked,
    ) -> Checked {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut job = match jobs.remove(setting) {
            Some(job) => job,
            None => Job::start(program, setting)?,
        };
        let outcome = use_it(&mut job)?;
        if outcome == Outcome::Passed {
            jobs.insert(setting.clone(), job);
        }
        Ok(outcome)
    }
}

/// Some worker processes of one cluster. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Job {
    members: BTreeMap<String, Member>,
    /// Reserved ports, which other jobs cannot take while the members run.
    _ports: ReservedPorts,
}

#[derive(Debug)]
struct Member {
    child: Child,
    /// `None` once it was told to end.
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Job {
    /// Starts all tasks.
    pub(crate) fn start(program: &WorkerProgram, setting: &Setting) -> Result<Self, Failure> {
        let tasks = setting.roles.iter().map(|(_, count)| count).sum();
        let ports = ReservedPorts::new(tasks, Ipv4Addr::LOCALHOST.into())?;
        let cluster = cluster(&setting.roles, ports.addresses());
        let mut members = BTreeMap::new();
        for (role, count) in &setting.roles {
            for index in 0..*count {
                let config = json!({
                    "cluster": cluster,
                    "task": {"type": role, "index": index},
                });
                let member = Member::start(program, &config, setting)?;
                members.insert(format!("{role}:{index}"), member);
            }
        }
        Ok(Self {
            members,
            _ports: ports,
        })
    }

    /// Lets these tasks do the operation, all at once, and compares what each of them sees.
    pub(crate) fn check(
        &mut self,
        op: &str,
        tasks: &[(&str, &Value)],
        tolerance: Tolerance,
    ) -> Checked {
        for (name, expected) in tasks {
            let order = json!({
                "op": op,
                "expect": expected,
                "tolerance": [tolerance.relative, tolerance.absolute],
            });
            self.member(name)?.send(&order)?;
        }
        let mut outcome = Outcome::Passed;
        for (name, _) in tasks {
            let received = self.member(name)?.receive()?;
            match read(&received).map_err(|failure| failure.at(format!("{name}: ")))? {
                Outcome::Passed => {}
                other => outcome = other,
            }
        }
        Ok(outcome)
    }

    /// Tells a task to end with this code, and waits until it has.
    pub(crate) fn exit(&mut self, name: &str, code: i32) -> Result<(), Failure> {
        let member = self.member(name)?;
        member.send(&json!({ "exit": code }))?;
        let found = member.wait()?;
        if found == Some(code) {
            Ok(())
        } else {
            Err(Failure::new(code, format!("{found:?}")).at(name))
        }
    }

    /// Tells a task to end normally, and returns how its process ended.
    pub(crate) fn close(&mut self, name: &str) -> Result<Option<i32>, Failure> {
        let member = self.member(name)?;
        member.input = None;
        member.wait()
    }

    fn member(&mut self, name: &str) -> Result<&mut Member, Failure> {
        let unknown = || Failure::schema(format!("no task `{name}` in the case's cluster"));
        self.members.get_mut(name).ok_or_else(unknown)
    }
}

impl Member {
    fn start(program: &WorkerProgram, config: &Value, setting: &Setting) -> Result<Self, Failure> {
        let mut child = program
            .command()
            .env("TF_CONFIG", config.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let Some(output) = child.stdout.take() else {
            return Err(Failure::got("no output of a worker"));
        };
        let (send, answers) = channel();
        // Ends with the process.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let mut member = Self {
            child,
            input,
            answers,
        };
        member.send(&json!({
            "replicas": setting.replicas,
            "timeout_ms": u64::try_from(setting.timeout.as_millis()).unwrap_or(u64::MAX),
        }))?;
        Ok(member)
    }

    fn send(&mut self, order: &Value) -> Result<(), Failure> {
        let ended = || Failure::got("a worker that has ended");
        let input = self.input.as_mut().ok_or_else(ended)?;
        writeln!(input, "{order}")?;
        Ok(input.flush()?)
    }

    fn receive(&mut self) -> Result<Value, Failure> {
        let line = self.answers.recv_timeout(LIMIT);
        let line = line.map_err(|error| Failure::got(format!("no answer of a worker: {error}")))?;
        serde_json::from_str(&line).map_err(|_| Failure::got(format!("`{line}` of a worker")))
    }

    /// Waits for the end of its output, when the process ends.
    fn wait(&mut self) -> Result<Option<i32>, Failure> {
        self.input = None;
        match self.answers.recv_timeout(LIMIT) {
            Ok(line) => Err(Failure::got(format!(
                "`{line}` of a worker that was to end"
            ))),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                Err(Failure::got("a worker that does not end"))
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => Ok(self.child.wait()?.code()),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // All are told first, so that none waits for another one.
        for member in self.members.values_mut() {
            member.input = None;
        }
        for member in self.members.values_mut() {
            // A process that does not end now is killed below.
            let _ = member.wait();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gives each task one of these addresses.
fn cluster<'a>(
    roles: &'a [(String, usize)],
    addresses: &[SocketAddr],
) -> BTreeMap<&'a str, Vec<String>> {
    let mut addresses = addresses.iter().map(SocketAddr::to_string);
    let of_role = |(role, count): &'a (String, usize)| {
        let taken = addresses.by_ref().take(*count);
        (&**role, taken.collect())
    };
    roles.iter().map(of_role).collect()
}

/// The outcome that a worker has sent of its part.
fn read(received: &Value) -> Checked {
    let text = |key: &str| received[key].as_str();
    if received["passed"] == true {
        return Ok(Outcome::Passed);
    }
    if let Some(name) = text("deviation") {
        let found = Deviation::ALL.iter().find(|one| one.name() == name);
        return found.map_or_else(
            || Err(Failure::got(format!("the deviation `{name}`"))),
            |deviation| Ok(Outcome::Deviation(*deviation)),
        );
    }
    if let Some(name) = text("rule") {
        let found = Rule::ALL.iter().find(|one| one.name() == name);
        return found.map_or_else(
            || Err(Failure::got(format!("the rule `{name}`"))),
            |rule| Ok(Outcome::NotApplicable(*rule)),
        );
    }
    let failure = match text("expected") {
        Some(expected) => Failure::new(expected, text("got").unwrap_or("nothing")),
        None => Failure::got(text("got").unwrap_or("nothing")),
    };
    Err(failure.at(text("at").unwrap_or_default()))
}
