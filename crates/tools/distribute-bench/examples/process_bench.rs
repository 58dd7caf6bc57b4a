//! Measures the all-reduce between processes of this machine, as `distribute-cli bench all-reduce`
//! does, without building the rest of the workspace.
//!
//! `cargo run --release -p distribute-bench --features bench --example process_bench -- WORLD
//! TRANSPORT [SECONDS [ALGORITHM [BYTES...]]]`: TRANSPORT is shm, grpc or auto. The program
//! starts itself once per rank and prints one JSON object per size.

use std::process::Command;

use distribute_bench::all_reduce::processes::{self, ProcessBench};
use distribute_collectives::{Algorithm, DType, ProcessTransport};

/// The variable that makes the program a rank.
const RANK: &str = "PROCESS_BENCH_RANK";

const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 100 << 20];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let bench = settings(&words)?;
    if let Ok(rank) = std::env::var(RANK) {
        let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
        return Ok(processes::run_rank(
            &bench,
            rank.parse()?,
            &mut input,
            &mut output,
        )?);
    }
    let program = std::env::current_exe()?;
    let command = |rank: usize| {
        let mut command = Command::new(&program);
        command.args(&words).env(RANK, rank.to_string());
        command
    };
    let name = words.get(1).map_or("shm", String::as_str);
    processes::run(&bench, command, &mut |size| {
        println!(
            "{{\"bench\":\"allreduce\",\"impl\":\"ours-{name}\",\"n\":{},\"bytes\":{},\
             \"iters\":{},\"us\":{:.1},\"min_us\":{:.1},\"max_us\":{:.1},\"algbw\":{:.3},\
             \"busbw\":{:.3},\"cpu_us\":{:.1},\"overhead_bytes\":{},\"selection\":\"{}\"}}",
            bench.world_size,
            size.size_bytes,
            size.iterations,
            size.median_us,
            size.min_us,
            size.max_us,
            size.algorithm_bandwidth_gb_s(),
            size.bus_bandwidth_gb_s(bench.world_size),
            size.cpu_us,
            size.overhead_bytes,
            size.selection,
        );
    })?;
    Ok(())
}

fn settings(words: &[String]) -> Result<ProcessBench, Box<dyn std::error::Error>> {
    let word = |index: usize, default: &'static str| words.get(index).map_or(default, |w| w);
    let transport = match word(1, "shm") {
        "shm" => ProcessTransport::SharedMemory,
        "grpc" => ProcessTransport::Grpc,
        "auto" => ProcessTransport::Auto,
        other => return Err(format!("unknown transport {other}").into()),
    };
    let algorithm = match word(3, "auto") {
        "auto" => Algorithm::Auto,
        "direct_exchange" => Algorithm::DirectExchange,
        "ring" => Algorithm::Ring,
        "halving_doubling" => Algorithm::HalvingDoubling,
        other => return Err(format!("unknown algorithm {other}").into()),
    };
    let sizes = words
        .iter()
        .skip(4)
        .map(|size| size.parse())
        .collect::<Result<Vec<usize>, _>>()?;
    Ok(ProcessBench {
        world_size: word(0, "2").parse()?,
        transport,
        algorithm,
        dtype: DType::F32,
        sizes_bytes: if sizes.is_empty() {
            SIZES.to_vec()
        } else {
            sizes
        },
        iterations: None,
        seconds: word(2, "0.5").parse()?,
    })
}
