//! Measures the all-reduce of NCCL between threads of this process, one per GPU, in place in the
//! memory of the GPUs.
//!
//! Like nccl-tests: a barrier, then one timed operation; an iteration takes as long as its slowest
//! rank. It includes what distribute-collectives adds, the comparison of the ranks' calls.

use std::time::{Duration, Instant};

use distribute_collectives::nccl::{
    ControlGroup, DeviceMemory, NcclCommunicator, NcclOptions, in_process,
};
use distribute_collectives::{
    CollectiveError, Communicator, CommunicatorExt, DType, Gathered, GroupOptions,
    InProcessCommunicator, ReduceOp, Result,
};

use super::processes::SizeReport;
use crate::median;

/// Iterations before the clock counts.
const WARMUP: usize = 2;

/// The settings of a measurement.
#[derive(Debug, Clone)]
pub struct NcclBench {
    /// The GPU of each rank.
    pub devices: Vec<usize>,
    /// The element type.
    pub dtype: DType,
    /// Buffer sizes in bytes.
    pub sizes_bytes: Vec<usize>,
    /// Measured iterations per size, at least 1.
    pub iterations: usize,
    /// Where the libraries are, and deadlines; its device does not matter.
    pub options: NcclOptions,
}

/// Measures all sizes. Processor time and memory are not measured: they are 0.
///
/// # Errors
/// As [`in_process`], what an all-reduce returns, and
/// [`InvalidOption`](CollectiveError::InvalidOption) for 0 iterations.
pub fn run(bench: &NcclBench) -> Result<Vec<SizeReport>> {
    if bench.iterations == 0 {
        let what = "iterations must be at least 1".to_string();
        return Err(CollectiveError::InvalidOption { what });
    }
    let group = in_process(
        &bench.devices,
        GroupOptions::default(),
        bench.options.clone(),
    )?;
    let reports = std::thread::scope(|scope| {
        let threads: Vec<_> = group
            .into_iter()
            .map(|rank| scope.spawn(move || run_rank(bench, rank)))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect::<Result<Vec<_>>>()
    });
    Ok(reports?.into_iter().next().unwrap_or_default())
}

fn run_rank(
    bench: &NcclBench,
    mut rank: NcclCommunicator<InProcessCommunicator>,
) -> Result<Vec<SizeReport>> {
    // One buffer for all sizes: taking memory may wait for other ranks' work.
    let each = bench.dtype.size_bytes();
    let largest = bench.sizes_bytes.iter().copied().max().unwrap_or(0);
    let mut memory = rank.allocate(bench.dtype.into(), largest / each)?;
    let sizes = bench.sizes_bytes.iter();
    let measured = sizes.map(|bytes| {
        let times = measure(&mut rank, &mut memory, bytes / each, bench.iterations)?;
        report(&mut rank, bytes / each * each, &times)
    });
    measured.collect()
}

/// The time of each iteration on this rank.
fn measure<G: ControlGroup>(
    rank: &mut NcclCommunicator<G>,
    memory: &mut DeviceMemory,
    count: usize,
    iterations: usize,
) -> Result<Vec<f64>> {
    let mut times_us = Vec::with_capacity(iterations);
    for iteration in 0..WARMUP + iterations {
        rank.barrier()?;
        let start = Instant::now();
        // The largest value of what is there: it stays the same however often it is computed.
        rank.all_reduce_device(ReduceOp::Max, &mut [memory.slice(0..count)])?;
        if iteration >= WARMUP {
            times_us.push(microseconds(start.elapsed()));
        }
    }
    Ok(times_us)
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The figures of one size, from the times of all ranks.
fn report<G: ControlGroup>(
    rank: &mut NcclCommunicator<G>,
    size_bytes: usize,
    times_us: &[f64],
) -> Result<SizeReport> {
    let all: Gathered<f64> = rank.all_gather(times_us)?;
    let slowest = |iteration: usize| all.iter().map(|times| times[iteration]).fold(0.0, f64::max);
    let mut times: Vec<f64> = (0..times_us.len()).map(slowest).collect();
    times.sort_by(f64::total_cmp);
    Ok(SizeReport {
        size_bytes,
        iterations: times.len(),
        median_us: median(&times),
        min_us: times.first().copied().unwrap_or(f64::NAN),
        max_us: times.last().copied().unwrap_or(f64::NAN),
        cpu_us: 0.0,
        overhead_bytes: 0,
        selection: rank.describe().to_string(),
    })
}
