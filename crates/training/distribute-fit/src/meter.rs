//! Averages of an epoch: read from the device on demand.

use std::fmt;
use std::sync::Arc;

use distribute_core::metric::weighted_mean;
use distribute_core::{PerReplica, ReduceOp, Result, Strategy, StrategyExt};

use super::FitError;
use super::objective::{StepSums, Sums};

/// Batches whose sums may stay on the device; bounds the memory that they hold.
const MAX_UNREAD_BATCHES: usize = 32;

/// Named numbers in a fixed order: `loss` first, then the metrics, then the same of the validation
/// data with the prefix `val_`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Logs {
    entries: Vec<(String, f64)>,
}

impl Logs {
    /// The value called `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        let found = self.entries.iter().find(|(entry, _)| entry == name);
        found.map(|(_, value)| *value)
    }

    /// The loss: the mean over the examples, plus regularization. NaN if there is none yet.
    pub fn loss(&self) -> f64 {
        self.get("loss").unwrap_or(f64::NAN)
    }

    /// All names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.entries
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
    }

    /// This name, or the first of `name_1`, `name_2`, .. that no entry has, as Keras names metrics.
    fn free_name(&self, name: &str) -> String {
        let mut numbered = (1_usize..).map(|number| format!("{name}_{number}"));
        let mut free = std::iter::once(name.to_string()).chain(&mut numbered);
        free.find(|name| self.get(name).is_none())
            .unwrap_or_else(|| name.to_string())
    }

    /// Adds the validation data's values.
    pub(super) fn extend_validation(&mut self, validation: &Logs) {
        let prefixed = validation.iter();
        self.entries
            .extend(prefixed.map(|(name, value)| (format!("val_{name}"), value)));
    }

    /// The names, for messages.
    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.iter().map(|(name, _)| format!("`{name}`")).collect();
        names.join(", ")
    }
}

impl FromIterator<(String, f64)> for Logs {
    fn from_iter<I: IntoIterator<Item = (String, f64)>>(entries: I) -> Self {
        Self {
            entries: entries.into_iter().collect(),
        }
    }
}

impl fmt::Display for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self
            .iter()
            .map(|(name, value)| format!("{name}: {value:.4}"));
        f.write_str(&entries.collect::<Vec<_>>().join(" - "))
    }
}

/// Adds up the batches of one epoch.
pub(super) struct Meter {
    strategy: Arc<dyn Strategy>,
    /// Batches that the workers have not put together yet, each with this worker's part of its
    /// sums, if that was read already.
    unread: Vec<(PerReplica<StepSums>, Option<Sums>)>,
    pub(super) sums: Sums,
}

impl Meter {
    pub(super) fn new(strategy: &Arc<dyn Strategy>) -> Self {
        Self {
            strategy: Arc::clone(strategy),
            unread: Vec::new(),
            sums: Sums::default(),
        }
    }

    /// Forgets all batches.
    pub(super) fn reset(&mut self) {
        *self = Self::new(&self.strategy);
    }

    /// Takes a batch's sums over; reads the device only when too many are waiting.
    pub(super) fn add(&mut self, batch: PerReplica<StepSums>) -> Result<()> {
        self.unread.push((batch, None));
        if self.unread.len() >= MAX_UNREAD_BATCHES {
            self.read()?;
        }
        Ok(())
    }

    /// Takes sums over that were read already.
    pub(super) fn add_read(&mut self, batch: Sums) -> Result<()> {
        self.sums.add(batch)
    }

    /// One batch's sums over the replicas. Waits for the devices.
    pub(super) fn sums_of(strategy: &dyn Strategy, batch: PerReplica<StepSums>) -> Result<Sums> {
        StepSums::check_same(batch.values())?;
        StepSums::read(&[strategy.reduce(ReduceOp::Sum, batch)?], 1.0)
    }

    /// Reads and adds up everything so far. Waits for the devices.
    pub(super) fn read(&mut self) -> Result<&Sums> {
        for (batch, _) in self.unread.drain(..) {
            self.sums.add(Self::sums_of(&*self.strategy, batch)?)?;
        }
        Ok(&self.sums)
    }

    /// All that was put together, and this worker's part of the rest, without waiting for other
    /// workers.
    pub(super) fn so_far(&mut self) -> Result<Sums> {
        if self.strategy.workers().is_none() {
            return self.read().cloned();
        }
        let mut sums = self.sums.clone();
        // Every replica has its share of the regularization.
        let local = self.strategy.replicas().len() as f64;
        let share = self.strategy.num_replicas_in_sync() as f64 / local;
        for (batch, own) in &mut self.unread {
            let read = match own.take() {
                Some(read) => read,
                None => StepSums::read(batch.values(), share)?,
            };
            sums.add(own.insert(read).clone())?;
        }
        Ok(sums)
    }

    /// The averages of a whole pass over `what`, and the number of examples. Waits for the
    /// devices.
    pub(super) fn finish(&mut self, what: &'static str) -> Result<(Logs, f64)> {
        let sums = self.read()?;
        if sums.examples == 0.0 {
            return Err(FitError::NoExamples { what }.into());
        }
        Ok((sums.logs(), sums.examples))
    }
}

impl Sums {
    /// The mean loss; `None` without examples.
    pub(super) fn loss(&self) -> Option<f64> {
        let mean = (self.loss + self.regularization) / self.examples;
        (self.examples > 0.0).then_some(mean)
    }

    /// The averages.
    pub(super) fn logs(&self) -> Logs {
        let loss = self.loss().unwrap_or(f64::NAN);
        let metrics = self.metrics.iter().map(|(name, sum, count)| {
            // A metric that never saw an example is 0.
            (name.to_string(), weighted_mean(sum.0, count.0))
        });
        let entries = std::iter::once(("loss".to_string(), loss)).chain(metrics);
        let mut logs: Logs = entries.collect();
        for (metric, sums) in &self.totals {
            let sums: Vec<f64> = sums.iter().map(|sum| sum.0).collect();
            let name = logs.free_name(metric.name());
            logs.entries.push((name, metric.metric.result(&sums)));
        }
        logs
    }
}
