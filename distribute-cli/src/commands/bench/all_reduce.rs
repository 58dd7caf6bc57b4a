//! `bench all-reduce`: threads beside a plain sum of the same buffers, or processes, like
//! nccl-tests, or GPUs.

use std::process::Command;

use distribute_bench::all_reduce::processes::{self, ProcessBench, SizeReport};
use distribute_bench::all_reduce::{AllReduceBench, AllReduceReport, Samples, all_reduce};
use distribute_core::Error;
use distribute_core::collectives::ProcessTransport;
use serde_json::json;

use crate::events::line;
use crate::failure::Failure;
use crate::flags::{AllReduceArgs, BenchOutput, BenchTransport};
use crate::notes::wrapped;

/// Measured operations of each size on GPUs.
#[cfg(feature = "nccl")]
const NCCL_ITERATIONS: usize = 20;

pub(super) fn run(args: &AllReduceArgs) -> Result<(), Failure> {
    if args.world == 0 || args.iterations == Some(0) {
        return Err(Failure::usage(
            "--world and --iterations must be at least 1",
        ));
    }
    if args.transport == BenchTransport::Nccl {
        return between_gpus(args);
    }
    match (args.transport.between_processes(), args.rank) {
        (None, _) => between_threads(args),
        (Some(transport), None) => between_processes(args, transport),
        (Some(transport), Some(rank)) => {
            let bench = process_bench(args, transport);
            let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
            processes::run_rank(&bench, rank, &mut input, &mut output).map_err(Error::from)?;
            Ok(())
        }
    }
}

fn process_bench(args: &AllReduceArgs, transport: ProcessTransport) -> ProcessBench {
    ProcessBench {
        world_size: args.world,
        transport,
        algorithm: args.algorithm.into(),
        dtype: args.dtype.into(),
        sizes_bytes: args.bytes.clone(),
        iterations: args.iterations,
        seconds: 0.5,
    }
}

/// Starts this program once per rank and prints what rank 0 reports.
fn between_processes(args: &AllReduceArgs, transport: ProcessTransport) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    let own: Vec<_> = std::env::args_os().skip(1).collect();
    let command = |rank: usize| {
        let mut command = Command::new(&program);
        command.args(&own).arg("--rank").arg(rank.to_string());
        command
    };
    print_header(args)?;
    let mut printed = Ok(());
    let mut last = String::new();
    processes::run(&process_bench(args, transport), command, &mut |report| {
        if printed.is_ok() {
            printed = print_size(args, report);
            last.clone_from(&report.selection);
        }
    })
    .map_err(Error::from)?;
    printed?;
    print_selection(args, &last)
}

fn print_header(args: &AllReduceArgs) -> Result<(), Failure> {
    if args.output == BenchOutput::Json {
        return Ok(());
    }
    line(&format!(
        "{:<12} {:>2} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "impl", "n", "bytes", "median us", "algbw GB/s", "busbw GB/s", "cpu us", "memory MiB"
    ))
}

/// The line below the table about the chosen algorithm.
fn print_selection(args: &AllReduceArgs, selection: &str) -> Result<(), Failure> {
    match args.output {
        BenchOutput::Text => line(&wrapped(selection, 4)),
        BenchOutput::Json => Ok(()),
    }
}

fn print_size(args: &AllReduceArgs, report: &SizeReport) -> Result<(), Failure> {
    let name = format!("ours-{}", args.transport.name());
    let algbw = report.algorithm_bandwidth_gb_s();
    let busbw = report.bus_bandwidth_gb_s(args.world);
    if args.output == BenchOutput::Json {
        let object = json!({
            "bench": "allreduce", "impl": name, "n": args.world, "bytes": report.size_bytes,
            "iters": report.iterations, "us": report.median_us, "min_us": report.min_us,
            "max_us": report.max_us, "algbw": algbw, "busbw": busbw, "cpu_us": report.cpu_us,
            "overhead_bytes": report.overhead_bytes, "selection": report.selection,
        });
        return line(&object.to_string());
    }
    line(&format!(
        "{name:<12} {:>2} {:>9} {:>10.1} {algbw:>10.2} {busbw:>10.2} {:>10.1} {:>10.1}",
        args.world,
        report.size_bytes,
        report.median_us,
        report.cpu_us,
        report.overhead_bytes as f64 / f64::from(1 << 20),
    ))
}

