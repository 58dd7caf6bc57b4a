//! Datasets of which every worker has an iterator of its own.

use std::fmt;
use std::sync::Arc;

use distribute_core::InputContext;

use super::context::WorkerContext;
use super::registry::Resource;
use crate::error::{PsError, Result};

pub(super) type Items<B> = Box<dyn Iterator<Item = Result<B>> + Send>;
pub(super) type Make<B> = dyn Fn(InputContext) -> Result<Items<B>> + Send + Sync;

/// A dataset of which every worker has an iterator of its own (TensorFlow:
/// `PerWorkerDatasetFromDatasetFunction`).
///
/// It has no elements here: steps take them on the workers, by [`WorkerContext::next`]. A worker
/// makes its iterator when a step first asks for an element; one that was restarted begins at the
/// start again.
pub struct PerWorkerDataset<B> {
    pub(super) iterator: Resource<DatasetIterator<B>>,
}

impl<B> PerWorkerDataset<B> {
    pub(crate) fn new(iterator: Resource<DatasetIterator<B>>) -> Self {
        Self { iterator }
    }

    /// The registered name.
    pub fn name(&self) -> &str {
        self.iterator.name()
    }
}

impl<B> Clone for PerWorkerDataset<B> {
    fn clone(&self) -> Self {
        Self::new(self.iterator.clone())
    }
}

impl<B> fmt::Debug for PerWorkerDataset<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerWorkerDataset({:?})", self.name())
    }
}

/// The iterator of one worker.
pub(crate) struct DatasetIterator<B> {
    make: Arc<Make<B>>,
    renewals: u64,
    items: Items<B>,
}

impl<B> DatasetIterator<B> {
    pub(super) fn new(make: Arc<Make<B>>, worker: &WorkerContext) -> Result<Self> {
        let items = make(worker.input_context())?;
        Ok(Self {
            make,
            renewals: 0,
            items,
        })
    }

    /// The next element, of a new iterator if the coordinator asked for one since.
    pub(super) fn next(&mut self, name: &str, worker: &WorkerContext) -> Result<B> {
        let wanted = worker.dataset_renewals(name);
        if wanted > self.renewals {
            self.items = (self.make)(worker.input_context())?;
            self.renewals = wanted;
        }
        let exhausted = || PsError::OutOfRange {
            dataset: name.to_string(),
            worker: format!("worker {}", worker.worker_index()),
        };
        self.items.next().unwrap_or_else(|| Err(exhausted()))
    }
}
