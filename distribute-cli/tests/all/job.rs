//! A job of several processes on addresses of its own.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{self, Finished, Process};

/// The folder and the arguments of a test's runs.
pub const MULTI: &str = "train --strategy multi-worker --model mlp --output json";

/// Loopback addresses for one test only: the network 127 has room for every test.
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
pub struct Member;

impl Member {
    /// Starts it with these arguments, separated by blanks, and variables.
    pub fn start(folder: &Path, arguments: &str, variables: &[(&str, &str)]) -> Process {
        let mut command = common::plain(folder);
        Process::start(command.args(arguments.split_whitespace()), variables)
    }
}

/// Starts `count` workers with these arguments and variables.
pub fn start(
    folder: &Path,
    count: usize,
    arguments: &str,
    variables: &[(&str, &str)],
) -> Vec<Process> {
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

pub fn finish(members: Vec<Process>) -> Vec<Finished> {
    members.into_iter().map(Process::finish).collect()
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
