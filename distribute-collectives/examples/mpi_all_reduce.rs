//! Averages a vector over all ranks of an MPI job, and times it.
//!
//! `cargo build --release -p distribute-collectives --features mpi --example mpi_all_reduce`, then
//! `mpirun -np 4 target/release/examples/mpi_all_reduce [BYTES]...`. Rank 0 prints one line per
//! size.

use std::time::{Duration, Instant};

use distribute_collectives::mpi::{MpiCommunicator, MpiEnvironment};
use distribute_collectives::{Communicator, GroupOptions, ReduceOp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sizes: Result<Vec<usize>, _> = std::env::args().skip(1).map(|size| size.parse()).collect();
    let mut sizes =
        sizes.map_err(|error| format!("the arguments are numbers of bytes: {error}"))?;
    if sizes.is_empty() {
        sizes = vec![4 << 10, 1 << 20, 16 << 20];
    }
    let environment = MpiEnvironment::initialize()?;
    let mut group = environment.communicator(GroupOptions::default())?;
    if group.rank() == 0 {
        println!("{}", group.describe());
    }
    for bytes in sizes {
        let median = median(&mut group, bytes)?;
        if group.rank() == 0 {
            let seconds = median.as_secs_f64();
            let algbw = bytes as f64 / seconds / 1e9;
            println!("{bytes} bytes: {:.1} us, {algbw:.3} GB/s", seconds * 1e6);
        }
    }
    Ok(())
}

/// The median time of an all-reduce, after checking its result once.
fn median(
    group: &mut MpiCommunicator,
    bytes: usize,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let mut vector = vec![group.rank() as f32; (bytes / size_of::<f32>()).max(1)];
    group.all_reduce(ReduceOp::Mean, &mut [(&mut vector).into()])?;
    let expected = (group.world_size() - 1) as f32 / 2.0;
    if vector.iter().any(|value| *value != expected) {
        return Err(format!("rank {}: the mean is not {expected}", group.rank()).into());
    }
    let mut times = Vec::new();
    for _ in 0..21 {
        group.barrier()?;
        let begin = Instant::now();
        group.all_reduce(ReduceOp::Mean, &mut [(&mut vector).into()])?;
        times.push(begin.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}
