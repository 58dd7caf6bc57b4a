//! A metric whose sums the replicas of a strategy collect.

use super::Metric;
use super::mean::calls;
use super::sums::Sums;
use crate::{Leaf, Result, Strategy, VariableContext};

/// A [`Metric`] that steps update on every replica, and that is put together over the replicas when
/// it is read (Keras: a metric that is made under `strategy.scope()`). Made by
/// [`StrategyExt::metric`](crate::StrategyExt::metric). A clone has the same sums.
#[derive(Debug, Clone)]
pub struct DistributedMetric<M> {
    metric: M,
    sums: Sums,
}

impl<M> DistributedMetric<M> {
    pub(crate) fn new(strategy: &(impl Strategy + ?Sized), metric: M) -> Self {
        Self {
            metric,
            sums: Sums::new(strategy),
        }
    }

    /// Adds a batch; an empty one counts nothing.
    ///
    /// # Errors
    /// The errors of the metric, and [`Error::MixedStrategies`](crate::Error::MixedStrategies).
    pub fn update_state<P, Y>(
        &self,
        context: &(impl VariableContext + ?Sized),
        labels: &Y,
        predictions: &P,
    ) -> Result<()>
    where
        M: Metric<P, Y>,
    {
        let values = self.metric.values(predictions, labels)?;
        self.sums.measure(context, values, None)
    }

    /// [`update_state`](Self::update_state) with a weight for every example, or one for all.
    ///
    /// # Errors
    /// Also [`Error::Shape`](crate::Error::Shape) if the weights do not fit.
    pub fn update_state_weighted<P, Y>(
        &self,
        context: &(impl VariableContext + ?Sized),
        labels: &Y,
        predictions: &P,
        mut weights: impl Leaf,
    ) -> Result<()>
    where
        M: Metric<P, Y>,
    {
        let values = self.metric.values(predictions, labels)?;
        self.sums.measure(context, values, Some(&mut weights))
    }

    calls!(total => total.mean());
}
