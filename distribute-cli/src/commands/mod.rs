//! The commands.

#[cfg(feature = "full")]
mod bench;
mod blame;
mod cert_hosts;
mod certificates;
mod certs;
#[cfg(feature = "full")]
mod conformance;
mod doctor;
mod doctor_peers;
mod dry_run;
mod evaluate;
mod evaluator;
mod export;
mod gpus;
mod launch;
mod libraries;
mod manual;
mod new;
#[cfg(feature = "full")]
mod parameter_server;
mod predict;
mod predictions;
mod predictions_of_outputs;
mod report;
mod restore;
mod same_bits;
mod start;
mod train;
mod training;
mod whole_directory;

use crate::failure::Failure;
use crate::flags::Command;
#[cfg(not(feature = "full"))]
use crate::left_out::parameter_server;
use crate::phases::Phases;

/// Runs a command; `phases` collects its phases, if requested.
pub(crate) fn run(command: Command, phases: Option<Phases>) -> Result<(), Failure> {
    match command {
        Command::Train(args) => train::run(*args, &phases.unwrap_or_default()),
        Command::Evaluate(args) => evaluate::run(args),
        Command::Predict(args) => predict::run(args),
        Command::Export(args) => export::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "full")]
        Command::Bench(args) => bench::run(args.what),
        #[cfg(feature = "full")]
        Command::Conformance(args) => conformance::run(args),
        Command::Blame(args) => blame::run(&args),
        Command::SameBits(args) => same_bits::run(&args),
        Command::Certs(args) => certs::run(&args),
        Command::New(args) => new::run(&args),
        Command::Launch(args) => launch::run(args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::pages(&args),
        Command::LaunchGuard => launch::guard(),
    }
}
