//! `bench tpu`: examples per second of compiled steps, compared with burn's own backend.

use distribute_bench::median;
use distribute_bench::training::{BenchModel, Comparison, Sample, compare, compiled, median_ratio};
use distribute_tpu_xla::TpuClusterResolver;
use serde_json::json;

use crate::events::line;
use crate::failure::Failure;
use crate::flags::{BenchOutput, CompiledArgs};
use crate::tpu::connect;

pub(super) fn run(args: &CompiledArgs) -> Result<(), Failure> {
    let seconds = super::time(args.seconds).ok();
    let Some(time) = seconds.filter(|time| !time.is_zero()) else {
        return Err(Failure::usage("--seconds must be more than 0"));
    };
    if args.batch_size == 0 || args.rounds == 0 || args.replicas.contains(&0) {
        return Err(Failure::usage(
            "--batch-size, --rounds and --replicas must be at least 1",
        ));
    }
    let resolver = TpuClusterResolver::new(args.tpu.as_deref().unwrap_or_default())?;
    let system = connect(&resolver, args.pjrt_plugin.as_deref())?.initialize()?;
    let comparison = Comparison {
        batch_size: args.batch_size,
        rounds: args.rounds,
        time,
    };
    let model = args.model.into();
    let mut contenders = compiled(&system, model, args.batch_size, &args.replicas)?;
    let rounds = compare(&mut contenders, &comparison, |_| Ok::<_, Failure>(()))?;
    report(args, model, &rounds)
}

/// Medians, and the median of the ratios to the first competitor within a round.
fn report(args: &CompiledArgs, model: BenchModel, rounds: &[Vec<Sample>]) -> Result<(), Failure> {
    if args.output == BenchOutput::Text {
        line(&format!(
            "{:<12} {:>8} {:>9} {:>10} {:>14}",
            "impl", "replicas", "step ms", "examples/s", "to one-device"
        ))?;
    }
    for (column, sample) in rounds.iter().take(1).flatten().enumerate() {
        let (name, replicas) = (sample.name, sample.replicas);
        let steps = rounds.iter().filter_map(|round| round.get(column));
        let step_ms: Vec<f64> = steps.map(|it| 1e3 / it.trained.steps_per_s).collect();
        let (step_ms, ratio) = (median(&step_ms), median_ratio(rounds, column, 0));
        let examples_per_s = (args.batch_size * replicas) as f64 / step_ms * 1e3;
        line(&match args.output {
            BenchOutput::Text => format!(
                "{name:<12} {replicas:>8} {step_ms:>9.2} {examples_per_s:>10.0} {ratio:>14.3}"
            ),
            BenchOutput::Json => json!({
                "bench": "tpu",
                "model": model.to_string(),
                "impl": name,
                "replicas": replicas,
                "batch_size": args.batch_size,
                "step_ms": step_ms,
                "examples_per_s": examples_per_s,
                "to_one_device": ratio,
            })
            .to_string(),
        })?;
    }
    Ok(())
}
