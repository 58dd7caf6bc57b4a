//! Ranks that were slow for long before the group failed.

use std::collections::BTreeMap;

use distribute_collectives::flight_record::Line;
use distribute_collectives::stragglers::{Slow, StepTimes, Stragglers, WINDOWS};

/// The operations of a window, at least: fewer say nothing about a rank.
const OPERATIONS_MIN: usize = 8;
/// The windows into which records are divided, at most.
const WINDOWS_MAX: usize = 4 * WINDOWS as usize;

/// The operations of one rank that it has completed, by number.
pub(crate) type Calls<'a> = BTreeMap<u64, &'a Line>;

/// The ranks that took longer than the others from one operation to the next, for long. A record
/// does not say what a rank does between operations: it computes, or waits for its data.
pub(crate) fn slow(ranks: &[(usize, Calls<'_>)]) -> Vec<(usize, String)> {
    let operations = common(ranks);
    let windows = (operations.len() / OPERATIONS_MIN).min(WINDOWS_MAX);
    if ranks.len() < 2 || windows < WINDOWS as usize {
        return Vec::new();
    }
    let mut watched = Stragglers::new(ranks.len());
    for window in operations.chunks(operations.len().div_ceil(windows)) {
        let times: Vec<StepTimes> = ranks.iter().map(|rank| times(&rank.1, window)).collect();
        watched.window(window[0], &times);
    }
    let number = |slow: &Slow| ranks.get(slow.rank).map_or(slow.rank, |rank| rank.0);
    let said = watched.slow().into_iter().filter_map(|slow| {
        let ratio = slow.ratio()?;
        let (rank, since) = (number(&slow), slow.since_step);
        let until = slow.until_step;
        let until = until.map_or(String::new(), |until| format!(" until operation {until}"));
        let against = match ranks {
            [first, second] => {
                let other = if rank == first.0 { second.0 } else { first.0 };
                format!("rank {other}")
            }
            _ => "the median".to_string(),
        };
        Some((
            rank,
            format!(
                "rank {rank} computed, or waited for data, {ratio:.1} x as long as {against} \
                 between operations, since operation {since}{until}"
            ),
        ))
    });
    said.collect()
}

/// The operations that all ranks have completed, as well as the ones before them.
fn common(ranks: &[(usize, Calls<'_>)]) -> Vec<u64> {
    let Some(((_, first), others)) = ranks.split_first() else {
        return Vec::new();
    };
    let is_done = |calls: &Calls<'_>, sequence: u64| {
        let before = sequence.checked_sub(1);
        let has_ended = |sequence| calls.get(&sequence).is_some_and(|it| it.end_us.is_some());
        before.is_some_and(has_ended) && has_ended(sequence)
    };
    let all = first.keys().copied().filter(|it| is_done(first, *it));
    all.filter(|it| others.iter().all(|(_, calls)| is_done(calls, *it)))
        .collect()
}

/// What a rank did, on average, from the end of the operation before to the end of each of these.
fn times(calls: &Calls<'_>, window: &[u64]) -> StepTimes {
    let (mut own, mut exchange) = (0.0, 0.0);
    for sequence in window {
        let before = calls.get(&(sequence - 1)).and_then(|line| line.end_us);
        let Some((line, before)) = calls.get(sequence).zip(before) else {
            continue;
        };
        let end = line.end_us.unwrap_or(line.begin_us);
        own += line.begin_us.saturating_sub(before) as f64;
        exchange += end.saturating_sub(line.begin_us) as f64;
    }
    let per_operation = 1e-6 / window.len().max(1) as f64;
    StepTimes {
        compute: own * per_operation,
        exchange: exchange * per_operation,
        ..StepTimes::default()
    }
}
