//! Bring your own algorithm for summing gradients over the replicas of a machine.
//!
//! This one passes a running sum along a chain of replicas and copies the total back: it is slower
//! than the default, but shows everything that is needed.
#![forbid(unsafe_code)]

use distribute::collectives::{Buffer, Communicator};
use distribute::{
    CrossDeviceOps, Error, MirroredStrategy, PerReplica, ReduceOp, Result, StrategyExt,
};

#[derive(Debug)]
struct RunningSum;

impl CrossDeviceOps for RunningSum {
    fn name(&self) -> &str {
        "running-sum"
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let (rank, world_size) = (communicator.rank(), communicator.world_size());
        for buffer in buffers {
            let Buffer::F32(mine) = buffer else {
                return Err(Error::invalid("running-sum works on f32 only"));
            };
            if rank > 0 {
                let mut sum = vec![0.0; mine.len()];
                communicator.recv(rank - 1, sum.as_mut_slice().into())?;
                mine.iter_mut()
                    .zip(sum)
                    .for_each(|(mine, sum)| *mine += sum);
            }
            if rank + 1 < world_size {
                communicator.send(rank + 1, (&mut **mine).into())?;
            } else if op == ReduceOp::Mean {
                mine.iter_mut()
                    .for_each(|value| *value /= world_size as f32);
            }
            // The last replica holds the total.
            communicator.broadcast(world_size - 1, &mut [(&mut **mine).into()])?;
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder()
        .replicas(3)
        .cross_device_ops(RunningSum)
        .build()?;
    println!("cross-device ops: {}", strategy.cross_device_ops().name());
    let values = PerReplica::new(vec![1.0_f32, 10.0, 100.0]);
    let sums = strategy.run(values, |ctx, value| {
        Ok((
            ctx.all_reduce(ReduceOp::Sum, value)?,
            ctx.all_reduce(ReduceOp::Mean, value)?,
        ))
    })?;
    println!("{:?}", sums.values());
    Ok(())
}
