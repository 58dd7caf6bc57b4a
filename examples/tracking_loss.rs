//! Tracking the loss over replicas: reduce it with SUM instead of updating a `Mean` metric.
//!
//! Two replicas have the losses [2, 3] and [4, 5]. Each divides by the global batch of 4, so the
//! scaled losses are 1.25 and 2.25. Their SUM, 3.5, is the mean loss of the global batch. A
//! `Mean` metric that is updated with the scaled losses divides by 2 once more: 1.75.
#![forbid(unsafe_code)]

use distribute::metric::Mean;
use distribute::prelude::*;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let metric = Mean::new(&strategy);
    let per_example = PerReplica::new(vec![[2.0_f32, 3.0], [4.0, 5.0]]).of_global_batch(4);

    let scaled = strategy.run(per_example, |ctx, losses| {
        let losses = Tensor::<1>::from_floats(losses, ctx.device());
        let loss = average_loss(ctx, losses)?;
        metric.update_state(ctx, loss.clone())?;
        Ok(loss.into_scalar::<f32>())
    })?;
    println!("{scaled}");
    println!("SUM: {}", strategy.reduce(ReduceOp::Sum, scaled)?);
    println!("Mean metric: {}", metric.result()?);
    Ok(())
}
