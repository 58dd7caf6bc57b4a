//! `bench train`: images per second of every strategy, compared with a hand-written burn loop.

use distribute_bench::training::{
    Comparison, Contender, Sample, compare, serve_worker, strategies, table,
};
use serde_json::json;

use super::time;
use crate::events::line;
use crate::failure::Failure;
use crate::flags::{BenchOutput, StrategiesArgs};

pub(super) fn run(args: &StrategiesArgs) -> Result<(), Failure> {
    if args.batch_size == 0 || args.rounds == 0 || args.replicas.contains(&0) {
        return Err(Failure::usage(
            "--batch-size, --rounds and --replicas must be at least 1",
        ));
    }
    if args.worker {
        return Ok(serve_worker(args.batch_size, std::io::stdout())?);
    }
    let comparison = Comparison {
        batch_size: args.batch_size,
        rounds: args.rounds,
        time: time(args.seconds)?,
    };
    let worker = ["bench", "train", "--worker"];
    let mut contenders = strategies(args.batch_size, &args.replicas, &worker)?;
    print("train", &mut contenders, &comparison, args.output)
}

/// Measures all competitors in each round, and prints the results.
pub(super) fn print(
    bench: &str,
    contenders: &mut [Box<dyn Contender>],
    comparison: &Comparison,
    output: BenchOutput,
) -> Result<(), Failure> {
    let rounds = compare(contenders, comparison, |sample| match output {
        BenchOutput::Json => line(&json_sample(bench, comparison.batch_size, sample)),
        BenchOutput::Text => Ok(()),
    })?;
    if output == BenchOutput::Text {
        for row in table(&rounds) {
            line(&row)?;
        }
    }
    Ok(())
}

fn json_sample(bench: &str, batch_size: usize, sample: &Sample) -> String {
    let trained = &sample.trained;
    let images = trained.steps as f64 * (batch_size * sample.replicas) as f64;
    let object = json!({
        "bench": bench, "impl": sample.name, "replicas": sample.replicas, "round": sample.round,
        "images_per_s": sample.examples_per_s, "steps": trained.steps, "batch_size": batch_size,
        "cpu_us_per_image": trained.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / images),
        "loss": trained.loss,
    });
    object.to_string()
}
