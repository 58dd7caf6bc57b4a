//! Sources and streams as data of a strategy.

use distribute_core::{
    BatchSource, Device, MirroredStrategy, PerReplica, ReduceOp, Result, StrategyExt, Tensor,
};
use distribute_data::{Batching, Dataset, ShardHint, SourceDataset, StrategyDataExt, Weighted};
use distribute_pipeline::{Source, Stream, range};

use crate::mirrored;

fn to_tensor(items: &[i64], device: &Device) -> Result<Tensor<1>> {
    let items: Vec<f32> = items.iter().map(|item| *item as f32).collect();
    Ok(Tensor::from_floats(&*items, device))
}

fn shuffled() -> impl Dataset<Batch = Tensor<1>> {
    SourceDataset::new(range(0..50).shuffle(1), to_tensor)
}

fn numbers(strategy: &MirroredStrategy, batch: PerReplica<Tensor<1>>) -> Vec<f32> {
    let batch = strategy.run(batch, |_, items| Ok(items)).unwrap();
    let batch = strategy.reduce(ReduceOp::Sum, batch).unwrap();
    batch.into_data().iter::<f32>().collect()
}

/// A wrapper hands the epoch on: a shuffled source has another order in each.
#[test]
fn wrapped_sources_have_another_order_in_each_epoch() {
    let device = Device::flex();
    let indices: Vec<usize> = (0..50).collect();
    let orders = [0, 1].map(|epoch| {
        let plain = shuffled().batch_in_epoch(epoch, &indices, &device);
        let plain: Vec<f32> = plain.unwrap().into_data().iter::<f32>().collect();
        let hinted = ShardHint::new(shuffled()).batch_in_epoch(epoch, &indices, &device);
        let hinted: Vec<f32> = hinted.unwrap().into_data().iter::<f32>().collect();
        assert_eq!(hinted, plain);
        let weighted = ShardHint::new(Weighted::new(shuffled()));
        let (weighted, _) = weighted.batch_in_epoch(epoch, &indices, &device).unwrap();
        assert_eq!(
            weighted.into_data().iter::<f32>().collect::<Vec<_>>(),
            plain
        );
        plain
    });
    assert_ne!(orders[0], orders[1]);
}

#[test]
fn padded_batches_of_a_source_differ_between_epochs() {
    let strategy = mirrored(1);
    let batching = Batching::global(30).pad_remainder(true);
    let data = Weighted::new(shuffled());
    let data = strategy.distribute_dataset(data, batching).unwrap();
    let [first, second] = [0, 1].map(|epoch| {
        let batch = data.epoch(epoch).next().unwrap().unwrap();
        let items = strategy.run(batch, |_, (items, _)| Ok(items)).unwrap();
        numbers(&strategy, items)
    });
    assert_eq!((first.len(), second.len()), (30, 30));
    assert_ne!(first, second);
}

#[test]
fn batches_of_a_stream_can_be_read_in_any_order() {
    let strategy = mirrored(1);
    let stream = range(0..20).stream().shuffle(8, 3).batch(4);
    let data = strategy.distribute_stream(stream, to_tensor).unwrap();
    let read = |batch: PerReplica<Tensor<1>>| numbers(&strategy, batch);
    let in_order: Vec<_> = data
        .epoch(1, 0)
        .unwrap()
        .map(|it| read(it.unwrap()))
        .collect();
    assert_eq!(in_order.len(), 5);
    for number in [3, 0, 4, 4, 1, 2] {
        let batch = data.batch(1, number).unwrap();
        assert_eq!(batch.map(read).as_ref(), in_order.get(number));
    }
    assert!(data.batch(1, 5).unwrap().is_none());
    // Two iterators do not take each other's batches.
    let (mut one, mut other) = (data.epoch(1, 0).unwrap(), data.epoch(1, 2).unwrap());
    for (first, second) in [(0, 2), (1, 3)] {
        assert_eq!(read(one.next().unwrap().unwrap()), in_order[first]);
        assert_eq!(read(other.next().unwrap().unwrap()), in_order[second]);
    }
}
