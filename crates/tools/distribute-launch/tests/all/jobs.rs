//! Jobs of shell scripts from start to end.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use distribute_launch::{
    Console, DIVERGED_EXIT_CODE, Ending, Job, LaunchError, Outcome, Role, run,
};
use serde_json::Value;

use crate::common::{read, script, script_in, see, within_limit};

#[test]
fn worker_0_passes_through_byte_for_byte_and_logs_hold_everything() {
    let logs = tempfile::tempdir().unwrap();
    let text = r"
        if [ $i = 0 ]; then printf 'a\000\377\nno end'; printf 'err' >&2; exit; fi
        echo out $i; echo err $i >&2; printf unfinished";
    let seen = see(script(text).workers(3).log_directory(&logs));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
    assert_eq!(seen.stdout, b"a\0\xff\nno end");
    assert_eq!(seen.stderr, "err");
    let first = std::fs::read(logs.path().join("worker-0.log")).unwrap();
    assert_eq!(first, b"a\0\xff\nno end\nerr");
    for index in 1..3 {
        let log = read(logs.path().join(format!("worker-{index}.log")));
        let mut lines: Vec<&str> = log.lines().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                format!("err {index}"),
                format!("out {index}"),
                "unfinished".into()
            ]
        );
    }
}

#[test]
fn every_process_gets_its_own_task_of_the_same_cluster() {
    let logs = tempfile::tempdir().unwrap();
    // The workers wait for the others, which they would end otherwise.
    let text = r#"echo $TF_CONFIG; echo $DISTRIBUTE_JOB_TOKEN; echo $DISTRIBUTE_RESTART
        > "LOGS/$r$i.done"
        while [ "$(ls "LOGS" | grep -c done)" -lt 6 ]; do sleep 0.05; done"#;
    let job = script(&text.replace("LOGS", logs.path().to_str().unwrap()))
        .workers(2)
        .parameter_servers(2)
        .evaluator(true)
        .log_directory(&logs);
    assert_eq!(*see(job).outcome(), Outcome::Succeeded { restarts: 0 });
    let (mut clusters, mut tokens, mut addresses) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let names = [
        "chief-0",
        "worker-0",
        "worker-1",
        "ps-0",
        "ps-1",
        "evaluator-0",
    ];
    for name in names {
        let log = read(logs.path().join(format!("{name}.log")));
        let lines: Vec<&str> = log.lines().collect();
        let config: Value = serde_json::from_str(lines[0]).unwrap();
        let task = &config["task"];
        assert_eq!(
            format!("{}-{}", task["type"].as_str().unwrap(), task["index"]),
            name
        );
        clusters.push(config["cluster"].clone());
        tokens.insert(lines[1].to_owned());
        assert_eq!(lines[2], "0");
    }
    assert!(clusters.iter().all(|cluster| *cluster == clusters[0]));
    for addresses_of_job in clusters[0].as_object().unwrap().values() {
        addresses.extend(
            addresses_of_job
                .as_array()
                .unwrap()
                .iter()
                .map(Value::to_string),
        );
    }
    assert_eq!(addresses.len(), names.len());
    let token = tokens.first().unwrap();
    assert!(tokens.len() == 1 && token.len() == 64, "{tokens:?}");
}

/// The text without what differs from run to run.
fn filtered(text: &str, logs: &std::path::Path, pid: u32) -> String {
    let host = gethostname::gethostname();
    text.replace(&logs.display().to_string(), "LOGS")
        .replace(&format!("host {}", host.display()), "host HOST")
        .replace(&format!("pid {pid}"), "pid PID")
}

