//! What a metric remembers: two sums per replica.

use std::fmt;
use std::sync::{Arc, Mutex};

use burn::tensor::TensorData;

use super::MetricValues;
use crate::error::check_count;
use crate::strategy::reduce::reduce;
use crate::sync::lock;
use crate::trace::Receiver;
use crate::{
    Error, Leaf, PerReplica, ReduceOp, Result, Strategy, VariableContext, scope, strategy,
};

/// The sums of weighted values and of weights.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Total {
    pub(super) values: f64,
    pub(super) weights: f64,
}

impl Total {
    /// The weighted mean.
    pub(super) fn mean(self) -> f64 {
        weighted_mean(self.values, self.weights)
    }
}

/// A sum of weighted values over the sum of their weights; 0 if nothing was added
/// (Keras: `divide_no_nan`).
pub fn weighted_mean(values: f64, weights: f64) -> f64 {
    if weights == 0.0 {
        0.0
    } else {
        values / weights
    }
}

/// The sums of every local replica. A clone is the same sums.
#[derive(Clone)]
pub(super) struct Sums {
    strategy: Arc<dyn Strategy>,
    replicas: Arc<[Mutex<Total>]>,
}

impl Sums {
    pub(super) fn new(strategy: &(impl Strategy + ?Sized)) -> Self {
        let replicas = strategy.replicas().iter();
        // Steps may go on with another metric than this one.
        strategy::used_outside(strategy);
        Self {
            strategy: strategy.handle(),
            replicas: replicas.map(|_| Mutex::default()).collect(),
        }
    }

    /// Adds what `total` makes of values to the sums of one replica: now, or after each call of a
    /// compiled step.
    pub(super) fn update(
        &self,
        context: &(impl VariableContext + ?Sized),
        values: &mut [&mut dyn Leaf],
        total: impl Fn(&[TensorData]) -> Result<Total> + Send + Sync + 'static,
    ) -> Result<()> {
        let user = context.strategy_id("update_state")?;
        self.strategy.id().check_user(&user)?;
        let total = Arc::new(total);
        let (replicas, compute) = (Arc::downgrade(&self.replicas), Arc::clone(&total));
        let receiver = Receiver {
            target: Arc::new(replicas.clone()),
            check: &|values| total(values).map(drop),
            apply: Arc::new(move |replica, values: Vec<TensorData>| {
                if let Some(replicas) = replicas.upgrade() {
                    add_to(&replicas, replica, compute(&values)?);
                }
                Ok(())
            }),
        };
        context.give(values, receiver)
    }

    /// Adds what a metric makes of a batch.
    pub(super) fn measure(
        &self,
        context: &(impl VariableContext + ?Sized),
        mut measured: MetricValues,
        weights: Option<&mut dyn Leaf>,
    ) -> Result<()> {
        let mut given: Vec<&mut dyn Leaf> = vec![&mut measured.values];
        if let Some(weights) = weights {
            given.push(weights);
        }
        let shape = measured.shape;
        self.update(context, &mut given, move |data| {
            batch(&data[0], &shape, data.get(1))
        })
    }

    /// Adds a batch to every replica's sums, outside of a step.
    pub(super) fn add_all(&self, batches: Vec<Total>) -> Result<()> {
        scope::check_cross_replica(&self.strategy.id(), "update_all")?;
        check_count("a per-replica value", self.replicas.len(), batches.len())?;
        for (index, batch) in batches.into_iter().enumerate() {
            add_to(&self.replicas, index, batch);
        }
        Ok(())
    }

    /// The sums over all replicas.
    pub(super) fn total(&self) -> Result<Total> {
        strategy::used_outside(&*self.strategy);
        let parts = self.replicas.iter().map(|replica| {
            let total = *lock(replica);
            (total.values, total.weights)
        });
        let parts = PerReplica::new(parts.collect());
        let (values, weights) = reduce(&*self.strategy, ReduceOp::Sum, parts)?;
        Ok(Total { values, weights })
    }

    pub(super) fn reset(&self) -> Result<()> {
        scope::check_cross_replica(&self.strategy.id(), "reset_state")?;
        strategy::used_outside(&*self.strategy);
        for replica in self.replicas.iter() {
            *lock(replica) = Total::default();
        }
        Ok(())
    }
}

fn add_to(replicas: &[Mutex<Total>], local_id: usize, batch: Total) {
    let mut total = lock(&replicas[local_id]);
    total.values += batch.values;
    total.weights += batch.weights;
}

impl fmt::Debug for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals = self.replicas.iter().map(|replica| *lock(replica));
        f.debug_list().entries(totals).finish()
    }
}

/// The sums of a batch of values of a shape (Keras: `reduce_to_samplewise_values`).
///
/// Weights have the values' leading dimensions; values are averaged over the trailing dimensions
/// that weights lack. One weight counts for all values.
pub(super) fn batch(
    values: &TensorData,
    shape: &[usize],
    weights: Option<&TensorData>,
) -> Result<Total> {
    let count = values.num_elements();
    let weights = match weights {
        Some(weights) if weights.num_elements() != 1 || count == 1 => weights,
        one => {
            let weight: f64 = one.map_or(1.0, |one| one.iter::<f64>().sum());
            return Ok(Total {
                values: values.iter::<f64>().sum::<f64>() * weight,
                weights: count as f64 * weight,
            });
        }
    };
    let leading = shape.get(..weights.rank());
    if leading != Some(&weights.shape()[..]) {
        let expected = leading.unwrap_or(shape);
        let op = "sample weights: the values' leading dimensions";
        return Err(Error::shape(op, expected, weights.shape()));
    }
    let width: usize = shape[weights.rank()..].iter().product();
    let values: Vec<f64> = values.iter::<f64>().collect();
    let mut total = Total::default();
    for (index, weight) in weights.iter::<f64>().enumerate() {
        let row = &values[index * width..(index + 1) * width];
        total.values += weight * row.iter().sum::<f64>() / width as f64;
        total.weights += weight;
    }
    Ok(total)
}
