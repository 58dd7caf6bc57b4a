//! Jobs that go on with fewer workers, and take in hosts that come.

use std::net::SocketAddr;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use distribute_launch::{Ending, Hosts, Job, LaunchError, Outcome, Security, Token};

use crate::common::{Seen, read, script, script_in, security, see};
use crate::eventually::eventually;
use crate::hosts::{meeting_point, see_jobs};

/// How many workers the job of this worker has, as `$n`.
const COUNT: &str = r#"
    c=${TF_CONFIG%%]*}; n=$(echo "$c" | grep -o ':[0-9]*"' | wc -l); s=$DISTRIBUTE_RESTART;"#;

/// A script that also knows the number of workers `$n` and of earlier starts `$s`.
fn elastic(directory: &Path, text: &str) -> Job {
    script_in(directory, &format!("{COUNT}{text}")).grace_period(Duration::from_secs(5))
}

#[test]
fn a_worker_lost_for_good_leaves_the_job_with_fewer() {
    let directory = tempfile::tempdir().unwrap();
    let text = "echo $s:$i/$n >> told$i
        [ $n = 2 ] && exit 0; > up$i-$s
        if [ $i = 1 ]; then
            for j in $(seq 0 $((n - 1))); do await up$j-$s; done; kill -9 $$
        fi; exec sleep 100";
    let job = elastic(directory.path(), text).elastic_workers(2..=4);
    let seen = see(job.max_restarts(1));
    // A restart, then without one worker, then without another one.
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 3 });
    let told = read(directory.path().join("told0"));
    assert_eq!(told, "0:0/4\n1:0/4\n2:0/3\n3:0/2\n");
    let told = read(directory.path().join("told3"));
    assert_eq!(told, "0:3/4\n1:3/4\n", "there is no rank 3 of 3");
    for said in [
        "starting all of them again, restart 1 of 1\n",
        "going on with 3 workers instead of 4 (shrink 1, growth 0, restart 1 of 1)",
        "going on with 2 workers instead of 3 (shrink 2, growth 0, restart 1 of 1)",
        "workers at the end: 2; restarts: 1, shrinks: 2, growths: 0",
    ] {
        assert!(seen.stderr.contains(said), "{said}: {}", seen.stderr);
    }
}

#[test]
fn the_worker_that_the_others_lost_is_the_one_that_goes() {
    let directory = tempfile::tempdir().unwrap();
    // Worker 1 hangs; worker 0 says so, and fails.
    let text = r#"echo $CUDA_VISIBLE_DEVICES >> gpus$i
        [ $n = 2 ] && exit 0; > up$i
        if [ $i = 0 ]; then await up1 up2; echo 'rank 1 was lost in operation 7' >&2; exit 1; fi
        exec sleep 100"#;
    let job = elastic(directory.path(), text).elastic_workers(1..=3);
    let seen = see(job.gpus_per_worker(1));
    assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 1 });
    assert_eq!(read(directory.path().join("gpus0")), "0\n0\n");
    let gpus = read(directory.path().join("gpus1"));
    assert_eq!(gpus, "1\n2\n", "the GPU of the lost worker is left alone");
}

/// A worker that is cut off fails by itself, too, and names the healthy ones.
#[test]
fn a_worker_that_was_cut_off_goes_and_no_healthy_one() {
    for first in [0, 1] {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            r#"echo $CUDA_VISIBLE_DEVICES >> gpus$i
            [ $n = 2 ] && exit 0
            lost=1; [ $i = 1 ] && lost=0,2
            echo "{{\"lost\":[$lost]}}" > $DISTRIBUTE_FAILURE_REPORT
            if [ $i != {first} ]; then await up; else > up; fi; exit 1"#
        );
        let job = elastic(directory.path(), &text).elastic_workers(1..=3);
        let seen = see(job.gpus_per_worker(1));
        assert_eq!(*seen.outcome(), Outcome::Succeeded { restarts: 1 });
        let gpus = [0, 1].map(|index| read(directory.path().join(format!("gpus{index}"))));
        assert_eq!(gpus, ["0\n0\n", "1\n2\n"], "{first}: {}", seen.stderr);
    }
}

