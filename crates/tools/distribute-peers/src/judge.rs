//! What is wrong, and what is worth knowing, in sentences.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use distribute_net::address::split;

use crate::attempt::{Attempt, Outcome};
use crate::findings::Guest;
use crate::meaning::{Side, meaning};
use crate::measure::{FAR, median};
use crate::report::{EdgeReport, Finding, FindingKind, RankReport, Report};
use crate::words::{ranks, rate};

/// Shorter round trips are not worth naming, in seconds.
const ROUND_TRIP_MIN: f64 = 1e-3;
/// How far a clock may be off, in seconds.
pub(crate) const CLOCK_MAX: f64 = 0.1;
/// Descriptors of a process of a job besides its connections.
const OTHER_DESCRIPTORS: u64 = 64;
/// Neighbours that a rank has for control at most.
const NEIGHBOURS_MAX: u64 = 17;
/// Up to how many ranks each may exchange data with all others.
const ALL_TO_ALL_MAX: u64 = 64;

type Guests = BTreeMap<usize, Guest>;

/// Adds problems and notes to a report.
pub(crate) fn judge(
    report: &mut Report,
    guests: &Guests,
    listed: &[Option<String>],
    turned_away: &[String],
) {
    let mut problems = missing(report, guests);
    problems.extend(lost(report));
    problems.extend(troubled(guests));
    problems.extend(unreachable(report, guests));
    problems.extend(stalled(report));
    problems.extend(versions(report));
    let mut notes = turned_away.iter().map(|who| {
        let text = format!("turned away {who}");
        finding(FindingKind::TurnedAway, Vec::new(), text)
    });
    let mut notes: Vec<Finding> = notes.by_ref().collect();
    notes.extend(slow(report));
    notes.extend(round_trips(report));
    notes.extend(clocks(report));
    notes.extend(different(report));
    notes.extend(descriptors(report));
    notes.extend(lists(guests, listed));
    notes.extend(translated(guests));
    notes.extend(sample(report));
    (report.problems, report.notes) = (problems, notes);
}

fn finding(kind: FindingKind, ranks: Vec<usize>, text: String) -> Finding {
    Finding { kind, ranks, text }
}

/// Ranks that did not come, with what the others found at their addresses.
fn missing(report: &Report, guests: &Guests) -> Vec<Finding> {
    let absent = report.ranks.iter().filter(|rank| !rank.present);
    let mut hosts = report.ranks.iter().filter_map(|rank| rank.host);
    let is_one_host = hosts.all(|host| host == 0);
    absent
        .map(|rank| {
            let waited = report.met_seconds;
            let mut text = format!("rank {} did not come within {waited:.0} s", rank.rank);
            let groups = failures(report, |attempt| attempt.rank == rank.rank);
            for (index, (from, attempt)) in groups.into_iter().enumerate() {
                let why = if is_one_host {
                    // Any of its addresses is right there.
                    meaning(attempt, None, None)
                } else {
                    explained(&from, attempt, guests)
                };
                let between = if index == 0 { ":" } else { ";" };
                text += &format!("{between} {} tried {why}", ranks(&from));
            }
            if rank.address.is_none() {
                text += "; start it, or look at its output";
            }
            finding(FindingKind::Missing, vec![rank.rank], text)
        })
        .collect()
}

fn lost(report: &Report) -> Vec<Finding> {
    let lost = report.ranks.iter().filter_map(|rank| {
        let why = rank.lost.as_ref()?;
        let text = format!("rank {} was lost during the check: {why}", rank.rank);
        Some(finding(FindingKind::Lost, vec![rank.rank], text))
    });
    lost.collect()
}

fn troubled(guests: &Guests) -> Vec<Finding> {
    let troubled = guests.iter().filter_map(|(rank, guest)| {
        let why = guest.card.trouble.as_ref()?;
        let text = format!("rank {rank} cannot listen: {why}");
        Some(finding(FindingKind::Address, vec![*rank], text))
    });
    troubled.collect()
}

