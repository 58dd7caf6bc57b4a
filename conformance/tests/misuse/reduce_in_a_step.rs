//! TensorFlow: `reduce` in a replica context is a RuntimeError. A step has no strategy to reduce
//! with; its context has `all_reduce`.

use distribute_core::{MirroredStrategy, ReduceOp, Result, StrategyExt};

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    strategy.run((), |ctx, ()| ctx.reduce(ReduceOp::Sum, 1.0_f32))?;
    Ok(())
}
