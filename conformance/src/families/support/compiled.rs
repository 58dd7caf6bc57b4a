//! What a step needs besides where it is compiled: values that come in as tensors, and batches of
//! one size.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{Error, PerReplica, ReduceOp, Replica, Result, Strategy, StrategyExt};
use distribute_data::{Batching, FnDataset, StrategyDataExt, Weighted};

use super::dynamic_tensor::DynamicTensor;
use super::values::take_rows;

/// Whether a compiled step has refused values whose shapes differ between the replicas.
pub(crate) fn is_uneven(error: &Error) -> bool {
    matches!(error.root_cause(), Error::UnevenArguments { .. })
}

/// `all_reduce` of a list of values per replica. Host data cannot enter a compiled step; there it
/// is made of tensors, which give the same data back.
pub(crate) fn all_reduce_lists(
    strategy: &dyn Strategy,
    op: ReduceOp,
    lists: PerReplica<Vec<TensorData>>,
) -> Result<PerReplica<Vec<TensorData>>> {
    if strategy.tracer().is_none() {
        return strategy.run(lists, |ctx, list| ctx.all_reduce(op, list));
    }
    let given = |list: Vec<TensorData>| -> Vec<DynamicTensor> {
        let given = list
            .iter()
            .map(|data| DynamicTensor::of(data, &Device::flex()));
        given.collect()
    };
    // As an argument: what a compiled step only captures keeps its value of the first call.
    let is_sum = op == ReduceOp::Sum;
    let found = strategy.run((lists.map(given), is_sum), |ctx, (list, is_sum)| {
        let op = if is_sum {
            ReduceOp::Sum
        } else {
            ReduceOp::Mean
        };
        let list = list.into_iter().map(|given| given.all_reduce(ctx, op));
        list.collect::<Result<Vec<_>>>()
    })?;
    Ok(found.map(|list| list.into_iter().map(DynamicTensor::into_data).collect()))
}

/// `all_reduce` of one value per replica.
pub(crate) fn all_reduce(
    strategy: &dyn Strategy,
    op: ReduceOp,
    values: PerReplica<TensorData>,
) -> Result<PerReplica<TensorData>> {
    if strategy.tracer().is_none() {
        return strategy.run(values, |ctx, value| ctx.all_reduce(op, value));
    }
    let found = all_reduce_lists(strategy, op, values.map(|value| vec![value]))?;
    let none = || Error::invalid("no value came back");
    let values = found.into_values().into_iter();
    let values = values.map(|list| list.into_iter().next().ok_or_else(none));
    Ok(PerReplica::new(values.collect::<Result<_>>()?))
}

/// `all_gather` of one value per replica.
pub(crate) fn all_gather(
    strategy: &dyn Strategy,
    values: PerReplica<TensorData>,
    axis: i64,
) -> Result<PerReplica<TensorData>> {
    let has_scalars = values.values().iter().any(|value| value.rank() == 0);
    // burn's tensors have an axis, along which there is nothing to refuse.
    if strategy.tracer().is_none() || has_scalars {
        return strategy.run(values, |ctx, value| ctx.all_gather(value, axis));
    }
    let given = values.map(|value| DynamicTensor::of(&value, &Device::flex()));
    let found = strategy.run((given, axis), |ctx, (given, axis)| {
        given.all_gather(ctx, axis)
    })?;
    Ok(found.map(DynamicTensor::into_data))
}

/// `broadcast` of the value of replica 0.
pub(crate) fn broadcast(
    strategy: &dyn Strategy,
    values: PerReplica<TensorData>,
) -> Result<PerReplica<TensorData>> {
    if strategy.tracer().is_none() {
        return strategy.run(values, |ctx, value| ctx.broadcast(0, value));
    }
    let given = values.map(|value| DynamicTensor::of(&value, &Device::flex()));
    let found = strategy.run(given, |ctx, given| given.broadcast(ctx, 0))?;
    Ok(found.map(DynamicTensor::into_data))
}

/// `all_reduce` of values by name, the same names on every replica.
pub(crate) fn all_reduce_maps(
    strategy: &dyn Strategy,
    op: ReduceOp,
    maps: PerReplica<BTreeMap<String, TensorData>>,
) -> Result<PerReplica<BTreeMap<String, TensorData>>> {
    if strategy.tracer().is_none() {
        return strategy.run(maps, |ctx, map| ctx.all_reduce(op, map));
    }
    let (names, lists) = maps
        .map(|map| map.into_iter().unzip::<_, _, Vec<_>, _>())
        .unzip();
    let found = all_reduce_lists(strategy, op, lists)?;
    let named = names.into_values().into_iter().zip(found.into_values());
    let named = named.map(|(names, values)| names.into_iter().zip(values).collect());
    Ok(PerReplica::new(named.collect()))
}

/// One replica's features, labels and, of a batch that may be filled up, weights.
pub(crate) type Rows = ((TensorData, TensorData), Option<Tensor<1>>);

/// These rows as a global batch, cut over the replicas; filled up for a compiled step, which is one
/// program for all replicas.
pub(crate) fn global_batch(
    strategy: &dyn Strategy,
    x: &TensorData,
    y: &TensorData,
    rows: &[usize],
) -> Result<PerReplica<Rows>> {
    let pad = strategy.tracer().is_some();
    let (x, y, rows) = (x.clone(), y.clone(), rows.to_vec());
    let count = rows.len();
    let make = move |indices: &[usize], _: &Device| {
        let indices: Vec<usize> = indices.iter().map(|index| rows[*index]).collect();
        Ok((take_rows(&x, &indices)?, take_rows(&y, &indices)?))
    };
    let dataset = Weighted::new(FnDataset::new(count, make));
    let batching = Batching::global(count).prefetch(0).pad_remainder(pad);
    let batch = strategy
        .distribute_dataset(dataset, batching)?
        .epoch(0)
        .next();
    let batch = batch.ok_or_else(|| Error::invalid("a batch without rows"))??;
    Ok(batch.map(|(rows, weights)| (rows, pad.then_some(weights))))
}

/// The same as tensors on the replicas' devices.
pub(crate) fn on_devices<T>(
    strategy: &dyn Strategy,
    batch: PerReplica<Rows>,
    tensors: impl Fn(TensorData, TensorData, &Device) -> T,
) -> PerReplica<(T, Option<Tensor<1>>)> {
    let place =
        |(((x, y), weights), replica): (Rows, &Replica)| (tensors(x, y, &replica.device), weights);
    let parts = batch.into_values().into_iter().zip(strategy.replicas());
    PerReplica::new(parts.map(place).collect())
}

/// Weights for a divisor that is the number of rows: they make up for rows that only fill up.
pub(crate) fn per_row(weights: Tensor<1>) -> Tensor<1> {
    let rows = weights.dims()[0];
    let own = weights.clone().sum().clamp_min(1.0);
    weights.mul_scalar(rows as f64) / own
}
