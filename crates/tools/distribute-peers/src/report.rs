//! What a check has found.

use std::time::Duration;

use serde::Serialize;

use crate::attempt::Attempt;
use crate::clock::ClockOffset;
use crate::facts::Facts;
use crate::findings::{Findings, Guest};
use crate::interfaces::having;
use crate::rounds::choice;

/// What a check has found: who is there, who reaches whom, and how fast. Rank 0 has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// All processes, by rank, those that did not come too.
    pub ranks: Vec<RankReport>,
    /// The directions that were tried, by the rank that dialled.
    pub edges: Vec<EdgeReport>,
    /// How the pairs were chosen and measured.
    pub method: Method,
    /// What keeps a job from working.
    pub problems: Vec<Finding>,
    /// What a job works with, and is worth knowing.
    pub notes: Vec<Finding>,
    /// How long the check took, in seconds; without the wait for the processes.
    pub seconds: f64,
    /// How long rank 0 waited for the processes, in seconds.
    pub met_seconds: f64,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RankReport {
    /// Its rank.
    pub rank: usize,
    /// Its task, such as `worker 1`; empty if it did not come.
    pub name: String,
    /// Whether it came to the check.
    pub present: bool,
    /// Why it did not take part until the end.
    pub lost: Option<String>,
    /// Its address for the others.
    pub address: Option<String>,
    /// The interface that has the address; `None` if its host has none for it.
    pub interface: Option<String>,
    /// Its host, numbered from 0 in the order of the ranks.
    pub host: Option<usize>,
    /// What it says of itself.
    pub facts: Option<Facts>,
    /// How far its clock is ahead of that of rank 0.
    pub clock: Option<ClockOffset>,
}

/// A direction of a pair: the way from a rank that dials to another one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EdgeReport {
    /// The rank that dialled.
    pub from: usize,
    /// The rank that was dialled.
    pub to: usize,
    /// Whether all its ports were reached, and the measurement did not fail.
    pub works: bool,
    /// Whether both are on one host.
    pub is_local: bool,
    /// What was tried, one for each port.
    pub attempts: Vec<Attempt>,
    /// The median round trip, in seconds.
    pub round_trip_seconds: Option<f64>,
    /// The bytes per second that one connection carries this way.
    pub bytes_per_second: Option<f64>,
    /// Why it could not be measured.
    pub error: Option<String>,
}

/// How the pairs were chosen and measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Method {
    /// Which pairs were looked at, in words.
    pub chosen: String,
    /// How many.
    pub pairs: usize,
    /// How many were measured.
    pub measured: usize,
    /// How many could have been measured, and did not fit into the time.
    pub left_out: usize,
    /// The rounds, in which no host is part of two pairs.
    pub rounds: usize,
    /// How long each direction was measured, in seconds.
    pub slot_seconds: f64,
}

/// A sentence about one or more ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// The ranks that it is about.
    pub ranks: Vec<usize>,
    /// The sentence: what was found, what it means, what to do.
    pub text: String,
}

/// What a [`Finding`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingKind {
    /// A rank did not come.
    Missing,
    /// A rank came and did not stay.
    Lost,
    /// A rank cannot listen at its address.
    Address,
    /// A rank does not reach another one.
    Unreachable,
    /// A connection was made, and does not carry data.
    Stalled,
    /// Programs of different versions.
    Version,
    /// A link far slower than the others.
    Slow,
    /// A round trip far longer than the others.
    RoundTrip,
    /// A clock that is off.
    Clock,
    /// Hosts or programs that differ in something that a job works with.
    Different,
    /// Too few file descriptors.
    Descriptors,
    /// Lists of addresses that differ.
    List,
    /// A process that was not let in.
    TurnedAway,
    /// A translated address.
    Translated,
    /// Pairs that were not measured.
    Sample,
}

impl Report {
    /// The report, of which nothing is said yet.
    pub(crate) fn of(findings: &Findings, listed: &[Option<String>], took: Duration) -> Self {
        let ranks = ranks_of(findings, listed);
        let edges = edges_of(findings, &ranks);
        let measured = findings.plan.rounds.iter().map(Vec::len).sum();
        Self {
            ranks,
            edges,
            method: Method {
                chosen: choice(listed.len()).to_string(),
                pairs: findings.pairs.len(),
                measured,
                left_out: findings.plan.left_out,
                rounds: findings.plan.rounds.len(),
                slot_seconds: findings.slot.as_secs_f64(),
            },
            problems: Vec::new(),
            notes: Vec::new(),
            seconds: took.saturating_sub(findings.met).as_secs_f64(),
            met_seconds: findings.met.as_secs_f64(),
        }
    }

    /// The edge from a rank to another one, if it was tried.
    pub fn edge(&self, from: usize, to: usize) -> Option<&EdgeReport> {
        self.edges
            .iter()
            .find(|edge| edge.from == from && edge.to == to)
    }
}

fn ranks_of(findings: &Findings, listed: &[Option<String>]) -> Vec<RankReport> {
    let mut hosts: Vec<&str> = Vec::new();
    let mut all = Vec::with_capacity(listed.len());
    for (rank, address) in listed.iter().enumerate() {
        let Some(guest) = findings.guests.get(&rank) else {
            all.push(absent(rank, address.clone()));
            continue;
        };
        let network = &*guest.card.facts.network;
        let known = hosts
            .iter()
            .position(|it| *it == network && !network.is_empty());
        let host = known.unwrap_or_else(|| {
            hosts.push(network);
            hosts.len() - 1
        });
        all.push(present(guest, host));
    }
    all
}

fn absent(rank: usize, address: Option<String>) -> RankReport {
    RankReport {
        rank,
        name: String::new(),
        present: false,
        lost: None,
        address,
        interface: None,
        host: None,
        facts: None,
        clock: None,
    }
}

fn present(guest: &Guest, host: usize) -> RankReport {
    let card = &guest.card;
    let address = card.address.clone();
    RankReport {
        rank: card.rank,
        name: card.name.clone(),
        present: true,
        lost: guest.lost.clone(),
        interface: card
            .listens_at
            .and_then(|ip| having(&card.interfaces, ip))
            .map(|it| it.name.clone()),
        address,
        host: Some(host),
        facts: Some(card.facts.clone()),
        clock: guest.clock,
    }
}

fn edges_of(findings: &Findings, ranks: &[RankReport]) -> Vec<EdgeReport> {
    let host = |rank: usize| ranks.get(rank).and_then(|it| it.host);
    let edges = findings.attempts.iter().map(|((from, to), attempts)| {
        let figures = findings.figures.get(&(*from, *to));
        let measured = figures.and_then(|it| it.as_ref().ok());
        let error = figures.and_then(|it| it.as_ref().err().cloned());
        EdgeReport {
            from: *from,
            to: *to,
            works: error.is_none() && attempts.iter().all(|it| it.outcome.is_reached()),
            is_local: host(*from).is_some() && host(*from) == host(*to),
            attempts: attempts.clone(),
            round_trip_seconds: measured.map(|it| it.round_trip_seconds),
            bytes_per_second: measured.map(|it| it.bytes_per_second),
            error,
        }
    });
    edges.collect()
}