#[test]
fn at_the_minimum_there_is_one_cause() {
    let directory = tempfile::tempdir().unwrap();
    let text = "> up$i-$s; if [ $i = 1 ]; then await up0-$s; exit 7; fi; exec sleep 100";
    let seen = see(elastic(directory.path(), text).elastic_workers(2..=3));
    let Outcome::Failed { cause, restarts: 1 } = seen.outcome() else {
        panic!("{:?}: {}", seen.result, seen.stderr);
    };
    assert_eq!((cause.task.index, cause.ending), (1, Ending::Exit(7)));
    assert_eq!(seen.outcome().exit_code(), 7);
    let said = "no restart of 0 is left, and the job needs at least 2 workers";
    assert!(seen.stderr.contains(said), "{}", seen.stderr);
}

#[test]
fn wrong_usage_and_other_processes_do_not_shrink_a_job() {
    let usage = see(script("exit 2").elastic_workers(1..=3).max_restarts(5));
    let why = "exit code 2; another start would end in the same way, so none is made";
    assert!(usage.stderr.contains(why), "{}", usage.stderr);
    assert!(matches!(
        usage.outcome(),
        Outcome::Failed { restarts: 0, .. }
    ));
    let directory = tempfile::tempdir().unwrap();
    let text = "if [ $r = evaluator ]; then await up0; exit 9; fi; > up$i; exec sleep 100";
    let job = elastic(directory.path(), text).elastic_workers(1..=3);
    let seen = see(job.evaluator(true));
    assert_eq!(seen.outcome().exit_code(), 9, "{}", seen.stderr);
    // Enough workers were there.
    let said = "distribute: no restart of 0 is left\n";
    assert!(seen.stderr.contains(said), "{}", seen.stderr);
    assert!(matches!(
        seen.outcome(),
        Outcome::Failed { restarts: 0, .. }
    ));
}

#[test]
fn ranges_that_make_no_sense_are_refused() {
    let error = |job: Job| see(job).result.unwrap_err();
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tried")]
    let reversed = error(script("true").elastic_workers(3..=2));
    assert!(matches!(
        reversed,
        LaunchError::EmptyRange { least: 3, most: 2 }
    ));
    let zero = error(script("true").elastic_workers(0..=2));
    assert!(matches!(zero, LaunchError::NoWorkers));
    let servers = error(script("true").elastic_workers(1..=2).parameter_servers(1));
    assert!(matches!(servers, LaunchError::ElasticServers));
    let (address, _ports) = meeting_point();
    let hosts = error(
        script("true")
            .elastic_workers(1..=2)
            .hosts(host(address, 3, 0)),
    );
    assert!(matches!(
        hosts,
        LaunchError::HostWithoutWorker { hosts: 3, most: 2 }
    ));
}

fn host(address: SocketAddr, count: usize, index: usize) -> Hosts {
    Hosts::new(address, count, index, security()).join_timeout(Duration::from_secs(30))
}

fn start(job: Job) -> JoinHandle<Seen> {
    std::thread::spawn(move || see(job))
}

/// Waits for a file that the processes of a job make.
#[track_caller]
fn wait_for(path: impl AsRef<Path>) {
    let path = path.as_ref();
    eventually(
        || path.exists(),
        || format!("{} does not come", path.display()),
    );
}

/// Saves and stops when it is told to; ends with 0 when there are 3 workers.
const SAVES: &str = "echo $s:$i/$n >> told$i; trap 'exit 42' TERM
    if [ $n = 3 ]; then exit 0; fi; > up$i-$n; sleep 100 & wait";

/// Such a job, and its first host of two, which runs alone.
fn alone(directory: &Path, address: SocketAddr) -> (Job, JoinHandle<Seen>) {
    let job = elastic(directory, SAVES).elastic_workers(2..=3);
    let job = job.shrink_after(Duration::from_millis(300));
    let first = start(job.clone().hosts(host(address, 2, 0)));
    for worker in 0..2 {
        wait_for(directory.join(format!("up{worker}-2")));
    }
    (job, first)
}

