//! `bench all-reduce --transport nccl`: threads of this process, one per GPU, over NCCL.

use super::AllReduceArgs;
use crate::failure::Failure;

/// Measured operations of each size.
#[cfg(feature = "nccl")]
const ITERATIONS: usize = 20;

/// Measures on the GPUs 0, 1, ...
///
/// # Errors
/// What is missing for NCCL, and fewer GPUs than ranks.
#[cfg(feature = "nccl")]
pub(super) fn run(args: &AllReduceArgs) -> Result<(), Failure> {
    use distribute_core::Error;
    use distribute_core::collectives::bench::nccl::{NcclBench, run};
    use distribute_core::collectives::nccl::NcclOptions;

    if args.algorithm != super::AlgorithmName::Auto || args.shared_buffers {
        return Err(Failure::usage(
            "--transport nccl: NCCL picks the algorithm, and the buffers are in the memory of \
             GPUs; leave --algorithm and --shared-buffers out",
        ));
    }
    let bench = NcclBench {
        devices: (0..args.world).collect(),
        dtype: args.dtype.into(),
        sizes_bytes: args.bytes.clone(),
        iterations: args.iterations.unwrap_or(ITERATIONS),
        options: NcclOptions::new(0),
    };
    let reports = run(&bench).map_err(Error::from)?;
    super::print_header(args)?;
    let mut last = "";
    for report in &reports {
        super::print_size(args, report)?;
        last = &report.selection;
    }
    super::print_selection(args, last)
}

/// Says what the build lacks.
#[cfg(not(feature = "nccl"))]
pub(super) fn run(_: &AllReduceArgs) -> Result<(), Failure> {
    Err(Failure::usage(
        "--transport nccl: this build has no NCCL: build with --features nccl",
    ))
}
