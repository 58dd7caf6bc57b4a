//! A cluster that is too large for an environment variable reaches real processes in a file.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use distribute_net::security::{Security, Token};
use serde_json::{Value, json};

use super::{part, run, terms};
use crate::events;
use crate::hosts::group::{HostSetup, LauncherGroup};
use crate::hosts::wait::WaitOutcome;
use crate::job::Job;
use crate::job::cluster::Cluster;
use crate::job::hosts::Hosts;
use crate::posts::{Instruction, PostBody};
use crate::report::attempt::AttemptResult;
use crate::report::console::{Console, Screen};
use crate::report::outcome::Outcome;
use crate::report::verdict::Verdict;
use crate::thread_scope::ThreadScope;

/// How many workers the second host has, and how long its name is: 400 KB.
const WORKERS: usize = 3000;
const NAME_BYTES: usize = 120;

/// Keeps what the process was told.
const KEEP: &str = r#"
    i=${TF_CONFIG##*index\":}; i=${i%%\}*}
    stat -c %a "$DISTRIBUTE_CLUSTER_FILE" > mode-$i
    stat -c %a "$(dirname "$DISTRIBUTE_CLUSTER_FILE")" >> mode-$i
    echo "$DISTRIBUTE_CLUSTER_FILE" > path-$i
    cp "$DISTRIBUTE_CLUSTER_FILE" file-$i
    printf %s "$TF_CONFIG" > config-$i"#;

fn two_hosts() -> [Hosts; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let token = Token::new("a secret of more than 16 bytes").unwrap();
    let security = Security::default().token(token);
    [0, 1].map(|index| Hosts::new(address, 2, index, security.clone()))
}

/// Takes part as the launcher of a host with many workers, and starts none of them.
fn play(hosts: &Hosts) {
    let job = Job::new(["true"]).workers(WORKERS).hosts(hosts.clone());
    let host = "h".repeat(NAME_BYTES);
    let workers: Vec<String> = (0..WORKERS)
        .map(|index| format!("{host}:{}", 20_000 + index))
        .collect();
    let cluster: Cluster = serde_json::from_value(json!({ "worker": workers })).unwrap();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (events, received) = events::channel(1);
    let played = Screen::run(&mut Console::new(&mut stdout, &mut stderr), |screen| {
        ThreadScope::run(|threads| {
            let setup = HostSetup {
                terms: terms(&job, hosts),
                part: part(&job),
                membership: None,
                return_time: None,
            };
            let joined = LauncherGroup::join(threads, hosts, setup, &events, &received, screen)?;
            let mut group = done(joined);
            let Instruction::Start(plan) = done(group.next(None, &received, screen)?) else {
                panic!("the job has not begun");
            };
            done(group.wait_for_hosts(&plan, cluster, &received, screen)?);
            group.post(PostBody::WorkersDone);
            let ended = AttemptResult::new(Verdict::Succeeded, Vec::new());
            group.gather(ended, Duration::ZERO, &received, screen)?;
            let outcome = Outcome::Succeeded { restarts: 0 };
            done(group.next(Some(&outcome), &received, screen)?);
            group.leave();
            drop(received);
            Ok(())
        })
    });
    played.unwrap();
}

fn done<T>(outcome: WaitOutcome<T>) -> T {
    match outcome {
        WaitOutcome::Done(value) => value,
        WaitOutcome::Stopped(_) | WaitOutcome::HostLost => panic!("the job was stopped"),
    }
}

#[test]
fn a_large_cluster_reaches_the_processes_in_a_file_that_is_gone_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = two_hosts();
    let script = format!("cd '{}'; {KEEP}", folder.path().display());
    let job = Job::new(["sh", "-c", &script])
        .workers(2)
        .handle_signals(false)
        .log_directory(folder.path().join("logs"))
        .hosts(first);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| play(&second));
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let outcome = run(&job, &mut Console::new(&mut stdout, &mut stderr));
        assert_eq!(String::from_utf8_lossy(&stdout), "");
        outcome.map_err(|error| format!("{error}\n{}", String::from_utf8_lossy(&stderr)))
    });
    assert_eq!(outcome, Ok(Outcome::Succeeded { restarts: 0 }));
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    for index in 0..2 {
        assert_eq!(read(&format!("mode-{index}")), "600\n700\n");
        let config: Value = serde_json::from_str(&read(&format!("config-{index}"))).unwrap();
        assert_eq!(config["task"], json!({"type": "worker", "index": index}));
        let remark = config["cluster"].as_str().unwrap();
        assert!(remark.contains("DISTRIBUTE_CLUSTER_FILE"), "{remark}");
        let text = read(&format!("file-{index}"));
        assert!(text.len() > 2 * (128 << 10), "{}", text.len());
        let file: Value = serde_json::from_str(&text).unwrap();
        let workers = file["cluster"]["worker"].as_array().unwrap();
        assert_eq!(workers.len(), WORKERS + 2);
        let path = read(&format!("path-{index}"));
        let path = Path::new(path.trim());
        assert!(path.is_absolute() && !path.exists(), "it is left");
        assert!(!path.parent().unwrap().exists(), "its folder is left");
    }
}