#[test]
fn a_launcher_that_comes_later_is_taken_in_at_the_next_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let (address, _ports) = meeting_point();
    let (job, first) = alone(directory.path(), address);
    let second = see(job.hosts(host(address, 2, 1)));
    let first = first.join().unwrap();
    for one in [&first, &second] {
        assert_eq!(
            *one.outcome(),
            Outcome::Succeeded { restarts: 1 },
            "{}",
            one.stderr
        );
    }
    assert_eq!(read(directory.path().join("told0")), "0:0/2\n1:0/3\n");
    assert_eq!(read(directory.path().join("told2")), "1:2/3\n");
    let said = "the processes have stopped and saved what they had; going on with 3 workers \
                instead of 2 (shrink 0, growth 1, restart 0 of 0)";
    assert!(first.stderr.contains(said), "{}", first.stderr);
    assert!(
        second
            .stderr
            .contains("this host joins the job at its restart 1")
    );
}

#[test]
fn launchers_of_other_jobs_are_refused_and_disturb_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let (address, _ports) = meeting_point();
    let (job, first) = alone(directory.path(), address);
    let refused = |job: Job| {
        let error = see(job).result.unwrap_err();
        assert!(matches!(error, LaunchError::HostRefused { .. }), "{error}");
        error.to_string()
    };
    let range = job
        .clone()
        .elastic_workers(2..=4)
        .hosts(host(address, 2, 1));
    let range = refused(range);
    let said = "ranges of workers differ: host 1 has 2..4, host 0 has 2..3";
    assert!(range.contains(said), "{range}");
    let fixed = refused(job.clone().workers(1).hosts(host(address, 2, 1)));
    assert!(
        fixed.contains("host 1 has one number, host 0 has 2..3"),
        "{fixed}"
    );
    let total = refused(job.clone().hosts(host(address, 3, 1)));
    assert!(
        total.contains("numbers of hosts differ: host 1 has 3, host 0 has 2"),
        "{total}"
    );
    let zero = Hosts::new(address, 2, 0, security());
    let zero = see(job.clone().hosts(zero)).result.unwrap_err();
    assert!(zero.to_string().contains("cannot meet at"), "{zero}");

    let other = Security::default().token(Token::new("another secret of 16 bytes").unwrap());
    let other = refused(job.clone().hosts(Hosts::new(address, 2, 1, other)));
    assert!(other.contains("its token is another one"), "{other}");

    let second = start(job.clone().hosts(host(address, 2, 1)));
    wait_for(directory.path().join("told2"));
    let first = first.join().unwrap();
    for why in ["ranges of workers differ", "token is another one"] {
        let said = first
            .stderr
            .lines()
            .filter(|line| line.contains("turned away a launcher at "));
        let said = said.filter(|line| line.contains(why));
        assert!(said.count() > 0, "{why}: {}", first.stderr);
    }
    assert_eq!(
        *first.outcome(),
        Outcome::Succeeded { restarts: 1 },
        "{}",
        first.stderr
    );
    assert_eq!(
        *second.join().unwrap().outcome(),
        Outcome::Succeeded { restarts: 1 }
    );
}

/// The workers of the host that comes find that they do not fit, and all end with exit code 2.
#[test]
fn a_host_whose_workers_do_not_fit_is_done_without() {
    let directory = tempfile::tempdir().unwrap();
    let (address, _ports) = meeting_point();
    let text = "echo $s:$i/$n >> told$i; [ $n = 3 ] && exit 2
        trap 'exit 42' TERM; > up$i-$n; [ $s = 2 ] && exit 0; sleep 100 & wait";
    let job = elastic(directory.path(), text).elastic_workers(2..=3);
    let job = job.shrink_after(Duration::from_millis(300)).max_restarts(1);
    let first = start(job.clone().hosts(host(address, 2, 0)));
    (0..2).for_each(|worker| wait_for(directory.path().join(format!("up{worker}-2"))));
    let error = see(job.hosts(host(address, 2, 1))).result.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the job could not go on with it"),
        "{error}"
    );
    let first = first.join().unwrap();
    assert_eq!(
        *first.outcome(),
        Outcome::Succeeded { restarts: 2 },
        "{}",
        first.stderr
    );
    assert_eq!(
        read(directory.path().join("told0")),
        "0:0/2\n1:0/3\n2:0/2\n"
    );
    let said = "the job cannot go on with the hosts [1] (counted from 0), which came last";
    assert!(first.stderr.contains(said), "{}", first.stderr);
    assert!(!first.stderr.contains("none is made"), "{}", first.stderr);
}

