//! Jobs with parameter servers: their chief decides when they end, and workers may die.

use std::net::TcpListener;
use std::path::Path;

use distribute_launch::{Ending, Hosts, Job, Outcome, Role};
use serde_json::Value;

use crate::common::{Seen, read, script_in, security, see};

/// What every script here begins with: `n` counts the process's own incarnations.
const BEGIN: &str = r#"
    n=$(cat "$r$i.count" 2>/dev/null || echo 0); echo $((n + 1)) > "$r$i.count"
    "#;

/// Two workers and a server that do what `cases` of `case $r$i in` say.
fn job(directory: &Path, cases: &str) -> Job {
    let text = format!("{BEGIN} case $r$i in {cases} esac");
    let job = script_in(directory, &text).workers(2).parameter_servers(1);
    job.log_directory(directory.join("logs"))
}

#[track_caller]
fn assert_said(seen: &Seen, line: &str) {
    let is_it = |one: &str| one == format!("distribute: {line}");
    assert!(seen.stderr.lines().any(is_it), "{}", seen.stderr);
}

#[test]
fn a_worker_that_dies_is_started_again_alone_with_the_same_address() {
    let directory = tempfile::tempdir().unwrap();
    let cases = r#"
        chief0) echo $TF_CONFIG; await worker1.up worker0.up ps0.up ;;
        worker1) echo $TF_CONFIG $DISTRIBUTE_RESTART $DISTRIBUTE_JOB_TOKEN
            if [ $n = 0 ]; then kill -9 $$; fi
            > worker1.up; exec sleep 100 ;;
        *) > $r$i.up; exec sleep 100 ;;"#;
    let seen = see(job(directory.path(), cases).max_restarts(2));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
    assert_said(
        &seen,
        "rank 1: killed by SIGKILL (signal 9); starting it again alone, restart 1 of 2",
    );
    let log = |name: &str| read(directory.path().join("logs").join(name));
    assert_eq!(log("worker-1.log"), log("worker-1-again-1.log"));
    let config: Value = serde_json::from_slice(&seen.stdout).unwrap();
    let jobs: Vec<&String> = config["cluster"].as_object().unwrap().keys().collect();
    assert_eq!(jobs, ["chief", "ps", "worker"]);
    for name in ["chief0", "worker0", "ps0"] {
        assert_eq!(read(directory.path().join(format!("{name}.count"))), "1\n");
    }
}

#[test]
fn a_worker_that_is_killed_ten_times_comes_back_each_time() {
    let directory = tempfile::tempdir().unwrap();
    let cases = "
        chief0) await worker0.up ;;
        worker0) if [ $n -lt 10 ]; then kill -9 $$; fi; > worker0.up; exec sleep 100 ;;
        *) exec sleep 100 ;;";
    let seen = see(job(directory.path(), cases).max_restarts(10));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
    assert_eq!(read(directory.path().join("worker0.count")), "11\n");
    assert_eq!(seen.stderr.matches("starting it again alone").count(), 10);
}

#[test]
fn without_restarts_the_job_goes_on_with_the_workers_that_are_left() {
    let directory = tempfile::tempdir().unwrap();
    let cases = "
        chief0) await over; echo done ;;
        worker1) echo 3; exit 3 ;;
        worker0) while ! grep -q 3 logs/worker-1.log; do sleep 0.02; done; sleep 0.3; > over
            exec sleep 100 ;;
        *) exec sleep 100 ;;";
    let seen = see(job(directory.path(), cases));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
    assert_eq!(seen.stdout, b"done\n");
    assert_said(&seen, "rank 1: exit code 3; the job goes on without it");
}

#[test]
fn a_worker_with_wrong_usage_is_not_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let cases = "*) case $r in worker) exit 2 ;; *) exec sleep 100 ;; esac ;;";
    let seen = see(job(directory.path(), cases).max_restarts(3));
    assert_eq!(seen.outcome().exit_code(), 2, "{}", seen.stderr);
    for worker in ["worker0", "worker1"] {
        assert_eq!(
            read(directory.path().join(format!("{worker}.count"))),
            "1\n"
        );
    }
}

#[test]
fn a_job_whose_workers_are_all_gone_has_failed() {
    let directory = tempfile::tempdir().unwrap();
    let cases = "*) case $r in worker) echo why >&2; exit 3 ;; *) exec sleep 100 ;; esac ;;";
    let seen = see(job(directory.path(), cases).max_restarts(1));
    let Outcome::Failed { cause, restarts: 1 } = seen.outcome() else {
        panic!("{:?}", seen.result);
    };
    assert_eq!(cause.task.role, Role::Worker);
    assert_eq!(cause.ending, Ending::Exit(3));
    assert_eq!(cause.last_lines, ["why"]);
    // Twice in each of two attempts.
    assert_eq!(read(directory.path().join("worker0.count")), "4\n");
}

#[test]
fn the_exit_code_is_that_of_the_chief() {
    let directory = tempfile::tempdir().unwrap();
    let cases = "
        chief0) await ps0.up; exit 7 ;;
        ps0) trap 'exit 5' TERM; > ps0.up; sleep 100 & wait ;;
        *) exec sleep 100 ;;";
    let seen = see(job(directory.path(), cases));
    assert_eq!(seen.outcome().exit_code(), 7, "{}", seen.stderr);
    let block = "the job failed because of chief: exit code 7";
    assert!(seen.stderr.contains(block), "{}", seen.stderr);
}

