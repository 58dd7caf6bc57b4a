//! `bench tpu`: examples per second of compiled steps beside those of burn's own backend.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use distribute_core::{LogicalDevice, OneDeviceStrategy, Strategy};
use distribute_tpu_xla::{TpuClusterResolver, TpuStrategy};
use serde_json::json;

use super::contenders::{Contender, UnderStrategy};
use super::models::{BenchModel, ModelUnder};
use super::{BenchOutput, median};
use crate::events::line;
use crate::failure::Failure;
use crate::tpu::connect;

/// Every competitor trains for so long before the first round; compiling is before that.
const WARM_UP: Duration = Duration::from_millis(300);

/// Options of `bench tpu`.
#[derive(Debug, Args)]
pub(crate) struct TpuArgs {
    /// Name or address of the TPU [default: COLAB_TPU_ADDR, TPU_NAME, or that of this machine]
    #[arg(long, value_name = "NAME")]
    tpu: Option<String>,
    /// The PJRT plugin [default: the one that `doctor` shows; docs/tpu.md has the search]
    #[arg(long, value_name = "FILE")]
    pjrt_plugin: Option<PathBuf>,
    /// The model
    #[arg(long, value_enum, value_name = "NAME", default_value_t = BenchModel::MnistCnn)]
    model: BenchModel,
    /// Examples per replica and step
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Numbers of replicas
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
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
}

/// The figures of one competitor.
struct Column {
    contender: Box<dyn Contender>,
    step_ms: Vec<f64>,
}

pub(super) fn run(args: &TpuArgs) -> Result<(), Failure> {
    let seconds = Duration::try_from_secs_f64(args.seconds).ok();
    let Some(time) = seconds.filter(|time| !time.is_zero()) else {
        return Err(Failure::usage("--seconds must be more than 0"));
    };
    if args.batch_size == 0 || args.rounds == 0 || args.replicas.contains(&0) {
        return Err(Failure::usage(
            "--batch-size, --rounds and --replicas must be at least 1",
        ));
    }
    let mut columns = columns(args)?;
    for column in &mut columns {
        column.contender.train_for(WARM_UP)?;
    }
    for _ in 0..args.rounds {
        for column in &mut columns {
            let trained = column.contender.train_for(time)?;
            column.step_ms.push(1e3 / trained.steps_per_s);
        }
    }
    report(args, &columns)
}

fn columns(args: &TpuArgs) -> Result<Vec<Column>, Failure> {
    let resolver = TpuClusterResolver::new(args.tpu.as_deref())?;
    let system = connect(&resolver, args.pjrt_plugin.as_deref())?.initialize()?;
    let one = OneDeviceStrategy::new(LogicalDevice::cpu(0))?;
    let mut contenders = vec![contender("one-device", one, args)?];
    for replicas in &args.replicas {
        let strategy = TpuStrategy::builder(&system).replicas(*replicas).build()?;
        contenders.push(contender("tpu", strategy, args)?);
    }
    let columns = contenders.into_iter().map(|contender| Column {
        contender,
        step_ms: Vec::with_capacity(args.rounds),
    });
    Ok(columns.collect())
}

/// The tutorial's CNN is the one of `bench train`, written by hand; the others are built in.
fn contender<S: Strategy + 'static>(
    name: &'static str,
    strategy: S,
    args: &TpuArgs,
) -> Result<Box<dyn Contender>, Failure> {
    let size = args.batch_size;
    Ok(match args.model {
        BenchModel::MnistCnn => Box::new(UnderStrategy::new(name, strategy, size)?),
        model => Box::new(ModelUnder::new(name, strategy, model, size)?),
    })
}

/// Medians, and the median of the ratios to the first competitor within a round.
fn report(args: &TpuArgs, columns: &[Column]) -> Result<(), Failure> {
    if args.output == BenchOutput::Text {
        line(&format!(
            "{:<12} {:>8} {:>9} {:>10} {:>14}",
            "impl", "replicas", "step ms", "examples/s", "to one-device"
        ))?;
    }
    for column in columns {
        let replicas = column.contender.replicas();
        let step_ms = median(&column.step_ms);
        let examples_per_s = (args.batch_size * replicas) as f64 / step_ms * 1e3;
        let rounds = column.step_ms.iter().zip(&columns[0].step_ms);
        let ratios: Vec<f64> = rounds
            .map(|(own, first)| first / own * replicas as f64)
            .collect();
        let (name, ratio) = (column.contender.name(), median(&ratios));
        line(&match args.output {
            BenchOutput::Text => format!(
                "{name:<12} {replicas:>8} {step_ms:>9.2} {examples_per_s:>10.0} {ratio:>14.3}"
            ),
            BenchOutput::Json => json!({
                "bench": "tpu",
                "model": args.model.to_string(),
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
