//! `doctor --peers` as a user runs it: under the launcher, by hand on each host, with a rank that
//! is missing, stopped or out of reach. What it says of hosts that are network namespaces is tried
//! by `.ci/peers`, what is measured by the tests of distribute-peers.

use rstest::rstest;
use serde_json::Value;

use crate::common::{self, Finished, Process, last_event};
use crate::job::{self, Member};
use crate::launch::launch;

/// Starts the ranks of a job of `count` by hand.
fn by_hand(ranks: &[usize], count: usize, flags: &str) -> Vec<Process> {
    let folder = tempfile::tempdir().unwrap();
    let cluster = job::cluster(count);
    let start = |rank: &usize| {
        let config = job::tf_config(&cluster, "worker", *rank);
        let command = format!("doctor --peers {flags}");
        Member::start(folder.path(), &command, &[("TF_CONFIG", &config)])
    };
    ranks.iter().map(start).collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn problems(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let all = report["problems"].as_array().unwrap().iter();
    all.map(|it| (text(&it["kind"]), text(&it["text"])))
        .collect()
}

#[rstest]
#[case(2)]
#[case(4)]
fn under_the_launcher_rank_0_prints_one_report(#[case] workers: usize) {
    let folder = tempfile::tempdir().unwrap();
    let options = format!("--workers {workers} --log-dir logs");
    let ended = launch(folder.path(), &options, "doctor --peers");
    assert_eq!(ended.code, Some(0), "{} {}", ended.stdout, ended.stderr);
    let text = one_line(&ended.stdout);
    let pairs = workers * (workers - 1) / 2;
    for part in [
        &*format!("{workers} of {workers} ranks met, on 1 host"),
        &format!("measured {pairs} of {pairs} pairs in {pairs} round"),
        "rate in MB/s",
        "round trip in ms",
        "all ranks reach each other",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches("ranks met").count(), 1, "{text}");
    let log = std::fs::read_to_string(folder.path().join("logs/worker-1.log")).unwrap();
    assert!(!log.contains("ranks met"), "{log}");
}

#[test]
fn by_hand_the_report_is_one_line_of_json() {
    let mut ended = job::finish(by_hand(&[0, 1], 2, "--json"));
    let other = ended.pop().unwrap();
    let report = last_event(&ended[0].stdout);
    assert_eq!(
        (ended[0].code, other.code),
        (Some(0), Some(0)),
        "{}",
        ended[0].stderr
    );
    assert_eq!(other.stdout, "");
    assert_eq!(report["event"], "peers");
    assert_eq!(report["method"]["measured"], 1);
    assert_eq!(report["problems"].as_array().unwrap().len(), 0);
    let edges = report["edges"].as_array().unwrap();
    assert_eq!(edges.len(), 2);
    for (edge, (from, to)) in edges.iter().zip([(0, 1), (1, 0)]) {
        assert_eq!((&edge["from"], &edge["to"]), (&from.into(), &to.into()));
        assert_eq!(edge["works"], true);
        assert!(edge["bytes_per_second"].as_f64().unwrap() > 1e5, "{edge}");
        assert!(edge["round_trip_seconds"].as_f64().unwrap() > 0.0, "{edge}");
        assert_eq!(edge["attempts"].as_array().unwrap().len(), 1);
    }
    let rank = &report["ranks"][1];
    assert_eq!(rank["name"], "worker 1");
    assert_eq!(rank["facts"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(
        rank["clock"]["uncertainty_seconds"].as_f64().unwrap() > 0.0,
        "{rank}"
    );
}

#[test]
fn a_rank_that_never_comes_is_named_after_the_limit_and_the_rest_is_reported() {
    let ended = job::finish(by_hand(&[0, 2], 3, "--rendezvous-timeout 3"));
    for rank in &ended {
        assert_eq!(rank.code, Some(1), "{}", rank.stderr);
    }
    let text = one_line(&ended[0].stdout);
    for part in [
        "2 of 3 ranks met, on 1 host",
        "measured 1 of 3 pairs",
        "problem: rank 1 did not come within 3 s: ranks 0 and 2 tried 127.",
        "connection refused: the host answers, and no process listens on this port there",
        "1 problem: a job of these ranks does not work",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        ended[0].stderr.contains("waits for rank 1"),
        "{}",
        ended[0].stderr
    );
    assert!(
        ended[0].stderr.contains("error: 1 problem"),
        "{}",
        ended[0].stderr
    );
}

/// Rank 1 has come, and is stopped before rank 2 comes.
#[test]
fn a_rank_that_stops_in_the_middle_is_named_and_the_rest_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = job::cluster(3);
    let start = |rank| {
        let config = job::tf_config(&cluster, "worker", rank);
        let command = "doctor --peers --json --rendezvous-timeout 20";
        Member::start(folder.path(), command, &[("TF_CONFIG", &config)])
    };
    let (first, second) = (start(0), start(1));
    second.wait_until_it_waits();
    second.signal("STOP");
    let third = start(2);
    let ended = first.finish();
    second.signal("KILL");
    let report = last_event(&ended.stdout);
    let found = problems(&report);
    // On a slow machine it was stopped before it came.
    let is_named = |(kind, text): &(String, String)| {
        ["lost", "missing"].contains(&&**kind) && text.contains("rank 1")
    };
    assert!(found.iter().any(is_named), "{found:?}");
    let between = report["edges"].as_array().unwrap().iter();
    let rates = between
        .filter(|it| it["bytes_per_second"].is_number())
        .count();
    assert_eq!(rates, 2, "ranks 0 and 2, both ways: {report}");
    assert_eq!(third.finish().code, Some(1));
}

#[test]
fn a_rank_that_does_not_reach_rank_0_says_what_it_tried_and_whom_it_reaches() {
    let others = by_hand(&[1, 2], 3, "--rendezvous-timeout 2");
    let ended: Vec<Finished> = job::finish(others);
    for (rank, other) in [(1, 2), (2, 1)] {
        let said = one_line(&ended[rank - 1].told());
        assert_eq!(ended[rank - 1].code, Some(1), "{said}");
        for part in [
            format!("error: rank {rank} could not meet rank 0 within"),
            "connection refused: the host answers, and no process listens".to_string(),
            "start rank 0 there, or correct its address".to_string(),
            format!("rank {rank} reaches rank {other} at 127."),
        ] {
            assert!(said.contains(&part), "{part}: {said}");
        }
        assert_eq!(ended[rank - 1].stdout, "");
    }
}

/// Nothing describes a cluster but the flags.
#[test]
fn one_process_on_each_host_is_described_by_flags() {
    let folder = tempfile::tempdir().unwrap();
    let [rendezvous] = &job::addresses(1)[..] else {
        unreachable!()
    };
    let start = |host| {
        let command = format!(
            "doctor --peers --output json --rendezvous {rendezvous} --hosts 3 --host {host}"
        );
        Member::start(folder.path(), &command, &[])
    };
    let ended = job::finish((0..3).map(start).collect());
    let report = last_event(&ended[0].stdout);
    assert_eq!(problems(&report), [], "{}", ended[0].stderr);
    assert_eq!(report["method"]["measured"], 3);
    assert_eq!(report["ranks"][2]["name"], "host 2");
}

#[rstest]
#[case("doctor --peers", "no cluster is described")]
#[case("doctor --port 7000", "--peers")]
#[case(
    "doctor --peers --rendezvous 127.0.0.1:0 --hosts 2 --host 0",
    "0 is no port"
)]
#[case(
    "doctor --peers --rendezvous 127.0.0.1:7 --hosts 2 --host 2",
    "is not below --hosts 2"
)]
#[case(
    "doctor --peers --rendezvous 0.0.0.0:7 --hosts 2 --host 1",
    "reaches host 0"
)]
#[case(
    "doctor --peers --rendezvous 192.0.2.1:7 --hosts 2 --host 0",
    "--insecure"
)]
#[case("doctor --peers --rendezvous 127.0.0.1:7", "--hosts")]
#[case("doctor --json --output text", "--output")]
fn what_cannot_be_is_refused_at_once(#[case] command: &str, #[case] part: &str) {
    let folder = tempfile::tempdir().unwrap();
    let refused = common::run(folder.path(), command);
    let said = refused.told();
    assert_eq!(refused.code, Some(2), "{said}");
    assert!(said.contains(part), "{said}");
}
