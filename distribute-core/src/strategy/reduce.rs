//! Values of all replicas become one, in cross-replica context.

use burn::tensor::TensorData;
use distribute_collectives::ReduceOp;

use crate::nest::at_leaf;
use crate::{Components, DistributedValue, Nest, Result, Strategy, host_reduce, scope};

/// See [`StrategyExt::reduce`](crate::StrategyExt::reduce).
pub(crate) fn reduce<V: DistributedValue<Value: Nest>>(
    strategy: &(impl Strategy + ?Sized),
    op: ReduceOp,
    value: V,
) -> Result<V::Value> {
    let replicas = strategy.replicas().len();
    let workers = strategy.workers();
    let call = format!("reduce {op}");
    combine(strategy, "reduce", &call, value, |leaf| {
        match (leaf, workers) {
            (Components::PerReplica(components), _) => host_reduce::reduce(op, components),
            (Components::Same(value), None) => host_reduce::reduce_same(op, value, replicas),
            (Components::Same(value), Some(workers)) => {
                // All exchange before one refuses, so that none waits.
                let values = workers.gather_one(&call, value)?;
                host_reduce::reduce_same_of_workers(op, values, workers.max_replicas())
            }
        }
    })
}

/// Applies `join` to the i-th leaf of all components, for every i.
pub(super) fn combine<V: DistributedValue<Value: Nest>>(
    strategy: &(impl Strategy + ?Sized),
    what: &'static str,
    call: &str,
    value: V,
    mut join: impl FnMut(Components<TensorData>) -> Result<TensorData>,
) -> Result<V::Value> {
    scope::check_cross_replica(&strategy.id(), what)?;
    let mut join = |value: &mut V::Value, (index, leaf)| {
        join(leaf).map_err(|error| at_leaf(value, index, error))
    };
    let mut values = match value.into_components() {
        Components::PerReplica(values) => values,
        Components::Same(mut value) => {
            let leaves = value.take_leaves()?.into_iter().map(Components::Same);
            let joined = leaves
                .enumerate()
                .map(|leaf| join(&mut value, leaf))
                .collect::<Result<_>>()?;
            value.put_leaves(joined)?;
            return Ok(value);
        }
    };
    let replicas = strategy.replicas().len();
    crate::error::check_count("a per-replica value", replicas, values.len())?;
    let leaves = values.iter_mut().map(Nest::take_leaves);
    let mut leaves = leaves.collect::<Result<Vec<_>>>()?;
    if let Some(workers) = strategy.workers() {
        leaves = workers.gather(call, &leaves)?;
    }
    let mut first = values.swap_remove(0);
    let columns = host_reduce::columns(leaves)?
        .into_iter()
        .map(Components::PerReplica)
        .enumerate();
    let joined = columns
        .map(|column| join(&mut first, column))
        .collect::<Result<_>>()?;
    first.put_leaves(joined)?;
    Ok(first)
}