#[test]
fn the_root_cause_is_reported_with_its_last_lines() {
    let logs = tempfile::tempdir().unwrap();
    let text = r#"
        case $r$i in
        worker1) for n in $(seq 25); do echo "line $n" >&2; done; await up; kill -9 $$ ;;
        worker2) trap 'echo bye; exit 3' TERM; > up; sleep 100 & wait ;;
        *) exec sleep 100 ;;
        esac"#;
    let job = script_in(logs.path(), text).workers(3).evaluator(true);
    let seen = see(job.log_directory(&logs));
    let Outcome::Failed { cause, restarts: 0 } = seen.outcome() else {
        panic!("{:?}", seen.result);
    };
    assert_eq!((cause.task.role, cause.task.index), (Role::Worker, 1));
    assert_eq!(cause.ending, Ending::Signal(9));
    assert_eq!(cause.last_lines.len(), 20);
    assert_eq!(seen.outcome().exit_code(), 128 + 9);
    insta::assert_snapshot!(filtered(&seen.stderr, logs.path(), cause.pid));
}

#[test]
fn the_exit_code_is_that_of_the_root_cause() {
    let directory = tempfile::tempdir().unwrap();
    let text = "if [ $i = 1 ]; then await up0 up2; exit 7; fi
        trap 'exit 9' TERM; > up$i; sleep 100 & wait";
    let seen = see(script_in(directory.path(), text).workers(3));
    assert_eq!(seen.outcome().exit_code(), 7, "{}", seen.stderr);
    assert!(
        seen.stderr.contains("because of rank 1: exit code 7"),
        "{}",
        seen.stderr
    );
    assert!(seen.stderr.contains("it wrote nothing"), "{}", seen.stderr);
}

#[test]
fn a_process_killed_by_a_signal_goes_before_peers_that_fail_because_of_it() {
    // The peers exit when the fifo's only writer dies.
    let text = r#"
        if [ $i = 1 ]; then exec 3>"$0"; kill -9 $$; fi
        cat "$0"; exit 1"#;
    for _try in 0..5 {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let made = std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap();
        assert!(made.success());
        let job = script(&text.replace("$0", fifo.to_str().unwrap())).workers(3);
        let seen = see(job.log_directory(directory.path()));
        let Outcome::Failed { cause, .. } = seen.outcome() else {
            panic!("{:?}", seen.result);
        };
        assert_eq!(cause.task.index, 1, "{}", seen.stderr);
    }
}

#[test]
fn a_crash_loop_is_restarted_exactly_as_often_as_allowed() {
    let logs = tempfile::tempdir().unwrap();
    let text = "echo $DISTRIBUTE_RESTART $DISTRIBUTE_JOB_TOKEN
        if [ $i = 1 ]; then await up$DISTRIBUTE_RESTART; exit 3; fi
        > up$DISTRIBUTE_RESTART; exec sleep 100";
    let job = script_in(logs.path(), text).workers(2).max_restarts(3);
    let seen = see(job.log_directory(&logs));
    assert!(
        matches!(seen.outcome(), Outcome::Failed { restarts: 3, .. }),
        "{:?}",
        seen.result
    );
    let lines = String::from_utf8(seen.stdout).unwrap();
    let words: Vec<&str> = lines.split_whitespace().collect();
    assert_eq!(
        words.iter().step_by(2).collect::<Vec<_>>(),
        [&"0", &"1", &"2", &"3"]
    );
    let tokens: BTreeSet<_> = words.iter().skip(1).step_by(2).collect();
    assert_eq!(tokens.len(), 4);
    assert!(tokens.iter().all(|token| !seen.stderr.contains(**token)));
    for restart in 1..=3 {
        let note = format!("starting all of them again, restart {restart} of 3\n");
        assert!(seen.stderr.contains(&note), "{}", seen.stderr);
        let log = read(logs.path().join(format!("restart-{restart}/worker-1.log")));
        assert!(log.starts_with(&format!("{restart} ")), "{log}");
    }
    assert_eq!(
        seen.stderr
            .matches("the job failed because of rank 1")
            .count(),
        4
    );
    assert!(!logs.path().join("restart-4").exists());
}

