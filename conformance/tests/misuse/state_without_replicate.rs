//! A scope that builds a struct without `#[derive(Replicate)]`.

use burn::nn::{Linear, LinearConfig};
use distribute_core::prelude::*;

struct Both {
    first: Linear,
    second: Linear,
}

impl Both {
    fn devices(&self) -> [Device; 2] {
        [&self.first, &self.second].map(|layer| layer.weight.device())
    }
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let both = strategy.scope(|device| Both {
        first: LinearConfig::new(1, 1).init(device),
        second: LinearConfig::new(1, 1).init(device),
    })?;
    println!("{:?}", both.primary()?.devices());
    Ok(())
}
