//! A step that is a variable and says no types: the compiler says where they go.

use distribute_core::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let step = |ctx, value| Ok(ctx.num_replicas_in_sync() as f64 * value);
    strategy.run(2.0, step)?;
    Ok(())
}
