//! Measures the all-reduce between processes.
//!
//! The parent starts one process per rank. Each binds a free port, prints its address, reads the
//! list of all addresses, joins the group and measures size after size, like nccl-tests: a
//! barrier, then one timed operation; an iteration takes as long as its slowest rank.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use distribute_collectives::{
    Algorithm, CollectiveError, Communicator, CommunicatorExt, DType, Element, GroupOptions,
    ProcessCommunicator, ProcessGroupOptions, ProcessTransport, ReduceOp, Result,
};
use rustix::time::{ClockId, clock_gettime};

use super::with_dtype;
use crate::median;

/// Iterations before the clock counts.
const WARMUP: usize = 2;
/// Most iterations of one size.
const MAX_ITERATIONS: usize = 4000;

/// The settings of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessBench {
    /// Number of processes.
    pub world_size: usize,
    /// What carries the bytes.
    pub transport: ProcessTransport,
    /// The all-reduce algorithm.
    pub algorithm: Algorithm,
    /// The element type.
    pub dtype: DType,
    /// Buffer sizes in bytes.
    pub sizes_bytes: Vec<usize>,
    /// Measured iterations per size; `None` takes as many as fit in `seconds`.
    pub iterations: Option<usize>,
    /// Time per size when the iterations are not given.
    pub seconds: f64,
}

/// The figures of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct SizeReport {
    /// Bytes of every rank's buffer.
    pub size_bytes: usize,
    /// Measured iterations.
    pub iterations: usize,
    /// Median over the iterations of the slowest rank's time, in microseconds.
    pub median_us: f64,
    /// The fastest iteration, in microseconds.
    pub min_us: f64,
    /// The slowest iteration, in microseconds.
    pub max_us: f64,
    /// User and system time of one iteration with its barrier, over all ranks, in microseconds.
    pub cpu_us: f64,
    /// The most memory that a rank has used so far beyond its buffer, in bytes.
    pub overhead_bytes: usize,
    /// How the communicator describes itself.
    pub selection: String,
}

impl SizeReport {
    /// Bytes of a rank's buffer per median time, in GB/s (NCCL's "algbw").
    pub fn algorithm_bandwidth_gb_s(&self) -> f64 {
        self.size_bytes as f64 / self.median_us / 1e3
    }

    /// The algorithm bandwidth times `2(P - 1)/P`, in GB/s (NCCL's "busbw").
    pub fn bus_bandwidth_gb_s(&self, world_size: usize) -> f64 {
        let ranks = world_size as f64;
        self.algorithm_bandwidth_gb_s() * 2.0 * (ranks - 1.0) / ranks
    }

    fn to_line(&self) -> String {
        format!(
            "{} {} {} {} {} {} {} {}",
            self.size_bytes,
            self.iterations,
            self.median_us,
            self.min_us,
            self.max_us,
            self.cpu_us,
            self.overhead_bytes,
            self.selection.replace('\n', " ")
        )
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut words = line.splitn(8, ' ');
        Some(SizeReport {
            size_bytes: words.next()?.parse().ok()?,
            iterations: words.next()?.parse().ok()?,
            median_us: words.next()?.parse().ok()?,
            min_us: words.next()?.parse().ok()?,
            max_us: words.next()?.parse().ok()?,
            cpu_us: words.next()?.parse().ok()?,
            overhead_bytes: words.next()?.parse().ok()?,
            selection: words.next()?.to_string(),
        })
    }
}

/// The processes of a run; processes that are left are killed when this is dropped.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself: then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts the ranks and hands each size's figures to `report` as they come.
///
/// `command(rank)` makes the process of a rank: a program that calls [`run_rank`] with the same
/// settings on its standard input and output.
///
/// # Errors
/// What a rank reports (its message is on standard error), and a process that cannot be started.
pub fn run(
    bench: &ProcessBench,
    mut command: impl FnMut(usize) -> Command,
    report: &mut dyn FnMut(&SizeReport),
) -> Result<()> {
    let mut ranks = Ranks(Vec::new());
    let mut readers = Vec::new();
    let mut addresses = Vec::new();
    for rank in 0..bench.world_size {
        let mut command = command(rank);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| broken(rank, &error))?;
        let stdout = child.stdout.take().ok_or_else(|| silent(rank))?;
        ranks.0.push(child);
        let mut reader = BufReader::new(stdout);
        addresses.push(read_line(rank, &mut reader)?);
        readers.push(reader);
    }
    let list = addresses.join(" ") + "\n";
    for (rank, child) in ranks.0.iter_mut().enumerate() {
        let mut stdin = child.stdin.take().ok_or_else(|| silent(rank))?;
        stdin
            .write_all(list.as_bytes())
            .map_err(|error| broken(rank, &error))?;
    }
    for _ in &bench.sizes_bytes {
        let first = readers.first_mut().ok_or_else(|| silent(0))?;
        let line = read_line(0, first)?;
        report(&SizeReport::from_line(&line).ok_or_else(|| silent(0))?);
    }
    for (rank, child) in ranks.0.iter_mut().enumerate() {
        let status = child.wait().map_err(|error| broken(rank, &error))?;
        if !status.success() {
            return Err(silent(rank));
        }
    }
    Ok(())
}

