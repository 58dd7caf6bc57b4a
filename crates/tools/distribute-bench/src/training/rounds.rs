//! Rounds: every competitor once in each.

use std::time::Duration;

use distribute_core::Error;

use super::contenders::{Contender, Trained};
use super::cpu_time::process_cpu_time;
use crate::median;

/// Every competitor trains for so long before the first round.
const WARM_UP: Duration = Duration::from_millis(300);

/// How competitors are measured.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// Examples per replica and step.
    pub batch_size: usize,
    /// How often every competitor is measured.
    pub rounds: usize,
    /// For each competitor in each round.
    pub time: Duration,
}

/// What one competitor did in one round.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The competitor's name.
    pub name: &'static str,
    /// The number of replicas it trains on.
    pub replicas: usize,
    /// The round, from 0.
    pub round: usize,
    /// Examples of all replicas by time.
    pub examples_per_s: f64,
    /// The steps, with the CPU time of all processes that made them.
    pub trained: Trained,
}

/// Measures all competitors in each round, and hands each sample to `report` as it comes: the
/// samples of every round, in the order of the competitors.
///
/// # Errors
/// The errors of the competitors and of `report`.
pub fn compare<E: From<Error>>(
    contenders: &mut [Box<dyn Contender>],
    comparison: &Comparison,
    mut report: impl FnMut(&Sample) -> Result<(), E>,
) -> Result<Vec<Vec<Sample>>, E> {
    for contender in contenders.iter_mut() {
        // So that no first round pays for memory that the others have already.
        contender.train_for(WARM_UP.min(comparison.time))?;
    }
    let mut one = |contender: &mut Box<dyn Contender>, round| {
        let sample = measure(contender.as_mut(), comparison, round)?;
        report(&sample).map(|()| sample)
    };
    let rounds = 0..comparison.rounds;
    rounds
        .map(|round| contenders.iter_mut().map(|it| one(it, round)).collect())
        .collect()
}

fn measure(
    contender: &mut dyn Contender,
    comparison: &Comparison,
    round: usize,
) -> Result<Sample, Error> {
    let cpu_before = process_cpu_time();
    let mut trained = contender.train_for(comparison.time)?;
    let own = process_cpu_time().zip(cpu_before);
    trained.cpu = trained.cpu.or(own.map(|(after, before)| after - before));
    let replicas = contender.replicas();
    Ok(Sample {
        name: contender.name(),
        replicas,
        round,
        examples_per_s: trained.steps_per_s * (comparison.batch_size * replicas) as f64,
        trained,
    })
}

/// What the competitor of this column did in each round, in examples by time.
fn rates(rounds: &[Vec<Sample>], column: usize) -> impl Iterator<Item = f64> {
    let samples = rounds.iter().filter_map(move |round| round.get(column));
    samples.map(|sample| sample.examples_per_s)
}

/// The median over the rounds of how many times as fast one competitor is as another one.
pub fn median_ratio(rounds: &[Vec<Sample>], column: usize, other: usize) -> f64 {
    let pairs = rates(rounds, column).zip(rates(rounds, other));
    median(&pairs.map(|(own, other)| own / other).collect::<Vec<_>>())
}

/// Medians, and the medians of the ratios to others of the same round: the hand-written loop, the
/// same implementation with one replica, as many replicas of one process, and as many loops that
/// do not communicate.
pub fn table(rounds: &[Vec<Sample>]) -> Vec<String> {
    let first = rounds.first().map_or(&[][..], Vec::as_slice);
    let find = |name: &str, replicas: usize| {
        let wanted = |sample: &Sample| sample.name == name && sample.replicas == replicas;
        first.iter().position(wanted)
    };
    let mut rows = vec![format!(
        "{:<16} {:>8} {:>10} {:>16} {:>8} {:>12} {:>15}",
        "impl",
        "replicas",
        "images/s",
        "to hand-written",
        "to one",
        "to mirrored",
        "to independent"
    )];
    for (column, Sample { name, replicas, .. }) in first.iter().enumerate() {
        let ratio_to = |other: Option<usize>| {
            let ratio = |other| format!("{:.3}", median_ratio(rounds, column, other));
            other.map_or("-".to_string(), ratio)
        };
        let rates: Vec<f64> = rates(rounds, column).collect();
        // One replica needs no comparison with several.
        let several = |other| (*replicas > 1).then_some(other).flatten();
        rows.push(format!(
            "{name:<16} {replicas:>8} {:>10.0} {:>16} {:>8} {:>12} {:>15}",
            median(&rates),
            ratio_to(Some(0)),
            ratio_to(several(find(name, 1))),
            ratio_to(several(find("mirrored", *replicas))),
            ratio_to(several(find("hand-written", *replicas))),
        ));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::{Sample, Trained, table};

    #[test]
    fn the_table_compares_within_rounds() {
        let sample = |name, replicas, examples_per_s| Sample {
            name,
            replicas,
            round: 0,
            examples_per_s,
            trained: Trained::default(),
        };
        let round = |speed: f64, mirrored: f64| {
            [
                sample("hand-written", 1, 100.0 * speed),
                sample("one-device", 1, 99.0 * speed),
                sample("hand-written", 2, 190.0 * speed),
                sample("mirrored", 1, 98.0 * speed),
                sample("mirrored", 2, mirrored * speed),
                sample("multi-worker", 2, 170.0 * speed),
            ]
        };
        // The machine is half as fast in the second round, which no ratio shows.
        let rounds = [round(1.0, 180.0), round(0.5, 185.0), round(1.0, 190.0)];
        insta::assert_snapshot!(table(&rounds.map(Vec::from)).join("\n"), @r"
        impl             replicas   images/s  to hand-written   to one  to mirrored  to independent
        hand-written            1        100            1.000        -            -               -
        one-device              1         99            0.990        -            -               -
        hand-written            2        190            1.900    1.900        1.027           1.000
        mirrored                1         98            0.980        -            -               -
        mirrored                2        180            1.850    1.888        1.000           0.974
        multi-worker            2        170            1.700        -        0.919           0.895
        ");
    }
}
