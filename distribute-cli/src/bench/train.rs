//! `bench train`: images per second of every strategy beside a hand-written burn loop.

use std::time::Duration;

use clap::Args;
use distribute_core::{
    CentralStorageStrategy, LogicalDevice, MirroredStrategy, OneDeviceStrategy, Result,
};
use serde_json::json;

use super::contenders::{Contender, HandWritten, UnderStrategy};
use super::cpu_time::process_cpu_time;
use super::independent::Independent;
use super::workers::{self, Workers};
use super::{BenchOutput, median};
use crate::events::line;
use crate::failure::Failure;

/// Every competitor trains for so long before the first round.
const WARM_UP: Duration = Duration::from_millis(300);

/// Options of `bench train`.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// Images per replica and step
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Numbers of replicas, of loops without exchange, and of worker processes of one replica
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    replicas: Vec<usize>,
    /// Rounds; every round measures every competitor once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds per competitor and round
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How results are printed
    #[arg(long, value_enum, default_value_t = BenchOutput::Text)]
    output: BenchOutput,
    /// This process is a worker, started by the command itself
    #[arg(long, hide = true)]
    worker: bool,
}

#[derive(Debug, Clone)]
struct Sample {
    name: &'static str,
    replicas: usize,
    images_per_s: f64,
}

pub(super) fn run(args: &TrainArgs) -> Result<(), Failure> {
    if args.batch_size == 0 || args.rounds == 0 || args.replicas.contains(&0) {
        return Err(Failure::usage(
            "--batch-size, --rounds and --replicas must be at least 1",
        ));
    }
    if args.worker {
        return workers::serve(args.batch_size);
    }
    let seconds = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| Failure::usage("--seconds must be a positive number"))?;
    compare(
        &mut contenders(args)?,
        &Comparison {
            bench: "train",
            batch_size: args.batch_size,
            rounds: args.rounds,
            seconds,
            output: args.output,
        },
    )
}

/// How competitors are measured.
pub(super) struct Comparison {
    /// What is measured.
    pub(super) bench: &'static str,
    /// Images per replica and step.
    pub(super) batch_size: usize,
    pub(super) rounds: usize,
    /// For each competitor in each round.
    pub(super) seconds: Duration,
    pub(super) output: BenchOutput,
}

/// Measures all competitors in each round, and prints what they did.
pub(super) fn compare(
    contenders: &mut [Box<dyn Contender>],
    comparison: &Comparison,
) -> Result<(), Failure> {
    for contender in contenders.iter_mut() {
        // So that nobody's first round pays for memory that the others have already.
        contender.train_for(WARM_UP.min(comparison.seconds))?;
    }
    let mut samples = Vec::new();
    for round in 0..comparison.rounds {
        for contender in contenders.iter_mut() {
            samples.push(measure(contender.as_mut(), comparison, round)?);
        }
    }
    if comparison.output == BenchOutput::Text {
        for row in table(&samples, contenders.len()) {
            line(&row)?;
        }
    }
    Ok(())
}

fn contenders(args: &TrainArgs) -> Result<Vec<Box<dyn Contender>>> {
    let batch = args.batch_size;
    let one_device = OneDeviceStrategy::new(LogicalDevice::cpu(0))?;
    let mut list: Vec<Box<dyn Contender>> = vec![
        Box::new(HandWritten::new(batch)),
        Box::new(UnderStrategy::new("one-device", one_device, batch)?),
    ];
    for &replicas in args.replicas.iter().filter(|replicas| **replicas > 1) {
        list.push(Box::new(Independent::new(replicas, batch)?));
    }
    for &replicas in &args.replicas {
        let mirrored = MirroredStrategy::builder().replicas(replicas).build()?;
        list.push(Box::new(UnderStrategy::new("mirrored", mirrored, batch)?));
    }
    for &workers in &args.replicas {
        list.push(Box::new(Workers::new(workers, batch)?));
    }
    for &replicas in &args.replicas {
        let central = CentralStorageStrategy::with_replicas(replicas)?;
        list.push(Box::new(UnderStrategy::new(
            "central-storage",
            central,
            batch,
        )?));
    }
    Ok(list)
}

fn measure(
    contender: &mut dyn Contender,
    args: &Comparison,
    round: usize,
) -> Result<Sample, Failure> {
    let cpu_before = process_cpu_time();
    let trained = contender.train_for(args.seconds)?;
    let own = process_cpu_time().zip(cpu_before);
    let cpu = trained.cpu.or(own.map(|(after, before)| after - before));
    let (name, replicas) = (contender.name(), contender.replicas());
    let images_per_step = (args.batch_size * replicas) as f64;
    let images = trained.steps as f64 * images_per_step;
    let images_per_s = trained.steps_per_s * images_per_step;
    if args.output == BenchOutput::Json {
        let object = json!({
            "bench": args.bench, "impl": name, "replicas": replicas, "round": round,
            "images_per_s": images_per_s, "steps": trained.steps, "batch_size": args.batch_size,
            "cpu_us_per_image": cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / images),
            "loss": trained.loss,
        });
        line(&object.to_string())?;
    }
    Ok(Sample {
        name,
        replicas,
        images_per_s,
    })
}

/// Medians, and the medians of the ratios to others of the same round: the hand-written loop, the
/// same implementation with one replica, as many replicas of one process, and as many loops that
/// do not communicate.
fn table(samples: &[Sample], per_round: usize) -> Vec<String> {
    let first = &samples[..per_round];
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
            let Some(other) = other else {
                return "-".to_string();
            };
            let rounds = samples.chunks(per_round);
            let ratios = rounds.map(|round| round[column].images_per_s / round[other].images_per_s);
            format!("{:.3}", median(&ratios.collect::<Vec<_>>()))
        };
        let of_column = samples.iter().skip(column).step_by(per_round);
        let rates: Vec<f64> = of_column.map(|sample| sample.images_per_s).collect();
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
    use super::{Sample, table};

    #[test]
    fn the_table_compares_within_rounds() {
        let sample = |name, replicas, images_per_s| Sample {
            name,
            replicas,
            images_per_s,
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
        let samples = [round(1.0, 180.0), round(0.5, 185.0), round(1.0, 190.0)].concat();
        insta::assert_snapshot!(table(&samples, 6).join("\n"), @r"
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
