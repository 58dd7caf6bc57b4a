//! What the commands do.

mod bench;
mod blame;
mod certs;
mod conformance;
mod doctor;
mod evaluate;
mod evaluator;
mod gpus;
mod launch;
mod libraries;
mod output_file;
mod parameter_server;
mod predict;
mod restore;
mod start;
mod train;
mod training;

use crate::failure::Failure;
use crate::flags::Command;

/// Runs a command.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Train(args) => train::run(*args),
        Command::Evaluate(args) => evaluate::run(args),
        Command::Predict(args) => predict::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => bench::run(args.what),
        Command::Conformance(args) => conformance::run(args),
        Command::Blame(args) => blame::run(&args),
        Command::Certs(args) => certs::run(&args),
        Command::Launch(args) => launch::run(args),
        Command::LaunchGuard => launch::guard(),
    }
}
