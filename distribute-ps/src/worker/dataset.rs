//! Datasets of which every worker has an iterator of its own.

use std::fmt;
use std::sync::Arc;

use distribute_core::InputContext;

use super::context::WorkerContext;
use super::registry::StepRegistry;
use super::resource::Resource;
use crate::error::{PsError, Result};

type Items<B> = Box<dyn Iterator<Item = Result<B>> + Send>;
type Make<B> = dyn Fn(InputContext) -> Result<Items<B>> + Send + Sync;

/// A dataset of which every worker has an iterator of its own (TensorFlow:
/// `PerWorkerDatasetFromDatasetFunction`).
///
/// It has no elements here: steps take them on the workers, by [`WorkerContext::next`]. A worker
/// makes its iterator when a step first asks for an element; one that was restarted begins at the
/// start again.
pub type PerWorkerDataset<B> = Resource<DatasetIterator<B>>;

/// The iterator of one worker.
pub struct DatasetIterator<B> {
    make: Arc<Make<B>>,
    renewals: u64,
    items: Items<B>,
}

impl<B> fmt::Debug for DatasetIterator<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatasetIterator")
    }
}

impl<B> DatasetIterator<B> {
    fn new(make: Arc<Make<B>>, worker: &WorkerContext) -> Result<Self> {
        let items = make(worker.input_context())?;
        Ok(Self {
            make,
            renewals: 0,
            items,
        })
    }

    /// The next element, of a new iterator if the coordinator asked for one since.
    fn next(&mut self, name: &str, worker: &WorkerContext) -> Result<B> {
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

impl StepRegistry {
    /// Registers a dataset by the function that makes a worker's iterator of it (TensorFlow:
    /// `create_per_worker_dataset` of a function). The function is told which of the workers it
    /// works for; workers that should not all see the same examples take their share of them.
    ///
    /// # Errors
    /// As [`step`](Self::step); datasets and resources share one space of names.
    pub fn dataset<B, I, F>(
        &mut self,
        name: impl Into<String>,
        iterator: F,
    ) -> Result<PerWorkerDataset<B>>
    where
        B: Send + 'static,
        I: IntoIterator<Item = Result<B>>,
        I::IntoIter: Send + 'static,
        F: Fn(InputContext) -> Result<I> + Send + Sync + 'static,
    {
        let make: Arc<Make<B>> = Arc::new(move |context| {
            let iterator: Items<B> = Box::new(iterator(context)?.into_iter());
            Ok(iterator)
        });
        self.resource(name, move |worker| {
            DatasetIterator::new(make.clone(), worker)
        })
    }
}

impl WorkerContext {
    /// The next element of this worker's iterator.
    ///
    /// # Errors
    /// [`PsError::OutOfRange`] after the last one; the dataset's own errors.
    pub fn next<B: Send + 'static>(&self, dataset: &PerWorkerDataset<B>) -> Result<B> {
        let mut iterator = self.resource(dataset)?;
        iterator.next(dataset.name(), self)
    }
}
