//! `bench`: competitors interleaved in one run, with one JSON object per line for each.

mod all_reduce;
mod parameter_server;
mod tpu;
mod train;

use std::time::Duration;

use crate::failure::Failure;
use crate::flags::BenchCommand;

/// Runs a benchmark and prints its results to standard output.
///
/// # Errors
/// Invalid arguments, and errors of a strategy.
pub(super) fn run(command: BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::AllReduce(args) => all_reduce::run(&args),
        BenchCommand::Train(args) => train::run(&args),
        BenchCommand::ParameterServer(args) => parameter_server::run(&args),
        BenchCommand::Tpu(args) => tpu::run(&args),
    }
}

/// The time of a competitor in a round.
fn time(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Failure::usage("--seconds must be a positive number"))
}
