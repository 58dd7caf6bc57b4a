//! Measures the in-process all-reduce against a plain multi-threaded sum.
//!
//! The *plain sum* is the floor: as many threads as ranks, each sums its slice over all ranks'
//! buffers in one pass, writes the sum to all of them and meets the others at one
//! [`std::sync::Barrier`]. It checks nothing, has no deadline and knows one reduction.
//!
//! Both work on the same buffers, in turn, round by round, so that whatever else the machine does
//! hits both. Compare ratios of one run; absolute times of a busy machine say little.

#[cfg(feature = "nccl")]
pub mod nccl;
pub mod processes;

use std::sync::Barrier;
use std::time::Instant;

use distribute_collectives::reduce::{self, ReduceOp};
use distribute_collectives::{
    Algorithm, Buffer, CollectiveError, Communicator, DType, Element, GroupOptions,
    InProcessCommunicator, Order, Result, chunk_range, in_process,
};

use crate::median;

/// Runs `$body` with the type alias `$T` bound to the Rust type of a [`DType`].
macro_rules! with_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        with_dtype!(@ $dtype, $T, $body, F32 f32, F64 f64, F16 half::f16, BF16 half::bf16,
            I32 i32, I64 i64, U8 u8)
    };
    (@ $dtype:expr, $T:ident, $body:expr, $($variant:ident $type:ty),*) => {
        match $dtype {
            $(DType::$variant => {
                type $T = $type;
                $body
            })*
        }
    };
}
use with_dtype;

/// The settings of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct AllReduceBench {
    /// Number of ranks, each a thread.
    pub world_size: usize,
    /// Bytes of every rank's buffer.
    pub size_bytes: usize,
    /// The all-reduce algorithm.
    pub algorithm: Algorithm,
    /// The order of the reduction.
    pub order: Order,
    /// The element type.
    pub dtype: DType,
    /// Rounds that are measured (each gives one sample per implementation).
    pub rounds: usize,
    /// Rounds before that, which are not.
    pub warmup_rounds: usize,
    /// Operations per sample. Small buffers need many, because the clock starts with threads that
    /// have just been woken.
    pub operations_per_round: usize,
}

impl AllReduceBench {
    /// SUM of `f32` with the default algorithm, 15 rounds, about 64 MiB of buffer per sample.
    pub fn new(world_size: usize, size_bytes: usize) -> Self {
        AllReduceBench {
            world_size,
            size_bytes,
            algorithm: Algorithm::Auto,
            order: Order::Fast,
            dtype: DType::F32,
            rounds: 15,
            warmup_rounds: 2,
            operations_per_round: ((64 << 20) / size_bytes.max(1)).clamp(1, 200),
        }
    }
}

/// The samples of one implementation.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples {
    /// `plain-sum` or `all-reduce`.
    pub implementation: &'static str,
    /// Time of one operation in microseconds, one sample per round: from the first thread's start
    /// to the last thread's end, divided by the operations of the round.
    pub times_us: Vec<f64>,
    /// CPU time of one operation in microseconds, over all threads, one sample per round. Empty
    /// where the system does not tell (it is read from `/proc/thread-self/schedstat`).
    pub cpu_us: Vec<f64>,
}

impl Samples {
    /// The shortest time in microseconds.
    pub fn min_us(&self) -> f64 {
        self.times_us.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The median time in microseconds.
    pub fn median_us(&self) -> f64 {
        median(&self.times_us)
    }

    /// The longest time in microseconds.
    pub fn max_us(&self) -> f64 {
        self.times_us.iter().copied().fold(0.0, f64::max)
    }

    /// The median CPU time in microseconds, when known.
    pub fn cpu_median_us(&self) -> Option<f64> {
        (!self.cpu_us.is_empty()).then(|| median(&self.cpu_us))
    }
}

/// The result of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct AllReduceReport {
    /// The settings.
    pub bench: AllReduceBench,
    /// How the communicator describes itself.
    pub description: String,
    /// The floor.
    pub plain_sum: Samples,
    /// The library.
    pub all_reduce: Samples,
}