/// Attempts that failed in the same way, with the ranks that made them.
fn failures(report: &Report, wanted: impl Fn(&Attempt) -> bool) -> Vec<(Vec<usize>, &Attempt)> {
    type Key<'a> = (usize, String, &'a Outcome);
    let mut groups: BTreeMap<Key<'_>, (Vec<usize>, &Attempt)> = BTreeMap::new();
    for edge in &report.edges {
        for attempt in edge.attempts.iter().filter(|it| wanted(it)) {
            if attempt.outcome.is_reached() {
                continue;
            }
            let key = (attempt.rank, attempt.address.clone(), &attempt.outcome);
            let group = groups.entry(key).or_insert_with(|| (Vec::new(), attempt));
            group.0.push(edge.from);
        }
    }
    groups.into_values().collect()
}

/// The meaning of an attempt, as the first of these ranks made it.
fn explained(from: &[usize], attempt: &Attempt, guests: &Guests) -> String {
    let side = |rank: &usize| guests.get(rank).map(|guest| Side::of(&guest.card));
    let first = from.first().and_then(side);
    let to = side(&attempt.rank);
    meaning(attempt, first.as_ref(), to.as_ref())
}

fn unreachable(report: &Report, guests: &Guests) -> Vec<Finding> {
    let is_there = |rank: usize| report.ranks.get(rank).is_some_and(|it| it.present);
    let groups = failures(report, |attempt| is_there(attempt.rank));
    let found = groups.into_iter().map(|(from, attempt)| {
        let verb = if from.len() == 1 { "does" } else { "do" };
        let text = format!(
            "{} {verb} not reach rank {} at {}",
            ranks(&from),
            attempt.rank,
            explained(&from, attempt, guests)
        );
        let mut both = from;
        both.push(attempt.rank);
        finding(FindingKind::Unreachable, both, text)
    });
    found.collect()
}

fn stalled(report: &Report) -> Vec<Finding> {
    let stalled = report.edges.iter().filter_map(|edge| {
        let why = edge.error.as_ref()?;
        let text = format!(
            "rank {} reaches rank {}, and the connection carries no data: {why}",
            edge.from, edge.to
        );
        Some(finding(
            FindingKind::Stalled,
            vec![edge.from, edge.to],
            text,
        ))
    });
    stalled.collect()
}

/// The ranks that say something else than rank 0, by what they say; and what rank 0 says.
fn others<T: Ord + Clone>(
    report: &Report,
    says: impl Fn(&RankReport) -> Option<T>,
) -> Option<(T, BTreeMap<T, Vec<usize>>)> {
    let first = report.ranks.first().and_then(&says)?;
    let mut others: BTreeMap<T, Vec<usize>> = BTreeMap::new();
    for rank in &report.ranks {
        if let Some(said) = says(rank).filter(|said| *said != first) {
            others.entry(said).or_default().push(rank.rank);
        }
    }
    (!others.is_empty()).then_some((first, others))
}

fn versions(report: &Report) -> Vec<Finding> {
    let version = |rank: &RankReport| rank.facts.as_ref().map(|facts| facts.version.clone());
    let Some((first, others)) = others(report, version) else {
        return Vec::new();
    };
    let found = others.into_iter().map(|(version, who)| {
        let text = format!(
            "{}: version {version}, rank 0: {first}; processes of a job refuse another version: run \
             the same build everywhere",
            ranks(&who)
        );
        finding(FindingKind::Version, who, text)
    });
    found.collect()
}