#[test]
fn two_launchers_that_claim_one_host_are_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let (address, _ports) = meeting_point();
    let text = "trap 'exit 42' TERM; > up$i-$n; while [ ! -e done ]; do sleep 0.05; done";
    let job = elastic(directory.path(), text).elastic_workers(2..=3);
    let host = |index| host(address, 2, index).timeout(Duration::from_secs(1));
    let jobs = vec![job.clone().hosts(host(0)), job.clone().hosts(host(1))];
    let running = std::thread::spawn(move || see_jobs(jobs));
    wait_for(directory.path().join("up2-3"));
    let error = see(job.hosts(host(1))).result.unwrap_err();
    let said = "there was a launcher for host 1 already";
    assert!(error.to_string().contains(said), "{error}");
    std::fs::write(directory.path().join("done"), "").unwrap();
    for one in running.join().unwrap() {
        assert_eq!(
            *one.outcome(),
            Outcome::Succeeded { restarts: 0 },
            "{}",
            one.stderr
        );
    }
}

#[test]
fn too_few_hosts_end_with_one_cause() {
    let (address, _ports) = meeting_point();
    let job = script("true").elastic_workers(2..=2 + 1);
    let few = Hosts::new(address, 3, 0, security()).join_timeout(Duration::from_millis(600));
    let job = job.shrink_after(Duration::from_millis(200)).hosts(few);
    let error = see(job).result.unwrap_err();
    assert!(
        matches!(&error, LaunchError::TooFewWorkers { missing, left: 1, least: 2 }
            if *missing == [1, 2]),
        "{error}"
    );
}

/// No host is disturbed: the refused launcher reports why, and host 0's launcher which one it
/// turned away.
#[test]
fn a_second_evaluator_is_refused_before_the_workers_are_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let (address, _ports) = meeting_point();
    let text = "[ $r = evaluator ] && exec sleep 100
        echo $s:$i/$n >> told$i; trap 'exit 42' TERM; > up$i; await done";
    let job = elastic(directory.path(), text).elastic_workers(1..=2);
    let job = job.shrink_after(Duration::from_millis(300)).evaluator(true);
    let job = job.grace_period(Duration::from_millis(300));
    let first = start(job.clone().hosts(host(address, 2, 0)));
    wait_for(directory.path().join("up0"));
    let error = see(job.hosts(host(address, 2, 1))).result.unwrap_err();
    let why = "host 1 starts an evaluator, as host 0 does: ask for it on one host";
    assert!(matches!(error, LaunchError::HostRefused { .. }), "{error}");
    assert!(error.to_string().contains(why), "{error}");
    std::fs::write(directory.path().join("done"), "").unwrap();
    let first = first.join().unwrap();
    let ended = Outcome::Succeeded { restarts: 0 };
    assert_eq!(*first.outcome(), ended, "{}", first.stderr);
    assert!(first.stderr.contains(why), "{}", first.stderr);
}

/// Starts with more or fewer workers are no restarts.
#[test]
fn a_job_that_ends_with_restarts_left_says_why_however_often_it_was_started() {
    let directory = tempfile::tempdir().unwrap();
    let (address, _ports) = meeting_point();
    let text = "trap 'exit 42' TERM; > up$i-$n; await end; exit 43";
    let job = elastic(directory.path(), text).elastic_workers(1..=2);
    let job = job.shrink_after(Duration::from_millis(300)).max_restarts(1);
    let first = start(job.clone().hosts(host(address, 2, 0)));
    wait_for(directory.path().join("up0-1"));
    // Diverged: the newcomer is not blamed for that.
    let second = start(job.hosts(host(address, 2, 1)));
    wait_for(directory.path().join("up1-2"));
    std::fs::write(directory.path().join("end"), "").unwrap();
    let (first, second) = (first.join().unwrap(), second.join().unwrap());
    for seen in [&first, &second] {
        assert_eq!(seen.outcome().exit_code(), 43, "{}", seen.stderr);
        let why = "exit code 43; another start would end in the same way, so none is made";
        assert!(seen.stderr.contains(why), "{}", seen.stderr);
    }
}