#[test]
fn workers_that_fail_because_the_chief_is_done_are_not_started_again() {
    let directory = tempfile::tempdir().unwrap();
    // The workers end when the fifo's only writer, the chief, does.
    let fifo = directory.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let cases = "
        chief0) exec 3>fifo; await worker0.up worker1.up; exit 0 ;;
        worker*) exec 4<fifo; > $r$i.up; cat <&4; exit 1 ;;
        *) exec sleep 100 ;;";
    for _try in 0..5 {
        let seen = see(job(directory.path(), cases).max_restarts(3));
        assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
        assert!(!seen.stderr.contains("again"), "{}", seen.stderr);
    }
}

#[test]
fn a_server_that_dies_starts_all_of_them_again() {
    let directory = tempfile::tempdir().unwrap();
    // In each incarnation the others have counted themselves before the server dies or is up.
    let cases = "
        ps0) await chief0.up$n worker0.up$n worker1.up$n
             if [ $n = 0 ]; then kill -9 $$; fi; > ps.up; exec sleep 100 ;;
        chief0) > chief0.up$n; await ps.up ;;
        *) > $r$i.up$n; exec sleep 100 ;;";
    let seen = see(job(directory.path(), cases).max_restarts(1));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 1 });
    assert_said(
        &seen,
        "ps 0: killed by SIGKILL (signal 9); stopping the others",
    );
    for name in ["chief0", "worker0", "worker1", "ps0"] {
        assert_eq!(read(directory.path().join(format!("{name}.count"))), "2\n");
    }
}

#[test]
fn a_chief_that_saved_and_stopped_is_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let cases = "
        chief0) if [ $DISTRIBUTE_RESTART = 0 ]; then exit 42; fi ;;
        *) exec sleep 100 ;;";
    let seen = see(job(directory.path(), cases).max_restarts(1));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 1 });
    assert!(!seen.stderr.contains("failed"), "{}", seen.stderr);
}

/// Runs these jobs, one per host, at once.
fn on_hosts(jobs: [Job; 2]) -> Vec<Seen> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let jobs = jobs.into_iter().enumerate().map(|(index, job)| {
        let hosts = Hosts::new(address, 2, index, security());
        std::thread::spawn(move || see(job.hosts(hosts)))
    });
    let jobs: Vec<_> = jobs.collect();
    jobs.into_iter().map(|job| job.join().unwrap()).collect()
}

#[test]
fn on_several_hosts_the_chief_is_on_the_first_and_workers_come_back_where_they_were() {
    let directory = tempfile::tempdir().unwrap();
    let cases = "
        chief0) await worker1.up; echo done ;;
        worker1) if [ $n = 0 ]; then kill -9 $$; fi; > worker1.up; exec sleep 100 ;;
        *) exec sleep 100 ;;";
    let part = |host: &str, servers| {
        let job = job(directory.path(), cases).workers(1).max_restarts(1);
        let logs = directory.path().join(host);
        job.parameter_servers(servers).log_directory(logs)
    };
    let seen = on_hosts([part("first", 0), part("second", 2)]);
    for one in &seen {
        assert_eq!(*one.outcome(), Outcome::Succeeded { restarts: 0 });
    }
    assert_eq!(seen[0].stdout, b"done\n");
    assert!(seen[1].stdout.is_empty());
    assert_said(
        &seen[1],
        "rank 1: killed by SIGKILL (signal 9); starting it again alone, restart 1 of 1",
    );
    assert!(
        directory
            .path()
            .join("second/worker-1-again-1.log")
            .exists()
    );
}

/// A host whose launcher is gone, with nothing but a worker: the work of that goes on elsewhere.
#[test]
fn a_host_that_only_had_a_worker_costs_nothing_else_when_it_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let cases = "
        chief0) while ! [ -e lost ]; do sleep 0.02; done; echo done ;;
        *) exec sleep 100 ;;";
    let first = job(directory.path(), cases).workers(1);
    let first = first.log_directory(directory.path().join("first"));
    // Its launcher gives up before it has started anything.
    let second = Job::new(["no-such-command-anywhere"]).workers(1);
    let (address, _ports) = crate::hosts::meeting_point();
    let hosts = |index| Hosts::new(address, 2, index, security());
    let first = first.hosts(hosts(0));
    let whole = std::thread::spawn(move || see(first));
    let lost = see(second.hosts(hosts(1)));
    std::fs::write(directory.path().join("lost"), "").unwrap();
    assert!(lost.result.is_err());
    let seen = whole.join().unwrap();
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
    assert_eq!(seen.stdout, b"done\n");
    assert!(
        seen.stderr.contains("the launcher of host 1 is gone"),
        "{}",
        seen.stderr
    );
}

#[test]
fn workers_that_are_all_gone_on_several_hosts_are_one_failure() {
    let directory = tempfile::tempdir().unwrap();
    let cases = "*) case $r in worker) exit 3 ;; *) exec sleep 100 ;; esac ;;";
    let part = |host: &str, servers| {
        let job = job(directory.path(), cases).workers(2);
        let logs = directory.path().join(host);
        job.parameter_servers(servers).log_directory(logs)
    };
    let seen = on_hosts([part("first", 1), part("second", 0)]);
    assert_eq!(seen[0].outcome(), seen[1].outcome());
    assert_eq!(seen[0].outcome().exit_code(), 3, "{}", seen[0].stderr);
}