#[test]
fn before_each_restart_is_a_pause_that_grows() {
    let pause = Duration::from_millis(200);
    let begun = Instant::now();
    let seen = see(script("exit 1").max_restarts(2).restart_pause(pause));
    assert!(begun.elapsed() >= pause * 3, "{:?}", begun.elapsed());
    for said in ["restart 1 of 2, in 0.2 s", "restart 2 of 2, in 0.4 s"] {
        assert!(seen.stderr.contains(said), "{}", seen.stderr);
    }
}

#[test]
fn a_job_that_succeeds_after_a_restart_succeeds() {
    let text = "if [ $i$DISTRIBUTE_RESTART = 10 ]; then kill -SEGV $$; fi";
    let seen = see(script(text).workers(2).max_restarts(5));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 1 });
    assert!(
        seen.stderr.contains("SIGSEGV (signal 11)"),
        "{}",
        seen.stderr
    );
}

#[test]
fn wrong_usage_is_not_tried_again() {
    let seen = see(script("echo run; exit 2").max_restarts(3));
    assert_eq!(seen.outcome().exit_code(), 2);
    assert_eq!(seen.stdout, b"run\n");
}

#[test]
fn a_training_that_has_diverged_is_not_tried_again() {
    let code = DIVERGED_EXIT_CODE;
    let text = format!("echo run; [ $i = 0 ] && exit {code}; exec sleep 100");
    let seen = see(script(&text).workers(2).max_restarts(3));
    assert_eq!(seen.outcome().exit_code(), code);
    assert_eq!(seen.stdout, b"run\n");
    let said = "exit code 43; another start would end in the same way";
    assert!(seen.stderr.contains(said), "{}", seen.stderr);
}

#[test]
fn exit_code_42_starts_the_job_again() {
    let text = "echo run; if [ $DISTRIBUTE_RESTART = 0 ]; then exit 42; fi";
    let seen = see(script(text).workers(2).max_restarts(1));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 1 });
    assert_eq!(seen.stdout, b"run\nrun\n");
    assert!(!seen.stderr.contains("failed"), "{}", seen.stderr);
}

#[test]
fn exit_code_42_counts_as_a_restart() {
    let seen = see(script("if [ $i = 1 ]; then exit 42; fi")
        .workers(2)
        .max_restarts(2));
    assert_eq!(*seen.outcome(), Outcome::Preempted { restarts: 2 });
    assert_eq!(seen.outcome().exit_code(), 42);
}

#[test]
fn workers_that_do_not_follow_a_preemption_are_stopped() {
    let text = "if [ $i = 1 ]; then exit 42; fi; exec sleep 100";
    let job = script(text)
        .workers(2)
        .grace_period(Duration::from_millis(100));
    assert_eq!(*see(job).outcome(), Outcome::Preempted { restarts: 0 });
}

#[test]
fn workers_servers_and_the_evaluator_end_with_the_chief() {
    let logs = tempfile::tempdir().unwrap();
    let text = "
        case $r in
        chief) await worker0 worker1 ps0 ps1; echo done ;;
        worker) trap 'echo stopped; exit 7' TERM; > $r$i; sleep 100 & wait ;;
        ps) trap 'echo stopped; exit 5' TERM; > $r$i; sleep 100 & wait ;;
        evaluator) sleep 0.3; echo evaluated ;;
        esac";
    let job = script_in(logs.path(), text).workers(2);
    let job = job.parameter_servers(2).evaluator(true);
    let seen = see(job.log_directory(&logs));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
    assert_eq!(seen.stdout, b"done\n");
    assert_eq!(read(logs.path().join("evaluator-0.log")), "evaluated\n");
    for name in ["worker-0", "worker-1", "ps-0", "ps-1"] {
        assert_eq!(read(logs.path().join(format!("{name}.log"))), "stopped\n");
    }
}

#[test]
fn an_evaluator_that_does_not_end_is_stopped_after_the_grace_period() {
    let text = "if [ $r = evaluator ]; then exec sleep 100; fi";
    let job = script(text)
        .evaluator(true)
        .grace_period(Duration::from_millis(200));
    let start = Instant::now();
    assert_eq!(*see(job).outcome(), Outcome::Succeeded { restarts: 0 });
    assert!(start.elapsed() >= Duration::from_millis(200));
}