fn read_line(rank: usize, reader: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(0) => Err(silent(rank)),
        Ok(_) => Ok(line.trim_end().to_string()),
        Err(error) => Err(broken(rank, &error)),
    }
}

fn silent(rank: usize) -> CollectiveError {
    broken(rank, &"it ended without a result; its message is above")
}

fn broken(rank: usize, reason: &dyn ToString) -> CollectiveError {
    CollectiveError::BackendUnavailable {
        backend: format!("the process of rank {rank}"),
        reason: reason.to_string(),
        searched: Vec::new(),
    }
}

/// The part of one rank, in its own process.
///
/// # Errors
/// What joining or an all-reduce returns, and a wrong result.
pub fn run_rank(
    bench: &ProcessBench,
    rank: usize,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> Result<()> {
    let group = GroupOptions::default().algorithm(bench.algorithm);
    let listen = vec!["127.0.0.1:0"; bench.world_size];
    let bound = ProcessGroupOptions::new(rank, listen)
        .group(group)
        .transport(bench.transport)
        .bind()?;
    writeln!(output, "{}", bound.address())
        .and_then(|()| output.flush())
        .map_err(|error| broken(rank, &error))?;
    let mut list = String::new();
    input
        .read_line(&mut list)
        .map_err(|error| broken(rank, &error))?;
    let mut communicator = bound.join(list.split_whitespace())?;
    for &size_bytes in &bench.sizes_bytes {
        let report = with_dtype!(bench.dtype, T => {
            let count = size_bytes / size_of::<T>();
            measure::<T>(bench, &mut communicator, &mut private(count))
        })?;
        if rank == 0 {
            writeln!(output, "{}", report.to_line())
                .and_then(|()| output.flush())
                .map_err(|error| broken(rank, &error))?;
        }
    }
    Ok(())
}

/// Memory of this process. Written one by one: pages never written are one page of zeros.
fn private<T: Element>(count: usize) -> Vec<T> {
    std::iter::repeat_with(bytemuck::Zeroable::zeroed)
        .take(count)
        .collect()
}

fn measure<T: Element>(
    bench: &ProcessBench,
    communicator: &mut ProcessCommunicator,
    buffer: &mut [T],
) -> Result<SizeReport> {
    // Zeros stay zeros.
    buffer.fill(bytemuck::Zeroable::zeroed());
    let size_bytes = size_of_val(buffer);
    let mut times_us = Vec::with_capacity(MAX_ITERATIONS);
    let (mut begun, mut cpu_before) = (Instant::now(), cpu_time());
    let mut go_on = true;
    let mut iteration = 0;
    while go_on {
        if iteration == WARMUP {
            (begun, cpu_before) = (Instant::now(), cpu_time());
        }
        communicator.barrier()?;
        let start = Instant::now();
        communicator.all_reduce(ReduceOp::Sum, &mut [T::buffer(buffer)])?;
        if iteration >= WARMUP {
            times_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
        iteration += 1;
        let done = times_us.len();
        let mut flag = [u8::from(
            match bench.iterations {
                Some(wanted) => done < wanted,
                None => done < 3 || begun.elapsed().as_secs_f64() < bench.seconds,
            } && done < MAX_ITERATIONS,
        )];
        communicator.broadcast(0, &mut [(&mut flag[..]).into()])?;
        go_on = flag[0] == 1;
    }
    let cpu = (cpu_time() - cpu_before).as_secs_f64() * 1e6 / times_us.len() as f64;
    let figures = [cpu, overhead_bytes(size_bytes) as f64];
    let all_times = communicator.all_gather(&times_us)?;
    let all_figures = communicator.all_gather(&figures)?;
    let mut slowest: Vec<f64> = (0..times_us.len())
        .map(|i| all_times.iter().map(|times| times[i]).fold(0.0, f64::max))
        .collect();
    slowest.sort_by(f64::total_cmp);
    Ok(SizeReport {
        size_bytes,
        iterations: slowest.len(),
        median_us: median(&slowest),
        min_us: slowest.first().copied().unwrap_or(f64::NAN),
        max_us: slowest.last().copied().unwrap_or(f64::NAN),
        cpu_us: all_figures.iter().map(|figures| figures[0]).sum(),
        overhead_bytes: all_figures.iter().map(|f| f[1]).fold(0.0, f64::max) as usize,
        selection: communicator.describe().to_string(),
    })
}

/// User and system time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The high-water mark of this process's memory minus its buffer; 0 where there is no `/proc`.
fn overhead_bytes(buffer_bytes: usize) -> usize {
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else {
        return 0;
    };
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .and_then(|number| number.parse::<usize>().ok());
    kib.map_or(0, |kib| (kib * 1024).saturating_sub(buffer_bytes))
}
