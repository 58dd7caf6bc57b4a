//! What is said of hosts that differ, as a person reads it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::attempt::{Attempt, Outcome};
use crate::clock::ClockOffset;
use crate::facts::Facts;
use crate::findings::{Findings, Guest};
use crate::interfaces::Interface;
use crate::judge::judge;
use crate::meaning::{Side, meaning};
use crate::measure::Figures;
use crate::messages::Card;
use crate::report::Report;
use crate::rounds::{Plan, pairs};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A host with eth0 and the bridge of its containers, whose address is the same everywhere.
fn card(rank: usize, address: &str) -> Card {
    let facts = Facts {
        version: "0.1.0".to_string(),
        features: "full".to_string(),
        cpu_features: vec!["avx2".to_string()],
        cores: 8,
        system: "linux x86_64".to_string(),
        host: format!("node-{rank}"),
        network: format!("boot net:[{rank}]"),
        descriptors: Some(1024),
        descriptors_max: Some(524_288),
    };
    let own = format!("10.0.0.{}", rank + 1);
    Card {
        rank,
        name: format!("worker {rank}"),
        address: Some(address.to_string()),
        listens_at: address.rsplit_once(':').map(|(host, _)| ip(host)),
        trouble: None,
        from: Some(ip(&own)),
        leader: None,
        listed: Vec::new(),
        facts,
        interfaces: vec![
            Interface::new("lo", ip("127.0.0.1"), false),
            Interface::new("eth0", ip(&own), false),
            Interface::new("docker0", ip("172.17.0.1"), true),
        ],
    }
}

fn attempt(from: usize, to: usize, address: &str, outcome: Outcome) -> Attempt {
    let own = format!("10.0.0.{}", from + 1);
    Attempt {
        rank: to,
        address: address.to_string(),
        resolved: address.parse().ok(),
        from: Some(ip(&own)),
        interface: Some("eth0".to_string()),
        seconds: 0.001,
        outcome,
    }
}

/// Ranks on hosts of their own that reach each other, at 10 Gbit/s.
fn findings(addresses: &[String]) -> Findings {
    let ranks = addresses.len();
    let guests = addresses.iter().enumerate().map(|(rank, address)| {
        let mut guest = Guest::new(card(rank, address), None);
        guest.clock = (rank > 0).then_some(ClockOffset {
            seconds: 0.0002,
            uncertainty_seconds: 0.000_04,
        });
        (rank, guest)
    });
    let guests = guests.collect();
    let pairs = pairs(ranks);
    let (mut attempts, mut figures) = (BTreeMap::new(), BTreeMap::new());
    for (from, to) in pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]) {
        let address = &addresses[to];
        let tried = attempt(from, to, address, Outcome::Reached);
        attempts.insert((from, to), vec![tried]);
        let measured = Figures {
            round_trip_seconds: 0.000_12,
            bytes_per_second: 1.17e9,
        };
        figures.insert((from, to), Ok(measured));
    }
    let plan = Plan {
        rounds: vec![pairs.clone()],
        left_out: 0,
    };
    Findings {
        guests,
        attempts,
        figures,
        plan,
        slot: Duration::from_millis(125),
        pairs,
        met: Duration::from_millis(300),
    }
}

fn addresses(ranks: usize) -> Vec<String> {
    (1..=ranks)
        .map(|rank| format!("10.0.0.{rank}:8888"))
        .collect()
}

fn report(findings: &Findings, addresses: &[String], turned_away: &[String]) -> Report {
    let listed: Vec<Option<String>> = addresses.iter().cloned().map(Some).collect();
    let mut report = Report::of(findings, &listed, Duration::from_millis(2300));
    judge(&mut report, &findings.guests, &listed, turned_away);
    report
}

#[test]
fn hosts_that_reach_each_other_are_a_table() {
    let addresses = addresses(3);
    let report = report(&findings(&addresses), &addresses, &[]);
    insta::assert_snapshot!(report);
}

