//! A job of several processes on addresses of its own.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use crate::common::{self, Finished};

/// The folder and the arguments of a test's runs.
pub const MULTI: &str = "train --strategy multi-worker --model mlp --output json";

/// Loopback addresses that nobody else uses: the network 127 has room for every test.
pub fn addresses(count: usize) -> Vec<String> {
    static USED: AtomicU32 = AtomicU32::new(1);
    let process = std::process::id();
    let [_, high, middle, low] = process.to_be_bytes();
    let mine = USED.fetch_add(1, Ordering::Relaxed);
    assert!(mine < 250, "more addresses than this scheme has");
    let port = 20_000 + 256 * u32::from(high % 64) + mine;
    (0..count)
        .map(|worker| format!("127.{middle}.{low}.{}:{port}", worker + 1))
        .collect()
}

/// What a launcher sets for a task of a cluster.
pub fn tf_config(cluster: &str, task_type: &str, index: usize) -> String {
    format!(r#"{{"cluster": {cluster}, "task": {{"type": "{task_type}", "index": {index}}}}}"#)
}

/// The cluster of `count` workers.
pub fn cluster(count: usize) -> String {
    format!(r#"{{"worker": {:?}}}"#, addresses(count))
}

/// One process of a job.
pub struct Member {
    child: Child,
    out: BufReader<Box<dyn Read + Send>>,
    read: String,
    err: Option<std::thread::JoinHandle<String>>,
    /// Dropped at the end, which calls the watchdog off.
    _watchdog: mpsc::Sender<()>,
}

impl Member {
    pub fn start(folder: &Path, arguments: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("distribute-cli"));
        for name in ["TF_CONFIG", "DISTRIBUTE_RESTART", "DISTRIBUTE_JOB_TOKEN"] {
            command.env_remove(name);
        }
        let mut child = command
            .current_dir(folder)
            .args(arguments.split_whitespace())
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let watchdog = common::watchdog(child.id());
        let out: Box<dyn Read + Send> = Box::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        // On a thread, so that no process is stopped by a full pipe.
        let err = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Self {
            child,
            out: BufReader::new(out),
            read: String::new(),
            err: Some(err),
            _watchdog: watchdog,
        }
    }

    /// Reads its output up to the first line that contains this.
    pub fn wait_for(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert_ne!(
                self.out.read_line(&mut line).unwrap(),
                0,
                "it ended before `{text}`"
            );
            self.read.push_str(&line);
        }
    }

    pub fn signal(&self, name: &str) {
        common::signal(self.child.id(), name);
    }

    /// How it ended, and all it wrote.
    pub fn finish(mut self) -> Finished {
        let mut stdout = std::mem::take(&mut self.read);
        self.out.read_to_string(&mut stdout).unwrap();
        let stderr = self.err.take().unwrap().join().unwrap();
        let code = self.child.wait().unwrap().code();
        Finished {
            code,
            stdout,
            stderr,
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

/// Starts `count` workers with these arguments and variables.
pub fn start(
    folder: &Path,
    count: usize,
    arguments: &str,
    variables: &[(&str, &str)],
) -> Vec<Member> {
    let cluster = cluster(count);
    (0..count)
        .map(|index| {
            let config = tf_config(&cluster, "worker", index);
            let mut all = variables.to_vec();
            all.push(("TF_CONFIG", &config));
            Member::start(folder, arguments, &all)
        })
        .collect()
}

pub fn finish(members: Vec<Member>) -> Vec<Finished> {
    members.into_iter().map(Member::finish).collect()
}

/// A job that must succeed: what its chief wrote, and the hash that all workers agree on.
pub fn succeed(folder: &Path, count: usize, arguments: &str) -> (String, String) {
    let ended = finish(start(folder, count, arguments, &[]));
    for worker in &ended {
        assert_eq!(worker.code, Some(0), "{arguments}: {}", worker.stderr);
    }
    let chief = ended[0].stdout.clone();
    let hash = hash(&chief);
    for worker in &ended[1..] {
        assert_eq!(worker.stdout, "", "only the chief writes");
        assert!(
            worker.stderr.contains(&hash),
            "{} is not {hash}",
            worker.stderr
        );
    }
    (chief, hash)
}

/// The hash of the weights in the last line.
pub fn hash(stdout: &str) -> String {
    let done = common::last_event(stdout);
    done["weights_sha256"].as_str().unwrap().to_string()
}

/// The lines about epochs, without what depends on time.
pub fn epochs(stdout: &str) -> Vec<String> {
    let lines = stdout
        .lines()
        .filter(|line| line.contains(r#""event":"epoch""#));
    lines
        .map(|line| {
            line.split(r#","examples_per_second""#)
                .next()
                .unwrap()
                .to_string()
        })
        .collect()
}
