//! A model without `#[derive(Module)]`.

use burn::nn::{Linear, LinearConfig};
use distribute_core::prelude::*;

#[derive(Clone, Debug)]
struct Model {
    layer: Linear,
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    strategy.scope(|device| Model {
        layer: LinearConfig::new(4, 2).init(device),
    })?;
    Ok(())
}