impl AllReduceReport {
    /// Bytes of a rank's buffer per median time, in GB/s (NCCL's "algbw").
    pub fn algorithm_bandwidth_gb_s(&self, samples: &Samples) -> f64 {
        self.bench.size_bytes as f64 / samples.median_us() / 1e3
    }

    /// The algorithm bandwidth times `2(P - 1)/P`, in GB/s (NCCL's "busbw").
    pub fn bus_bandwidth_gb_s(&self, samples: &Samples) -> f64 {
        let ranks = self.bench.world_size as f64;
        self.algorithm_bandwidth_gb_s(samples) * 2.0 * (ranks - 1.0) / ranks
    }

    /// The median over the rounds of time of the all-reduce / time of the plain sum.
    pub fn median_ratio(&self) -> f64 {
        let pairs = self
            .all_reduce
            .times_us
            .iter()
            .zip(&self.plain_sum.times_us);
        median(&pairs.map(|(ours, plain)| ours / plain).collect::<Vec<_>>())
    }
}

/// Runs both implementations in turn and returns their samples.
///
/// # Errors
/// [`CollectiveError::InvalidOption`] for a world size, round or operation count of 0, and what the
/// all-reduce returns.
pub fn all_reduce(bench: &AllReduceBench) -> Result<AllReduceReport> {
    if bench.world_size == 0 || bench.rounds == 0 || bench.operations_per_round == 0 {
        let what = "world size, rounds and operations per round must be at least 1".to_string();
        return Err(CollectiveError::InvalidOption { what });
    }
    with_dtype!(bench.dtype, T => run::<T>(bench))
}

/// One thread's part of a sample.
struct Span {
    start: Instant,
    end: Instant,
    cpu_ns: Option<u64>,
}

fn run<T: Element>(bench: &AllReduceBench) -> Result<AllReduceReport> {
    let options = GroupOptions::default()
        .algorithm(bench.algorithm)
        .order(bench.order);
    let mut group = in_process(bench.world_size, options)?;
    let count = bench.size_bytes / size_of::<T>();
    // Zeros: a sum that is repeated stays what it is. Written one by one, because fresh pages
    // that were never written are all the same page of zeros.
    let mut buffers: Vec<Vec<T>> = (0..bench.world_size)
        .map(|_| {
            std::iter::repeat_with(bytemuck::Zeroable::zeroed)
                .take(count)
                .collect()
        })
        .collect();
    let mut report = AllReduceReport {
        bench: bench.clone(),
        description: group[0].describe().to_string(),
        plain_sum: empty("plain-sum"),
        all_reduce: empty("all-reduce"),
    };
    for round in 0..bench.warmup_rounds + bench.rounds {
        let plain = plain_sum(bench.operations_per_round, &mut buffers);
        let ours = group_sum(bench.operations_per_round, &mut group, &mut buffers)?;
        if round >= bench.warmup_rounds {
            record(&mut report.plain_sum, bench, &plain);
            record(&mut report.all_reduce, bench, &ours);
        }
    }
    Ok(report)
}

fn empty(implementation: &'static str) -> Samples {
    Samples {
        implementation,
        times_us: Vec::new(),
        cpu_us: Vec::new(),
    }
}

fn record(samples: &mut Samples, bench: &AllReduceBench, spans: &[Span]) {
    let (Some(start), Some(end)) = (
        spans.iter().map(|span| span.start).min(),
        spans.iter().map(|span| span.end).max(),
    ) else {
        return;
    };
    let operations = bench.operations_per_round as f64;
    samples
        .times_us
        .push((end - start).as_secs_f64() * 1e6 / operations);
    if let Some(cpu_ns) = spans.iter().map(|span| span.cpu_ns).sum::<Option<u64>>() {
        samples.cpu_us.push(cpu_ns as f64 / 1e3 / operations);
    }
}

