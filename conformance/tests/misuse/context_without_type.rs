//! A step that is a variable and whose context has no type.

use distribute_core::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let step = |_ctx, value: f64| Ok(2.0 * value);
    strategy.run(2.0, step)?;
    Ok(())
}