#[test]
fn an_evaluator_that_fails_is_a_root_cause() {
    let text = "if [ $r = evaluator ]; then exit 4; fi; exec sleep 100";
    let seen = see(script(text).evaluator(true));
    assert_eq!(seen.outcome().exit_code(), 4);
    assert!(
        seen.stderr.contains("because of evaluator: exit code 4"),
        "{}",
        seen.stderr
    );
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let directory = tempfile::tempdir().unwrap();
    let text = "if [ $i = 1 ]; then await up; exit 1; fi
        trap '' TERM; > up; while true; do sleep 1; done";
    let job = script_in(directory.path(), text)
        .workers(2)
        .grace_period(Duration::from_millis(300));
    let start = Instant::now();
    let seen = see(job);
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
    let line = "rank 0: killed by SIGKILL (signal 9) after the launcher had stopped it";
    assert!(seen.stderr.contains(line), "{}", seen.stderr);
}

#[test]
fn equal_lines_of_other_ranks_are_shown_once() {
    let directory = tempfile::tempdir().unwrap();
    // All say hello at once, and none ends before all have.
    let text = "
        all() { for t in chief0 worker0 worker1 worker2 worker3 ps0 ps1 evaluator0; do
            await $t$1; done; }
        > $r$i.up; all .up; echo hello
        if [ $r$i = worker2 ]; then echo 'only here' >&2; fi
        > $r$i.done; all .done";
    let job = script_in(directory.path(), text)
        .workers(4)
        .parameter_servers(2)
        .evaluator(true)
        .prefix_output(true);
    let seen = see(job);
    assert_eq!(seen.stdout, b"hello\n");
    let shown = seen
        .stderr
        .lines()
        .filter(|line| !line.starts_with("distribute: "));
    let shown: BTreeSet<&str> = shown.collect();
    let expected = [
        "evaluator: hello",
        "ps 0-1: hello",
        "rank 2: only here",
        "ranks 0-3: hello",
    ];
    assert_eq!(shown, BTreeSet::from(expected));
}

#[test]
fn lines_without_end_are_shown_in_pieces_and_logged_whole() {
    const BYTES: usize = 10_000_000;
    let logs = tempfile::tempdir().unwrap();
    let text = format!("if [ $i = 1 ]; then head -c {BYTES} /dev/zero; echo; echo end; fi");
    let job = script(&text).workers(2).prefix_output(true);
    let seen = see(job.log_directory(&logs));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
    let log = std::fs::read(logs.path().join("worker-1.log")).unwrap();
    assert_eq!(log.len(), BYTES + "\nend\n".len());
    assert!(seen.stderr.ends_with("rank 1: end\n"));
    assert!(
        seen.stderr
            .lines()
            .all(|line| line.len() <= 65536 + "rank 1: ".len())
    );
    assert_eq!(seen.stderr.bytes().filter(|byte| *byte == 0).count(), BYTES);
}