/// What may differ, and what follows from it.
fn different(report: &Report) -> Vec<Finding> {
    type Say = fn(&RankReport) -> Option<String>;
    let facts: [(&str, Say, &str); 4] = [
        (
            "cargo features",
            |rank| Some(rank.facts.as_ref()?.features.clone()),
            "a job may ask for one that not all have",
        ),
        (
            "extensions of the processor",
            |rank| Some(rank.facts.as_ref()?.cpu_features.join(" ")),
            "kernels round differently on them: the same training may give other bits",
        ),
        (
            "system",
            |rank| Some(rank.facts.as_ref()?.system.clone()),
            "the same training may give other bits",
        ),
        (
            "cores",
            |rank| Some(rank.facts.as_ref()?.cores.to_string()),
            "in a synchronous job all wait for the slowest",
        ),
    ];
    let mut found = Vec::new();
    for (what, says, so) in facts {
        let Some((first, others)) = others(report, says) else {
            continue;
        };
        let all: Vec<String> = others
            .iter()
            .map(|(said, who)| format!("{}: {}", ranks(who), or_none(said)))
            .collect();
        let who = others.into_values().flatten().collect();
        let text = format!(
            "{what} differ: rank 0: {}; {}; {so}",
            or_none(&first),
            all.join("; ")
        );
        found.push(finding(FindingKind::Different, who, text));
    }
    found
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

/// Edges of one kind, within hosts or between them, with a figure of each.
fn of_kind(
    report: &Report,
    is_local: bool,
    figure: impl Fn(&EdgeReport) -> Option<f64>,
) -> Vec<(&EdgeReport, f64)> {
    let edges = report.edges.iter().filter(|edge| edge.is_local == is_local);
    edges
        .filter_map(|edge| Some((edge, figure(edge)?)))
        .collect()
}

fn where_from(is_local: bool) -> &'static str {
    if is_local {
        "within hosts"
    } else {
        "between hosts"
    }
}

/// The slowest link of each kind, if it is far from the median.
fn slow(report: &Report) -> Vec<Finding> {
    let mut found = Vec::new();
    for is_local in [false, true] {
        let edges = of_kind(report, is_local, |edge| edge.bytes_per_second);
        let Some(median) = median(edges.iter().map(|(_, rate)| *rate).collect()) else {
            continue;
        };
        let mut far: Vec<_> = edges
            .into_iter()
            .filter(|(_, rate)| rate * FAR < median)
            .collect();
        far.sort_by(|a, b| a.1.total_cmp(&b.1));
        let Some((slowest, least)) = far.first() else {
            continue;
        };
        let mut text = format!(
            "the slowest link is from rank {} to rank {}: {}, {:.1} times slower than the median {} \
             ({})",
            slowest.from,
            slowest.to,
            rate(*least),
            median / least,
            where_from(is_local),
            rate(median)
        );
        if far.len() > 1 {
            text += &format!("; {} more are below a third of it", far.len() - 1);
        }
        found.push(finding(
            FindingKind::Slow,
            vec![slowest.from, slowest.to],
            text,
        ));
    }
    found
}

fn round_trips(report: &Report) -> Vec<Finding> {
    let mut found = Vec::new();
    for is_local in [false, true] {
        let edges = of_kind(report, is_local, |edge| edge.round_trip_seconds);
        let all = edges.iter().map(|(_, seconds)| *seconds).collect();
        let longest = edges.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let (Some(median), Some((edge, longest))) = (median(all), longest) else {
            continue;
        };
        if longest > FAR * median && longest - median > ROUND_TRIP_MIN {
            let text = format!(
                "the longest round trip is from rank {} to rank {}: {:.1} ms; the median {} is \
                 {:.1} ms",
                edge.from,
                edge.to,
                longest * 1e3,
                where_from(is_local),
                median * 1e3
            );
            found.push(finding(
                FindingKind::RoundTrip,
                vec![edge.from, edge.to],
                text,
            ));
        }
    }
    found
}

fn clocks(report: &Report) -> Vec<Finding> {
    let off = report.ranks.iter().filter_map(|rank| {
        let clock = rank.clock?;
        let sure = clock.seconds.abs() - clock.uncertainty_seconds;
        let side = if clock.seconds > 0.0 { "ahead of" } else { "behind" };
        let text = format!(
            "the clock of rank {} is {:.4} s (+-{:.4} s) {side} that of rank 0, more than {CLOCK_MAX} \
             s: times in logs do not compare, and certificates may count as expired or not yet \
             valid; let the hosts take their time from one server (NTP, chrony)",
            rank.rank,
            clock.seconds.abs(),
            clock.uncertainty_seconds
        );
        (sure > CLOCK_MAX).then(|| finding(FindingKind::Clock, vec![rank.rank], text))
    });
    off.collect()
}

