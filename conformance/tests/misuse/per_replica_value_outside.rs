//! TensorFlow: the copies of a mirrored variable silently differ after this.

use distribute_core::{MirroredStrategy, PerReplica, Result, StrategyExt, VariableOptions};

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let variable = strategy.variable(0.0_f32, VariableOptions::default())?;
    variable.assign(&strategy, PerReplica::new(vec![1.0_f32, 2.0]))?;
    Ok(())
}
