//! What the workers of a training tell each other: nothing where a process is alone.

use std::thread;

use burn::tensor::TensorData;
use burn_train::Interrupter;
use distribute_core::{Error, Result, Strategy, WorkerGroup};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// This process among the workers of a training.
#[derive(Debug, Clone)]
pub(crate) struct Team(Option<WorkerGroup>);

/// A wish to stop, without an error.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Stop {
    reason: Option<String>,
}

impl Stop {
    /// The one of this process, if it has one.
    pub(crate) fn of(interrupter: &Interrupter) -> Option<Self> {
        interrupter.should_stop().then(|| Self {
            reason: interrupter.get_message(),
        })
    }

    /// Makes it the one of this process.
    pub(crate) fn tell(&self, interrupter: &Interrupter) {
        interrupter.stop(self.reason.as_deref());
    }
}

impl Team {
    pub(crate) fn of(strategy: &dyn Strategy) -> Self {
        let workers = strategy.workers();
        Self(workers.filter(|group| group.num_workers() > 1).cloned())
    }

    /// The workers, unless this process is the only one.
    pub(crate) fn workers(&self) -> Option<&WorkerGroup> {
        self.0.as_ref()
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.0.is_none()
    }

    /// Whether this process writes what is written once.
    pub(crate) fn is_chief(&self) -> bool {
        self.0.as_ref().is_none_or(WorkerGroup::is_chief)
    }

    /// Ends every call of the others with an error that names this worker and the reason.
    pub(crate) fn abort(&self, reason: &str) {
        if let Some(workers) = &self.0 {
            workers.abort(reason);
        }
    }

    /// Something that this worker does alone while the others wait: its error ends them.
    pub(crate) fn or_abort<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.abort(&error.to_string()))
    }

    /// What all workers say, the chief first; `call` says about what. All of them call it.
    pub(crate) fn all<T: Serialize + DeserializeOwned>(
        &self,
        call: &str,
        own: T,
    ) -> Result<Vec<T>> {
        match &self.0 {
            None => Ok(vec![own]),
            Some(workers) => workers.all_gather_json(call, &own),
        }
    }

    /// The outcome of something that each worker does alone; an error of one is one on all of them.
    /// All of them call it.
    pub(crate) fn all_succeed<T>(&self, call: &str, outcome: Result<T>) -> Result<T> {
        if self.is_alone() {
            return outcome;
        }
        let said = self.all(call, outcome.as_ref().err().map(Error::to_string))?;
        let mut said = said.into_iter().enumerate();
        let value = outcome?;
        match said.find_map(|(worker, error)| Some((worker, error?))) {
            Some((worker, error)) => Err(Error::invalid(format!("worker {worker}: {error}"))),
            None => Ok(value),
        }
    }

    /// What all workers say and the tensors that they send with it, as [`all`](Self::all).
    pub(crate) fn all_with_tensors<T: Serialize + DeserializeOwned>(
        &self,
        call: &str,
        own: T,
        tensors: Vec<TensorData>,
    ) -> Result<Vec<(T, Vec<TensorData>)>> {
        let Some(workers) = &self.0 else {
            return Ok(vec![(own, tensors)]);
        };
        let said = serde_json::to_vec(&own).map_err(Error::internal)?;
        let length = said.len();
        let mut list = vec![TensorData::new(said, [length])];
        list.extend(tensors);
        let lists = workers.gather(call, &[list])?.into_iter().map(|list| {
            let mut list = list.into_iter();
            let said = list.next().and_then(|said| said.try_into_vec::<u8>().ok());
            let said =
                serde_json::from_slice(&said.unwrap_or_default()).map_err(Error::internal)?;
            Ok((said, list.collect()))
        });
        lists.collect()
    }
}

/// Tells the others when this worker's training ends in a panic.
pub(crate) struct EndOfPanic(pub(crate) Team);

impl Drop for EndOfPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abort("its training panicked; see its output");
        }
    }
}
