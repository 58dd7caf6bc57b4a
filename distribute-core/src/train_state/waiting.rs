//! The gradients of micro-batches that wait for the rest of their update, on their way into a
//! checkpoint and back.

use burn::module::Module;
use burn::tensor::TensorData;

use super::TrainState;
use crate::{Error, Gradients, Mirrored, Result};

/// One replica's sums of the gradients, by parameter; none where no loss depended on it.
type Sums = Vec<Option<TensorData>>;

impl<M> TrainState<M> {
    /// How many micro-batches wait, and how many make an update.
    pub fn accumulation(&self) -> (usize, usize) {
        let waiting = self.accumulated.as_ref().map_or(0, |(count, _)| *count);
        (waiting, self.accumulation_steps)
    }

    /// How far the training has come, in updates that were made or skipped, and micro-batches.
    pub(super) fn position(&self) -> u64 {
        (self.attempts() << 16) | self.accumulation().0 as u64
    }

    fn waiting(&self) -> Result<Option<Sums>> {
        let Some((_, gradients)) = &self.accumulated else {
            return Ok(None);
        };
        let all = (0..gradients.len()).map(|index| Ok(gradients.get(index)?.cloned()));
        all.collect::<Result<_>>().map(Some)
    }
}

impl<M: Module + 'static> Mirrored<TrainState<M>> {
    /// The gradients of micro-batches that wait for the rest of their update, replica by replica:
    /// one for each parameter, none where no loss depended on it. `None` if no micro-batch waits.
    /// Waits for the devices.
    ///
    /// # Errors
    /// If a device cannot be read.
    pub fn waiting_gradients(&self) -> Result<Option<Vec<Sums>>> {
        if !self.host_metadata().is_accumulating() {
            return Ok(None);
        }
        let waiting = self.values()?.iter().map(TrainState::waiting);
        let waiting = waiting.collect::<Result<Vec<_>>>()?;
        Ok(waiting.into_iter().collect())
    }

    /// Puts back what waited after `count` micro-batches, one list for each local replica.
    ///
    /// # Errors
    /// [`Error::ReplicaCount`] for another number of lists; a list of another model.
    pub fn put_waiting_gradients(&mut self, count: usize, replicas: Vec<Sums>) -> Result<()> {
        let states = self.host_values_mut()?;
        crate::error::check_count("the micro-batches", states.len(), replicas.len())?;
        for (state, sums) in states.iter_mut().zip(replicas) {
            let gradients = Gradients::of_values(&state.model, sums)?;
            state.accumulated = Some((count, gradients));
        }
        Ok(())
    }

    /// What waited on other replicas than these, which have these ids: the sums for replica 0 and
    /// zeros for the others.
    ///
    /// # Errors
    /// If nothing is stored, or it is of another model.
    pub fn redistribute_gradients(&self, stored: Vec<Sums>, ids: &[usize]) -> Result<Vec<Sums>> {
        let model = &self.host_metadata().model;
        let mut all = stored
            .into_iter()
            .map(|sums| Gradients::of_values(model, sums));
        let missing = || Error::invalid("no gradients of micro-batches");
        let mut sum = all.next().ok_or_else(missing)??;
        all.try_for_each(|other| sum.accumulate(other?))?;
        let (sum, _) = sum.into_values()?;
        let zero =
            |data: &TensorData| TensorData::full_dtype(data.shape().clone(), 0.0, data.dtype());
        let zeros: Sums = sum.iter().map(|data| data.as_ref().map(zero)).collect();
        let of = |id: &usize| if *id == 0 { &sum } else { &zeros };
        Ok(ids.iter().map(|id| of(id).clone()).collect())
    }
}
