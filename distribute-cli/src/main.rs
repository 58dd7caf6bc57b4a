//! The command line program: `distribute-cli train` and the commands around it.
#![deny(unsafe_code)]
#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[expect(unsafe_code, reason = "each use says why it is sound")]
mod allocator;
mod cluster;
mod commands;
#[cfg(feature = "full")]
mod compile_watch;
mod config;
mod configuration;
mod cpu_features;
mod events;
mod examples_seen;
mod failure;
mod flags;
mod job_progress;
#[cfg(not(feature = "full"))]
mod left_out;
#[cfg(feature = "full")]
mod libtpu;
mod log;
mod log_directory;
mod memory;
mod metrics;
mod notes;
mod option_names;
mod output_file;
#[cfg(feature = "full")]
mod parameter_server;
mod permanent_errors;
mod phases;
mod repeats;
mod schedule;
mod server_errors;
mod signal_table;
mod signals;
mod strategies;
mod task;
#[cfg(feature = "full")]
mod tpu;
mod validation;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use failure::Failure;
#[cfg(not(feature = "full"))]
use left_out::tpu;
use phases::Phases;

fn main() -> ExitCode {
    allocator::keep_freed_pages();
    signal_table::outlive_file_limits();
    let cli = match config::parse(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(Ok(help)) => {
            return match events::line(help.trim_end()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => failure.report(false),
            };
        }
        Err(Err(failure)) => return failure.report(false),
    };
    let phases = cli.command.wants_phases().then(Phases::default);
    let log = log::install(&cli.log, phases.clone());
    let verbose = cli.command.verbose();
    if !verbose {
        // A replica's panic is reported by its strategy, any other one below.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| commands::run(cli.command, phases)));
    log.finish();
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => failure.report(verbose),
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_string());
            Failure::failed(format!(
                "this is a bug, please report it with the output of --verbose: {text}"
            ))
            .report(verbose)
        }
    }
}
