//! What a metric remembers: two sums per replica.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use burn::tensor::TensorData;

use crate::error::check_count;
use crate::sync::lock;
use crate::trace::{Receiver, Target};
use crate::{
    Error, Leaf, PerReplica, ReduceOp, Result, Strategy, StrategyExt, StrategyId, VariableContext,
    scope,
};

/// The sums of weighted values and of weights.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Total {
    pub(super) values: f64,
    pub(super) weights: f64,
}

impl Total {
    /// The weighted mean; 0 if nothing was added (Keras: `divide_no_nan`).
    pub(super) fn mean(self) -> f64 {
        if self.weights == 0.0 {
            0.0
        } else {
            self.values / self.weights
        }
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
        let sums = Self {
            strategy: strategy.handle(),
            replicas: replicas.map(|_| Mutex::default()).collect(),
        };
        sums.used_outside();
        sums
    }

    /// Adds what `total` makes of values to the sums of one replica: now, or after each call of a
    /// compiled step.
    pub(super) fn update<C, F>(
        &self,
        context: &C,
        values: &mut [&mut dyn Leaf],
        total: F,
    ) -> Result<()>
    where
        C: VariableContext + ?Sized,
        F: Fn(&[TensorData]) -> Result<Total> + Send + Sync + 'static,
    {
        self.check_owner(&context.strategy_id("update_state")?)?;
        let total = Arc::new(total);
        let (replicas, compute) = (Arc::downgrade(&self.replicas), Arc::clone(&total));
        let receiver = Receiver {
            target: Arc::new(WeakSums(replicas.clone())),
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

    fn check_owner(&self, user: &StrategyId) -> Result<()> {
        let owner = self.strategy.id();
        if *user != owner {
            return Err(Error::MixedStrategies {
                owner: owner.to_string(),
                user: user.to_string(),
            });
        }
        Ok(())
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

    /// Steps may go on with another metric than this one.
    fn used_outside(&self) {
        if let Some(tracer) = self.strategy.tracer() {
            tracer.device().next_generation();
        }
    }

    /// The sums over all replicas.
    pub(super) fn total(&self) -> Result<Total> {
        self.used_outside();
        let parts = self.replicas.iter().map(|replica| {
            let total = *lock(replica);
            (total.values, total.weights)
        });
        let parts = PerReplica::new(parts.collect());
        let (values, weights) = self.strategy.reduce(ReduceOp::Sum, parts)?;
        Ok(Total { values, weights })
    }

    pub(super) fn reset(&self) -> Result<()> {
        scope::check_cross_replica(&self.strategy.id(), "reset_state")?;
        self.used_outside();
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

/// The sums of a metric as long as it is there.
struct WeakSums(Weak<[Mutex<Total>]>);

impl Target for WeakSums {
    fn address(&self) -> Option<usize> {
        let there = self.0.strong_count() > 0;
        there.then(|| self.0.as_ptr().cast::<()>() as usize)
    }
}

impl fmt::Debug for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.replicas.iter().map(|replica| *lock(replica)))
            .finish()
    }
}

/// The sums of a batch of values (Keras: `reduce_to_samplewise_values`).
///
/// Weights have the values' leading dimensions; values are averaged over the trailing dimensions
/// that weights lack. One weight counts for all values.
pub(super) fn batch(values: &TensorData, weights: Option<&TensorData>) -> Result<Total> {
    let Some(weights) = weights else {
        return Ok(Total {
            values: values.iter::<f64>().sum(),
            weights: to_f64(values.num_elements()),
        });
    };
    if weights.num_elements() == 1 && values.num_elements() != 1 {
        let weight: f64 = weights.iter::<f64>().sum();
        return Ok(Total {
            values: values.iter::<f64>().sum::<f64>() * weight,
            weights: to_f64(values.num_elements()) * weight,
        });
    }
    let leading = values.shape().get(..weights.rank());
    if leading != Some(&weights.shape()[..]) {
        return Err(Error::Shape {
            op: "sample weights: the values' leading dimensions",
            expected: leading.unwrap_or(&values.shape()[..]).to_vec(),
            found: weights.shape().to_vec(),
        });
    }
    let width: usize = values.shape()[weights.rank()..].iter().product();
    let values: Vec<f64> = values.iter::<f64>().collect();
    let mut total = Total::default();
    for (index, weight) in weights.iter::<f64>().enumerate() {
        let row = &values[index * width..(index + 1) * width];
        total.values += weight * row.iter().sum::<f64>() / to_f64(width);
        total.weights += weight;
    }
    Ok(total)
}

fn to_f64(count: usize) -> f64 {
    count as f64
}
