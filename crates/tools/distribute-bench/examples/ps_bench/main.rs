//! What parameter servers cost, between processes of this machine.
//!
//! `cargo run --release -p distribute-bench --features bench,training --example ps_bench --
//! exchange [MiB] [rounds] [variables] [rule]` times pull plus push beside raw TCP. The rule is
//! `sgd` or `adam`.
//! Rounds are interleaved: raw, servers, raw, servers, ...; the median of the ratios is printed,
//! and the processor time that both took.
//!
//! `... ps_bench -- steps [kind] [steps] [rounds]` says what a step costs beside its computation:
//!
//! - `nothing`: each closure does nothing. Printed: wall and processor time of a closure.
//! - `transport`: each closure pulls and pushes 347,000 parameters in 8 variables (Adam) and
//!   computes nothing. Printed: wall and processor time of a step.
//! - `cnn`: each closure is a step of `mnist-cnn`, batch 64 (Adam). Rounds are interleaved with two
//!   hand-written loops; printed: the ratio of steps/s, and of processor time.
//!
//! All processes keep freed memory, as `distribute-cli` does; `PS_BENCH_MALLOC=default` leaves the
//! allocator alone.

mod cnn;
mod exchange;
mod processes;
mod steps;

use processes::{Result, keep_memory, number};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let what = arguments.first().map_or("exchange", String::as_str);
    let rest = arguments.get(1..).unwrap_or_default();
    match what {
        "serve" => return processes::serve(),
        "raw" => return exchange::serve_raw(number(rest, 0, 100 << 20)?),
        "work" => return steps::work(),
        "alone" => return steps::alone(),
        _ => {}
    }
    if let Some(status) = keep_memory(&arguments)? {
        std::process::exit(status);
    }
    match what {
        "exchange" => exchange::run(rest),
        "steps" => steps::run(rest),
        other => Err(format!("there is no `{other}`, only exchange and steps").into()),
    }
}
