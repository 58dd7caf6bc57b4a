//! Iterate for a number of steps instead of whole epochs: `next` on an epoch's iterator.
//!
//! The iterator's position can be saved and resumed in the middle of an epoch.
#![forbid(unsafe_code)]

use burn::tensor::Int;
use distribute::prelude::*;

type Batch = (Tensor<4>, Tensor<1, Int>);

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let train =
        strategy.distribute_dataset(Digits::open()?.train()?, Batching::global(64).shuffle(42))?;

    // Ten steps of epoch 0.
    let mut epoch = train.epoch(0);
    let mut brightness = 0.0;
    for _ in 0..10 {
        let Some(batch) = epoch.next() else { break };
        let sums = strategy.run(batch?, |_, (images, _labels)| Ok(images.mean()))?;
        brightness += strategy.reduce(ReduceOp::Mean, sums)?.into_scalar::<f32>();
    }
    println!("mean brightness of 640 digits: {:.3}", brightness / 10.0);

    // The eleventh step, now and after a restart: the same examples.
    let position = epoch.position();
    let labels = |batch: Option<Result<PerReplica<Batch>>>| -> Result<Vec<i64>> {
        let Some(batch) = batch else {
            return Ok(Vec::new());
        };
        let labels = strategy.run(batch?, |_, (_images, labels)| Ok(labels))?;
        Ok(strategy.gather(labels, 0)?.into_data().iter().collect())
    };
    let now = labels(epoch.next())?;
    let resumed = labels(train.resume(position).next())?;
    println!("resumed at {position:?}: same batch: {}", now == resumed);
    println!("steps left in the epoch: {}", epoch.count());
    Ok(())
}
