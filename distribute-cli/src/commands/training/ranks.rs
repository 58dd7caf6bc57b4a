//! How the ranks of a run compare, as JSON.

use distribute_core::collectives::stragglers::Cause;
use distribute_fit::{RankReport, json_number};
use serde_json::{Value, json};

/// Digits of a share or a ratio: they are measured.
fn rounded(value: f64) -> Value {
    json_number((value * 1e4).round() / 1e4)
}

/// How the steps of each rank divide.
pub(super) fn shares(report: &RankReport) -> Vec<Value> {
    let ranks = report.shares.iter().zip(&report.hosts).enumerate();
    let ranks = ranks.map(|(rank, (shares, host))| {
        json!({
            "rank": rank,
            "host": host,
            "compute": rounded(shares.compute),
            "data": rounded(shares.data),
            "exchange": rounded(shares.exchange),
            "waiting": rounded(shares.waiting),
            "other": rounded(shares.other),
        })
    });
    ranks.collect()
}

/// The ranks that were slow for long.
pub(super) fn slow(report: &RankReport) -> Vec<Value> {
    let all = report.slow.iter().map(|slow| {
        let cause = match slow.cause {
            Cause::Data => "data",
            _ => "compute",
        };
        json!({
            "rank": slow.rank,
            "host": report.hosts.get(slow.rank),
            "cause": cause,
            "ratio": slow.ratio().map(rounded),
            "past_ratio": slow.past_ratio.map(rounded),
            "held_up": rounded(slow.held_up),
            "since_step": slow.since_step,
            "until_step": slow.until_step,
        })
    });
    all.collect()
}
