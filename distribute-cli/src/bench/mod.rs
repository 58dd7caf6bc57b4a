//! `bench`: competitors interleaved in one run, one JSON object a line for each.
//!
//! A figure is only worth its neighbours: machines drift, so every round measures every
//! competitor once, and what is reported is the median of the ratios within rounds.

mod all_reduce;
mod contenders;
mod cpu_time;
mod independent;
mod models;
mod parameter_server;
mod tpu;
mod train;
mod workers;

use clap::{Subcommand, ValueEnum};

use crate::failure::Failure;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// All-reduce of buffers, against a plain multi-threaded sum of the same buffers
    AllReduce(all_reduce::AllReduceArgs),
    /// Training throughput of every strategy, against hand-written burn loops
    Train(train::TrainArgs),
    /// Training throughput with parameter servers, against processes that train alone
    ParameterServer(parameter_server::ParameterServerArgs),
    /// Training throughput of compiled steps on a PJRT plugin, against burn's CPU backend
    Tpu(tpu::TpuArgs),
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchOutput {
    /// A table for people
    Text,
    /// One JSON object a line
    Json,
}

/// Runs a benchmark and prints its results to standard output.
///
/// # Errors
/// Invalid arguments, and whatever a strategy reports.
pub(crate) fn run(command: BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::AllReduce(args) => all_reduce::run(&args),
        BenchCommand::Train(args) => train::run(&args),
        BenchCommand::ParameterServer(args) => parameter_server::run(&args),
        BenchCommand::Tpu(args) => tpu::run(&args),
    }
}

/// The middle value; the mean of the two middle ones for an even count.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n.is_multiple_of(2) => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        n => sorted[n / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