fn between_threads(args: &AllReduceArgs) -> Result<(), Failure> {
    if args.output == BenchOutput::Text {
        line(&format!(
            "{:<12} {:>2} {:>9} {:>10} {:>10} {:>10} {:>10} {:>8}",
            "impl", "n", "bytes", "median us", "algbw GB/s", "busbw GB/s", "cpu us", "to sum"
        ))?;
    }
    for &bytes in &args.bytes {
        let mut bench = AllReduceBench::new(args.world, bytes);
        bench.algorithm = args.algorithm.into();
        bench.dtype = args.dtype.into();
        bench.rounds = args.iterations.unwrap_or(bench.rounds);
        let report = all_reduce(&bench).map_err(Error::from)?;
        for samples in [&report.plain_sum, &report.all_reduce] {
            print_samples(args, bytes, &report, samples)?;
        }
    }
    Ok(())
}

fn print_samples(
    args: &AllReduceArgs,
    bytes: usize,
    report: &AllReduceReport,
    samples: &Samples,
) -> Result<(), Failure> {
    let algbw = report.algorithm_bandwidth_gb_s(samples);
    let busbw = report.bus_bandwidth_gb_s(samples);
    let is_ours = samples.implementation == report.all_reduce.implementation;
    let ratio = if is_ours { report.median_ratio() } else { 1.0 };
    if args.output == BenchOutput::Json {
        let object = json!({
            "bench": "allreduce", "impl": samples.implementation, "n": args.world,
            "bytes": bytes, "iters": samples.times_us.len(), "us": samples.median_us(),
            "min_us": samples.min_us(), "max_us": samples.max_us(), "algbw": algbw,
            "busbw": busbw, "cpu_us": samples.cpu_median_us(), "ratio_to_plain_sum": ratio,
            "selection": is_ours.then_some(&report.description),
        });
        return line(&object.to_string());
    }
    line(&format!(
        "{:<12} {:>2} {bytes:>9} {:>10.1} {algbw:>10.2} {busbw:>10.2} {:>10.1} {ratio:>8.3}",
        samples.implementation,
        args.world,
        samples.median_us(),
        samples.cpu_median_us().unwrap_or(f64::NAN),
    ))
}

/// Measures on the GPUs 0, 1, ...
#[cfg(feature = "nccl")]
fn between_gpus(args: &AllReduceArgs) -> Result<(), Failure> {
    use distribute_bench::all_reduce::nccl::{NcclBench, run};
    use distribute_core::collectives::Algorithm;
    use distribute_core::collectives::nccl::NcclOptions;

    if Algorithm::from(args.algorithm) != Algorithm::Auto {
        return Err(Failure::usage(
            "--transport nccl: NCCL picks the algorithm, and the buffers are in the memory of \
             GPUs; leave --algorithm out",
        ));
    }
    let bench = NcclBench {
        devices: (0..args.world).collect(),
        dtype: args.dtype.into(),
        sizes_bytes: args.bytes.clone(),
        iterations: args.iterations.unwrap_or(NCCL_ITERATIONS),
        options: NcclOptions::new(0),
    };
    let reports = run(&bench).map_err(Error::from)?;
    print_header(args)?;
    let mut last = "";
    for report in &reports {
        print_size(args, report)?;
        last = &report.selection;
    }
    print_selection(args, last)
}

/// The error about the missing feature.
#[cfg(not(feature = "nccl"))]
fn between_gpus(_: &AllReduceArgs) -> Result<(), Failure> {
    Err(Failure::usage(
        "--transport nccl: this build has no NCCL: build with --features nccl",
    ))
}
