//! Data loaders of burn as what replicas read from.

use std::fmt;
use std::sync::Arc;

use burn::data::dataloader::{DataLoader, DataLoaderIterator};
use distribute_core::{Error, Nest, PerReplica, Result, Strategy, WorkerGroup};

use crate::DataError;
use crate::from_function::{Producer, Steps};
use crate::prefetch::{Emit, Prefetch};
use crate::split::replica_range;

/// Batches of a data loader of burn, one for each replica and step.
///
/// Each replica has a slice of the loader's examples, on its own device. [`iter`](Self::iter) makes
/// one pass over all of them.
#[must_use]
pub struct DistributedDataLoader<O> {
    /// One for each local replica.
    loaders: Arc<[Arc<dyn DataLoader<O>>]>,
    prefetch: usize,
    workers: Option<WorkerGroup>,
}

impl<O> DistributedDataLoader<O> {
    pub(crate) fn new<S: Strategy + ?Sized>(strategy: &S, loader: &dyn DataLoader<O>) -> Self {
        let local = strategy.replicas();
        let replicas = strategy.num_replicas_in_sync();
        let mut loaders = Vec::with_capacity(local.len());
        // Each slice of a shuffled loader draws a seed. They are made for all replicas, in their
        // order, so that a replica's batches do not depend on the process it is in.
        for id in 0..replicas {
            let own = replica_range(loader.num_items(), replicas, id);
            let slice = loader.slice(own.start, own.end);
            if let Some(replica) = local.iter().find(|replica| replica.id == id) {
                loaders.push(slice.to_device(&replica.device));
            }
        }
        Self {
            loaders: loaders.into(),
            prefetch: 2,
            workers: strategy.workers().cloned(),
        }
    }

    /// How many steps a background thread may hold ready, 2 by default and at least 1: the
    /// iterators of loaders cannot leave the thread that made them. The loader's own threads
    /// (`num_workers`) read ahead too, up to 100 batches for each replica.
    pub fn prefetch(mut self, steps: usize) -> Self {
        self.prefetch = steps;
        self
    }
}

impl<O: Nest + Clone + Send + 'static> DistributedDataLoader<O> {
    /// One pass over all examples (burn: `DataLoader::iter`), in another order each time if the
    /// loader shuffles.
    ///
    /// Every step has one batch of the loader for each replica. Where a replica's examples have
    /// ended before the others', it gets an empty batch: tensors lose their examples and numbers
    /// become 0. Over several workers too, which exchange a word before every step.
    ///
    /// An error of the loader's dataset comes out as the last item, and so does
    /// [`DataError::LoaderEnded`] if the loader ends before it has read all its items, because a
    /// thread of it has panicked.
    pub fn iter(&self) -> Steps<O> {
        self.into_iter()
    }

    /// Makes the batches of one pass, on the thread that reads ahead.
    fn emit(loaders: &[Arc<dyn DataLoader<O>>], emit: Emit<'_, PerReplica<O>>) {
        let pipelines = loaders.iter().map(|loader| Pass {
            batches: loader.iter(),
            has_ended: false,
        });
        let steps = Producer {
            pipelines: pipelines.collect(),
            local_replicas: loaders.len(),
            drop_partial_step: false,
        };
        for step in steps {
            if !emit(step) {
                return;
            }
        }
    }
}

/// [`DistributedDataLoader::iter`].
impl<O: Nest + Clone + Send + 'static> IntoIterator for &DistributedDataLoader<O> {
    type Item = Result<PerReplica<O>>;
    type IntoIter = Steps<O>;

    fn into_iter(self) -> Steps<O> {
        let loaders = Arc::clone(&self.loaders);
        let items = Prefetch::emitted(
            move |emit: Emit<'_, _>| DistributedDataLoader::emit(&loaders, emit),
            self.prefetch,
        );
        Steps::new(items, self.workers.clone(), self.loaders.len())
    }
}

impl<O> Clone for DistributedDataLoader<O> {
    fn clone(&self) -> Self {
        Self {
            loaders: Arc::clone(&self.loaders),
            prefetch: self.prefetch,
            workers: self.workers.clone(),
        }
    }
}

impl<O> fmt::Debug for DistributedDataLoader<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedDataLoader")
            .field("local_replicas", &self.loaders.len())
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

/// One pass over the loader of a replica.
struct Pass<'a, O> {
    batches: Box<dyn DataLoaderIterator<O> + 'a>,
    has_ended: bool,
}

impl<O> Iterator for Pass<'_, O> {
    type Item = Result<O>;

    fn next(&mut self) -> Option<Result<O>> {
        if self.has_ended {
            return None;
        }
        if let Some(batch) = self.batches.next() {
            return Some(batch.map_err(Error::input));
        }
        self.has_ended = true;
        // A thread of the loader that has panicked says nothing.
        let progress = self.batches.progress();
        let (read, items) = (progress.items_processed, progress.items_total);
        (read < items).then(|| Err(DataError::LoaderEnded { read, items }.into()))
    }
}
