//! TensorFlow: `compute_average_loss` in a cross-replica context is a RuntimeError.

use distribute_core::{MirroredStrategy, Result, Strategy, Tensor};
use distribute_data::average_loss;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let per_example = Tensor::<1>::ones([4], &strategy.replicas()[0].device);
    average_loss(&strategy, per_example)?;
    Ok(())
}