#[test]
fn what_a_command_leaves_in_the_background_ends_with_the_job() {
    let pids = tempfile::tempdir().unwrap();
    let file = pids.path().join("pids");
    let text = format!(
        "sleep 1000 & echo $! >> {0}; setsid sleep 1000 & echo $! >> {0}; env -i sleep 1000 &
         echo $! >> {0}",
        file.display()
    );
    let job = script(&text).grace_period(Duration::from_millis(500));
    assert_eq!(*see(job).outcome(), Outcome::Succeeded { restarts: 0 });
    let pids = read(file);
    assert_eq!(pids.lines().count(), 3);
    for pid in pids.lines() {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
}

#[test]
fn a_process_that_cannot_be_found_does_not_hold_up_the_end() {
    // It holds both output streams open, has left the group and has no environment.
    let start = Instant::now();
    let seen = see(script("echo done; setsid env -i sleep 6 &"));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
    assert_eq!(seen.stdout, b"done\n");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_job_that_cannot_start_says_what_to_do() {
    let error = |job: Job| see(job).result.expect_err("it cannot start");
    let message = |job: Job| error(job).to_string();
    assert!(matches!(
        error(Job::new(["true"]).workers(0)),
        LaunchError::NoWorkers
    ));
    assert!(matches!(error(Job::new([""; 0])), LaunchError::NoCommand));
    assert!(matches!(error(Job::new([""])), LaunchError::NoCommand));
    let missing = || Job::new(["no-such-command-anywhere"]).max_restarts(3);
    assert!(matches!(
        error(missing()),
        LaunchError::CommandNotFound { .. }
    ));
    insta::assert_snapshot!(message(missing()));

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "no program").unwrap();
    let plain = error(Job::new([&file]));
    assert!(
        matches!(plain, LaunchError::NotExecutable { .. }),
        "{plain}"
    );
    let garbage = error(Job::new(["with a \0"]));
    assert!(matches!(garbage, LaunchError::Spawn { .. }), "{garbage}");
    let logs = error(Job::new(["true"]).log_directory(file.join("logs")));
    assert!(matches!(logs, LaunchError::LogDirectory { .. }), "{logs}");
    let guard = error(Job::new(["true"]).guard(["true"]));
    assert!(matches!(guard, LaunchError::Guard { .. }), "{guard}");
}

#[test]
fn the_temporary_log_directory_stays_only_after_a_failure() {
    let directory = |stderr: &str| {
        let line = stderr.lines().next().unwrap();
        line.strip_prefix("distribute: log files are in ")
            .unwrap()
            .to_owned()
    };
    let success = see(script("true"));
    assert!(!std::path::Path::new(&directory(&success.stderr)).exists());
    let failure = see(script("echo why >&2; exit 1"));
    let path = directory(&failure.stderr);
    assert_eq!(read(format!("{path}/worker-0.log")), "why\n");
    let missing = see(Job::new(["no-such-command-anywhere"]));
    assert!(!std::path::Path::new(&directory(&missing.stderr)).exists());
}

/// Takes a few bytes and then no more, as a pipe whose reader has ended.
struct Closing(usize);

impl Write for Closing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_job_ends_when_its_output_is_not_read() {
    let result = within_limit(|| {
        let logs = tempfile::tempdir().unwrap();
        let job = script("while true; do echo y; done")
            .workers(2)
            .log_directory(&logs);
        run(&job, &mut Console::new(&mut Closing(1), &mut Vec::new()))
    });
    assert!(
        matches!(result, Err(LaunchError::Console { .. })),
        "{result:?}"
    );
}

/// `/dev/full` has no room for what is written to it.
#[test]
fn a_log_that_cannot_be_written_is_told_once_and_costs_nothing() {
    if !std::path::Path::new("/dev/full").exists() {
        println!("SKIPPED: no /dev/full to write to");
        return;
    }
    let logs = tempfile::tempdir().unwrap();
    for index in 0..2 {
        let log = logs.path().join(format!("worker-{index}.log"));
        std::os::unix::fs::symlink("/dev/full", log).unwrap();
    }
    let text = "for n in 1 2 3; do echo line $n of $i; done";
    let job = script(text).workers(3).prefix_output(true);
    let seen = see(job.log_directory(&logs));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 0 });
    assert_eq!(seen.stdout, b"line 1 of 0\nline 2 of 0\nline 3 of 0\n");
    assert!(
        seen.stderr.contains("rank 1: line 3 of 1"),
        "{}",
        seen.stderr
    );
    let warnings = seen
        .stderr
        .matches("warning: cannot write the log of rank ");
    assert_eq!(warnings.count(), 1, "{}", seen.stderr);
    assert_eq!(
        read(logs.path().join("worker-2.log")),
        "line 1 of 2\nline 2 of 2\nline 3 of 2\n"
    );
}

