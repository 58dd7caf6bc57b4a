//! Compares the in-process all-reduce with a plain multi-threaded sum.
//!
//! `cargo run --release -p distribute-bench --features bench --example all_reduce_bench
//! [ALGORITHM]...` prints one JSON object per world size, buffer size and algorithm.

use distribute_bench::all_reduce::{AllReduceBench, AllReduceReport, Samples, all_reduce};
use distribute_collectives::{Algorithm, CollectiveError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut algorithms = Vec::new();
    for name in std::env::args().skip(1) {
        algorithms.push(match name.as_str() {
            "direct" => Algorithm::Direct,
            "ring" => Algorithm::Ring,
            "halving_doubling" => Algorithm::HalvingDoubling,
            "direct_exchange" => Algorithm::DirectExchange,
            other => {
                let what = format!(
                    "unknown algorithm '{other}'; use direct, ring, halving_doubling or \
                     direct_exchange"
                );
                return Err(CollectiveError::InvalidOption { what }.into());
            }
        });
    }
    if algorithms.is_empty() {
        algorithms.push(Algorithm::Direct);
    }
    for world_size in [2, 4, 8] {
        for size_mib in [1, 16, 100] {
            for &algorithm in &algorithms {
                let bench = AllReduceBench {
                    algorithm,
                    ..AllReduceBench::new(world_size, size_mib << 20)
                };
                print(&all_reduce(&bench)?);
            }
        }
    }
    Ok(())
}

fn print(report: &AllReduceReport) {
    let one = |samples: &Samples| {
        format!(
            "{{\"min_us\":{:.1},\"median_us\":{:.1},\"max_us\":{:.1},\"cpu_us\":{:.1},\
             \"algbw_gb_s\":{:.2},\"busbw_gb_s\":{:.2}}}",
            samples.min_us(),
            samples.median_us(),
            samples.max_us(),
            samples.cpu_median_us().unwrap_or(f64::NAN),
            report.algorithm_bandwidth_gb_s(samples),
            report.bus_bandwidth_gb_s(samples),
        )
    };
    println!(
        "{{\"world_size\":{},\"size_bytes\":{},\"algorithm\":\"{}\",\"plain_sum\":{},\
         \"all_reduce\":{},\"median_ratio\":{:.3}}}",
        report.bench.world_size,
        report.bench.size_bytes,
        report.bench.algorithm,
        one(&report.plain_sum),
        one(&report.all_reduce),
        report.median_ratio(),
    );
}