/// Rank 1 lists docker0, rank 2 has a firewall against rank 3, a slow link to rank 3, and a
/// clock that is off; rank 4 did not come.
#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let mut addresses = addresses(5);
    addresses[1] = "172.17.0.1:8888".to_string();
    let mut found = findings(&addresses);
    found.guests.remove(&4);
    let broken = |from: usize, to, address: &str, outcome| attempt(from, to, address, outcome);
    for from in [0, 2, 3] {
        let local = broken(from, 1, "172.17.0.1:8888", Outcome::Refused);
        found.attempts.insert((from, 1), vec![local]);
        found.figures.remove(&(from, 1));
    }
    for from in [0, 1, 2, 3] {
        let gone = broken(from, 4, "10.0.0.5:8888", Outcome::NoAnswer);
        found.attempts.insert((from, 4), vec![gone]);
        found.figures.remove(&(from, 4));
        found.attempts.remove(&(4, from));
        found.figures.remove(&(4, from));
    }
    let dropped = broken(3, 2, "10.0.0.3:8888", Outcome::NoAnswer);
    found.attempts.insert((3, 2), vec![dropped]);
    found.figures.remove(&(3, 2));
    let slow = Figures {
        round_trip_seconds: 0.0131,
        bytes_per_second: 11.7e6,
    };
    found.figures.insert((2, 3), Ok(slow));
    found.guests.get_mut(&2).unwrap().clock = Some(ClockOffset {
        seconds: -3.5,
        uncertainty_seconds: 0.0003,
    });
    found.guests.get_mut(&3).unwrap().card.facts.cores = 4;
    let away =
        ["10.0.0.9: its token is another one; give all processes the job's token".to_string()];
    let report = report(&found, &addresses, &away);
    assert!(
        report
            .to_string()
            .lines()
            .all(|line| line.chars().count() <= 80),
        "{report}"
    );
    insta::assert_snapshot!(report);
}

#[test]
fn many_ranks_are_a_list_of_the_slowest() {
    let addresses = addresses(20);
    let mut found = findings(&addresses);
    let slow = Figures {
        round_trip_seconds: 0.000_4,
        bytes_per_second: 117e6,
    };
    found.figures.insert((4, 12), Ok(slow));
    let report = report(&found, &addresses, &[]);
    insta::assert_snapshot!(report);
}

/// One line for each outcome, as rank 1 says it of rank 0 before anything is known of rank 0.
#[test]
fn each_outcome_means_something_and_says_what_to_do() {
    let outcomes = [
        Outcome::Unresolved("failed to lookup address information".to_string()),
        Outcome::Refused,
        Outcome::NoAnswer,
        Outcome::NoRoute("Network is unreachable (os error 101)".to_string()),
        Outcome::Lacking("this process has no file descriptors left".to_string()),
        Outcome::Silent,
        Outcome::Closed("early eof".to_string()),
        Outcome::NotDoctor("it is too long".to_string()),
        Outcome::Untrusted("its token is another one; give all the job's token".to_string()),
        Outcome::OtherRank(3),
    ];
    let own = card(1, "10.0.0.2:8888");
    let side = Side::of(&own);
    let mut said: Vec<String> = outcomes
        .into_iter()
        .map(|outcome| {
            let attempt = attempt(1, 0, "10.0.0.1:8888", outcome);
            meaning(&attempt, Some(&side), None)
        })
        .collect();
    for local in ["127.0.0.1:8888", "172.17.0.1:8888"] {
        let attempt = attempt(1, 0, local, Outcome::Refused);
        said.push(meaning(&attempt, Some(&side), None));
        let mut leader = card(0, local);
        leader.interfaces.truncate(2);
        said.push(meaning(&attempt, Some(&side), Some(&Side::of(&leader))));
    }
    let translated = attempt(1, 0, "203.0.113.9:8888", Outcome::NoAnswer);
    let leader = card(0, "10.0.0.1:8888");
    said.push(meaning(&translated, Some(&side), Some(&Side::of(&leader))));
    insta::assert_snapshot!(said.join("\n"));
}
