//! A step that returns a struct without `#[derive(Nest)]`.

use distribute_core::prelude::*;

struct Losses {
    prediction: Tensor<1>,
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let losses = strategy.run((), |ctx, ()| {
        let prediction = Tensor::ones([1], ctx.device());
        Ok(Losses { prediction })
    })?;
    for part in losses.into_values() {
        println!("{}", part.prediction);
    }
    Ok(())
}