/// The connections of a rank in a job, for control and for data: see "How many ranks" in
/// docs/many-machines.md.
fn connections(others: u64) -> u64 {
    let data = if others < ALL_TO_ALL_MAX {
        others
    } else {
        2 * u64::from(u64::BITS - others.leading_zeros())
    };
    others.min(NEIGHBOURS_MAX) + data
}

fn descriptors(report: &Report) -> Vec<Finding> {
    let others = report.ranks.len().saturating_sub(1) as u64;
    let needed = connections(others) + OTHER_DESCRIPTORS;
    let few = report.ranks.iter().filter_map(|rank| {
        let most = rank.facts.as_ref()?.descriptors_max?;
        let text = format!(
            "rank {} may open {most} file descriptors (hard limit); a job of {} processes may need \
             {needed}: raise it (`ulimit -Hn`, LimitNOFILE of systemd, `nofile` of a container)",
            rank.rank,
            others + 1
        );
        (most < needed).then(|| finding(FindingKind::Descriptors, vec![rank.rank], text))
    });
    few.collect()
}

/// Ranks with another list than rank 0. A rank may list itself at all addresses.
fn lists(guests: &Guests, listed: &[Option<String>]) -> Vec<Finding> {
    let is_everywhere = |address: &str| {
        let host = split(address).map_or("", |(host, _)| host);
        host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
    };
    let differs = |of: usize, rank: usize, theirs: &Option<String>, ours: &Option<String>| {
        let own = of == rank || rank == 0;
        let excused = |it: &Option<String>| it.as_deref().is_some_and(is_everywhere);
        theirs != ours && !(own && (excused(theirs) || excused(ours)))
    };
    let found = guests.iter().filter_map(|(of, guest)| {
        let theirs = &guest.card.listed;
        let mut both = theirs.iter().zip(listed).enumerate();
        let (rank, (theirs, ours)) =
            both.find(|(rank, (theirs, ours))| differs(*of, *rank, theirs, ours))?;
        let shown = |it: &Option<String>| it.clone().unwrap_or_else(|| "no address".to_string());
        let text = format!(
            "rank {of} lists another address of rank {rank}: {}, rank 0 lists {}; give all ranks the \
             same list, unless the ways to it differ",
            shown(theirs),
            shown(ours)
        );
        Some(finding(FindingKind::List, vec![*of], text))
    });
    found.collect()
}

fn translated(guests: &Guests) -> Vec<Finding> {
    let found = guests.iter().filter_map(|(rank, guest)| {
        let (from, seen) = (guest.card.from?, guest.seen?);
        let text = format!(
            "rank {rank} reaches rank 0 from {from}, and rank 0 sees {seen}: an address is translated \
             between them (NAT), so {from} may be of no use to others"
        );
        (from != seen).then(|| finding(FindingKind::Translated, vec![*rank], text))
    });
    found.collect()
}

fn sample(report: &Report) -> Vec<Finding> {
    let left_out = report.method.left_out;
    let text = format!(
        "{left_out} pairs were not measured, for the time: links between hosts that have another \
         measured pair come last"
    );
    let unmeasured = (left_out > 0).then(|| finding(FindingKind::Sample, Vec::new(), text));
    let present: BTreeSet<usize> = report.edges.iter().map(|edge| edge.from).collect();
    let all = report.ranks.len();
    let chosen = format!(
        "of {} pairs {} were looked at: {}",
        all * all.saturating_sub(1) / 2,
        report.method.pairs,
        report.method.chosen
    );
    let is_sample = report.method.pairs < all * all.saturating_sub(1) / 2 && !present.is_empty();
    let chosen = is_sample.then(|| finding(FindingKind::Sample, Vec::new(), chosen));
    chosen.into_iter().chain(unmeasured).collect()
}
