//! TensorFlow: a replica context kept for later is invalid. Here it does not leave its step.

use distribute_core::{MirroredStrategy, Result, StrategyExt};

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let mut kept = None;
    strategy.run((), |ctx, ()| {
        kept = Some(ctx);
        Ok(())
    })?;
    Ok(())
}
