//! A worker process for checking what happens between workers: see `conformance::WorkerProgram`.
#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match conformance::run_worker() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