/// Makes a file that hangs when it is opened, as one on a file system that does not answer.
fn hanging(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

#[test]
fn a_log_that_cannot_be_opened_in_time_is_told_once_and_costs_nothing() {
    let logs = tempfile::tempdir().unwrap();
    for log in ["worker-0.log", "worker-1.log", "restart-1/worker-0.log"] {
        hanging(&logs.path().join(log));
    }
    let text = "echo line of $i; [ $DISTRIBUTE_RESTART = 1 ] || exit 1";
    let job = script(text).workers(3).prefix_output(true).max_restarts(1);
    let seen = see(job.log_directory(&logs));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 1 });
    let warnings = seen
        .stderr
        .matches("warning: cannot write the log of rank 0: the file system does not answer (2 s)");
    assert_eq!(warnings.count(), 1, "{}", seen.stderr);
    assert!(seen.stderr.contains("rank 2: line of 2"), "{}", seen.stderr);
}

#[test]
fn an_unreadable_file_of_a_process_delays_no_end() {
    let text = "mkfifo $DISTRIBUTE_FAILURE_REPORT; exit 1";
    let seen = see(script(text).workers(2).max_restarts(1));
    assert_eq!(seen.outcome().exit_code(), 1, "{}", seen.stderr);
}

#[test]
fn a_log_directory_that_is_gone_takes_no_restart_away() {
    let directory = tempfile::tempdir().unwrap();
    let logs = directory.path().join("logs");
    let text = "[ $DISTRIBUTE_RESTART = 0 ] || exit 0; rm -r logs; > logs; exit 1";
    let job = script_in(directory.path(), text).max_restarts(1);
    let seen = see(job.log_directory(&logs));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 1 });
    let warnings = seen
        .stderr
        .matches("warning: cannot write the log of rank 0");
    assert_eq!(warnings.count(), 1, "{}", seen.stderr);
}

#[test]
fn the_headline_names_the_rank_that_the_survivors_name() {
    let lost = "error: replica 0: rank 1 was lost in operation 5 (all_reduce): no sign of life";
    let late = "operation 5 (barrier) timed out after 3.0s: rank(s) [1] did not take part; look";
    for said in [lost, late] {
        let text = format!("if [ $i = 1 ]; then exec sleep 1000; fi; echo '{said}' >&2; exit 1");
        let seen = see(script(&text).workers(3));
        let headline = "the job failed because of rank 1: the others lost it, as rank ";
        assert!(seen.stderr.contains(headline), "{}", seen.stderr);
        assert_eq!(seen.outcome().exit_code(), 1);
    }
    // A report counts more than words.
    let text = format!(
        "if [ $i = 2 ]; then exec sleep 1000; fi; echo '{lost}' >&2
         echo '{{\"lost\":[2]}}' > $DISTRIBUTE_FAILURE_REPORT; exit 1"
    );
    let seen = see(script(&text).workers(3));
    let headline = "the job failed because of rank 2: the others lost it, as rank ";
    assert!(seen.stderr.contains(headline), "{}", seen.stderr);
    // One that failed by itself is told of itself.
    let text = format!("if [ $i = 1 ]; then exit 7; fi; echo '{lost}' >&2; exec sleep 1000");
    let seen = see(script(&text).workers(3));
    let headline = "the job failed because of rank 1: exit code 7";
    assert!(seen.stderr.contains(headline), "{}", seen.stderr);
}

#[test]
fn a_job_is_not_restarted_when_one_process_was_refused() {
    // The others see that it has gone, and may be first.
    let directory = tempfile::tempdir().unwrap();
    let text = "if [ $i = 1 ]; then > up; sleep 0.03; exit 2; fi; await up; exit 1";
    let job = script_in(directory.path(), text);
    let seen = see(job.workers(3).max_restarts(3));
    let Outcome::Failed { cause, restarts: 0 } = seen.outcome() else {
        panic!("{:?}: {}", seen.result, seen.stderr);
    };
    assert_eq!((cause.task.index, cause.ending), (1, Ending::Exit(2)));
}
