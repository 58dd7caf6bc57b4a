//! A data loader where a dataset is expected. It has the name and the methods of burn's, whose
//! feature `dataset` the libraries here are built without.

use std::sync::Arc;

use distribute_core::prelude::*;
use distribute_data::prelude::*;

trait DataLoader<O>: Send + Sync {
    fn iter(&self) -> Box<dyn Iterator<Item = O>>;
}

struct Batches;

impl DataLoader<Tensor<2>> for Batches {
    fn iter(&self) -> Box<dyn Iterator<Item = Tensor<2>>> {
        Box::new((0..4).map(|_| Tensor::ones([16, 4], &Device::flex())))
    }
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::new()?;
    let loader: Arc<dyn DataLoader<Tensor<2>>> = Arc::new(Batches);
    println!("{} batches", loader.iter().count());
    let train = strategy.distribute_dataset(loader, Batching::global(16))?;
    for batch in &train {
        strategy.run(batch?, |_, batch| Ok(batch.sum()))?;
    }
    Ok(())
}
