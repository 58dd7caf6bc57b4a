//! `bench all-reduce`: threads beside a plain sum of the same buffers, or processes, like
//! nccl-tests.

#[path = "all_reduce_nccl.rs"]
mod nccl;

use std::process::Command;

use clap::{Args, ValueEnum};
use distribute_core::Error;
use distribute_core::collectives::bench::processes::{self, ProcessBench, SizeReport};
use distribute_core::collectives::bench::{AllReduceBench, AllReduceReport, Samples, all_reduce};
use distribute_core::collectives::{Algorithm, DType, ProcessTransport};
use serde_json::json;

use super::BenchOutput;
use crate::events::line;
use crate::failure::Failure;

/// Options of `bench all-reduce`.
#[derive(Debug, Args)]
pub(crate) struct AllReduceArgs {
    /// Number of ranks
    #[arg(long, default_value_t = 2)]
    world: usize,
    /// What carries the bytes between the ranks
    #[arg(long, value_enum, default_value_t = TransportName::InProcess)]
    transport: TransportName,
    /// Buffer sizes, for example 4K,1M,100M (powers of 1024 bytes)
    #[arg(long, value_delimiter = ',', value_parser = size_bytes, default_value = "4K,64K,1M,16M,100M")]
    bytes: Vec<usize>,
    /// The algorithm; auto takes the best one for the transport
    #[arg(long, value_enum, default_value_t = AlgorithmName::Auto)]
    algorithm: AlgorithmName,
    /// The element type
    #[arg(long, value_enum, default_value_t = TypeName::F32)]
    dtype: TypeName,
    /// Measured operations per size [default: 15 rounds in-process, else half a second]
    #[arg(long)]
    iterations: Option<usize>,
    /// Reduce buffers that were allocated in shared memory (with shm and auto)
    #[arg(long)]
    shared_buffers: bool,
    /// How results are printed
    #[arg(long, value_enum, default_value_t = BenchOutput::Text)]
    output: BenchOutput,
    /// This process is one of the ranks, started by the command itself
    #[arg(long, hide = true)]
    rank: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TransportName {
    /// Threads of this process
    InProcess,
    /// Processes that share memory
    Shm,
    /// Processes, over gRPC connections
    Grpc,
    /// Processes, over whatever the ranks find out to be best
    Auto,
    /// Threads with a GPU each (0, 1, ...), over NCCL
    Nccl,
}

impl TransportName {
    /// The name on the command line.
    fn name(self) -> &'static str {
        match self {
            TransportName::InProcess => "in-process",
            TransportName::Shm => "shm",
            TransportName::Grpc => "grpc",
            TransportName::Auto => "auto",
            TransportName::Nccl => "nccl",
        }
    }

    /// `None` for threads.
    fn between_processes(self) -> Option<ProcessTransport> {
        match self {
            TransportName::InProcess | TransportName::Nccl => None,
            TransportName::Shm => Some(ProcessTransport::SharedMemory),
            TransportName::Grpc => Some(ProcessTransport::Grpc),
            TransportName::Auto => Some(ProcessTransport::Auto),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AlgorithmName {
    Auto,
    Direct,
    DirectExchange,
    Ring,
    Chain,
    HalvingDoubling,
}

impl From<AlgorithmName> for Algorithm {
    fn from(name: AlgorithmName) -> Self {
        match name {
            AlgorithmName::Auto => Self::Auto,
            AlgorithmName::Direct => Self::Direct,
            AlgorithmName::DirectExchange => Self::DirectExchange,
            AlgorithmName::Ring => Self::Ring,
            AlgorithmName::Chain => Self::Chain,
            AlgorithmName::HalvingDoubling => Self::HalvingDoubling,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TypeName {
    F32,
    F64,
    F16,
    Bf16,
    I32,
    I64,
    U8,
}

impl From<TypeName> for DType {
    fn from(name: TypeName) -> Self {
        match name {
            TypeName::F32 => Self::F32,
            TypeName::F64 => Self::F64,
            TypeName::F16 => Self::F16,
            TypeName::Bf16 => Self::BF16,
            TypeName::I32 => Self::I32,
            TypeName::I64 => Self::I64,
            TypeName::U8 => Self::U8,
        }
    }
}

/// Reads `4096`, `4K`, `1M` or `1G`.
fn size_bytes(text: &str) -> std::result::Result<usize, String> {
    let unit = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        _ => return Err(format!("unknown unit `{unit}`: use K, M or G")),
    };
    let number: usize = number
        .parse()
        .map_err(|_| "expected a number, as in 64K".to_string())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes > 0)
        .ok_or("not a size".to_string())
}

pub(super) fn run(args: &AllReduceArgs) -> Result<(), Failure> {
    if args.world == 0 || args.iterations == Some(0) {
        return Err(Failure::usage(
            "--world and --iterations must be at least 1",
        ));
    }
    if args.transport == TransportName::Nccl {
        return nccl::run(args);
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
        shared_buffers: args.shared_buffers,
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
        "{:<20} {:>3} {:>12} {:>12} {:>10} {:>10} {:>12} {:>12}",
        "impl", "n", "bytes", "median us", "algbw GB/s", "busbw GB/s", "cpu us", "memory MiB"
    ))
}

/// Which algorithm ran, and why, below the table.
fn print_selection(args: &AllReduceArgs, selection: &str) -> Result<(), Failure> {
    match args.output {
        BenchOutput::Text => line(selection),
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
        "{name:<20} {:>3} {:>12} {:>12.1} {algbw:>10.2} {busbw:>10.2} {:>12.1} {:>12.1}",
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
            "{:<20} {:>3} {:>12} {:>12} {:>10} {:>10} {:>12} {:>9}",
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
        "{:<20} {:>3} {bytes:>12} {:>12.1} {algbw:>10.2} {busbw:>10.2} {:>12.1} {ratio:>9.3}",
        samples.implementation,
        args.world,
        samples.median_us(),
        samples.cpu_median_us().unwrap_or(f64::NAN),
    ))
}

#[cfg(test)]
mod tests {
    use super::size_bytes;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size_bytes("4096"), Ok(4096));
        assert_eq!(size_bytes("4K"), Ok(4096));
        assert_eq!(size_bytes("100MiB"), Ok(100 << 20));
        assert!(size_bytes("0").is_err());
        assert!(size_bytes("4X").is_err());
        assert!(size_bytes("99999999999G").is_err());
    }
}