/// Times `body` on this thread.
fn span<R>(begin: &Barrier, body: impl FnOnce() -> R) -> (Span, R) {
    let cpu_before = thread_cpu_ns();
    begin.wait();
    let start = Instant::now();
    let result = body();
    let end = Instant::now();
    let cpu_ns = thread_cpu_ns()
        .zip(cpu_before)
        .map(|(after, before)| after - before);
    (Span { start, end, cpu_ns }, result)
}

/// One sample of the floor.
fn plain_sum<T: Element>(operations: usize, buffers: &mut [Vec<T>]) -> Vec<Span> {
    let ranks = buffers.len();
    let count = buffers.first().map_or(0, Vec::len);
    // Thread `i` gets slice `i` of every rank's buffer.
    let mut slices: Vec<Vec<&mut [T]>> = (0..ranks).map(|_| Vec::new()).collect();
    for buffer in buffers {
        let mut rest = buffer.as_mut_slice();
        for (thread, slices) in slices.iter_mut().enumerate() {
            let len = chunk_range(count, ranks, thread).len();
            let (slice, after) = rest.split_at_mut(len);
            slices.push(slice);
            rest = after;
        }
    }
    let (begin, done) = (&Barrier::new(ranks), &Barrier::new(ranks));
    let work = |mut slices: Vec<&mut [T]>| {
        span(begin, || {
            for _ in 0..operations {
                reduce::reduce_all(ReduceOp::Sum, &mut slices);
                done.wait();
            }
        })
        .0
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = slices
            .into_iter()
            .map(|slices| scope.spawn(move || work(slices)))
            .collect();
        threads.into_iter().map(join).collect()
    })
}

/// One sample of the library.
fn group_sum<T: Element>(
    operations: usize,
    group: &mut [InProcessCommunicator],
    buffers: &mut [Vec<T>],
) -> Result<Vec<Span>> {
    let begin = &Barrier::new(group.len());
    let work = |endpoint: &mut InProcessCommunicator, buffer: &mut [T]| -> Result<Span> {
        let (span, result) = span(begin, || {
            let mut list: [Buffer<'_>; 1] = [T::buffer(buffer)];
            (0..operations).try_for_each(|_| endpoint.all_reduce(ReduceOp::Sum, &mut list))
        });
        result.map(|()| span)
    };
    std::thread::scope(|scope| {
        let ranks = group.iter_mut().zip(buffers);
        let threads: Vec<_> = ranks
            .map(|(endpoint, buffer)| scope.spawn(move || work(endpoint, buffer)))
            .collect();
        threads.into_iter().map(join).collect()
    })
}

/// The result of a thread; a panic goes on in the caller.
fn join<R>(thread: std::thread::ScopedJoinHandle<'_, R>) -> R {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Nanoseconds that this thread has run (the first number of `schedstat`).
fn thread_cpu_ns() -> Option<u64> {
    // The kernel brings the figure up to date when it schedules.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sample_per_round_and_implementation() {
        for dtype in DType::ALL {
            let bench = AllReduceBench {
                rounds: 3,
                dtype,
                operations_per_round: 2,
                ..AllReduceBench::new(3, 10_000)
            };
            let report = all_reduce(&bench).unwrap();
            for samples in [&report.plain_sum, &report.all_reduce] {
                assert_eq!(samples.times_us.len(), 3);
                assert!(samples.min_us() <= samples.median_us());
                assert!(samples.median_us() <= samples.max_us());
                let (algorithm, bus) = (
                    report.algorithm_bandwidth_gb_s(samples),
                    report.bus_bandwidth_gb_s(samples),
                );
                assert!((bus / algorithm - 4.0 / 3.0).abs() < 1e-9);
            }
            assert!(report.median_ratio() > 0.0);
        }
    }
}
