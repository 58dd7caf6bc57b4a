//! TensorFlow: arguments that are no tuple are a TypeError.

use distribute_core::{DefaultStrategy, Result, StrategyExt};

fn main() -> Result<()> {
    DefaultStrategy::new().run("three", |_, x| Ok(x))?;
    Ok(())
}
