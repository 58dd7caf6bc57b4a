//! A stream of a pipeline whose batches are cut over replicas.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distribute_core::{
    BatchSource, Device, Nest, PerReplica, Result, SourceState, Strategy, WorkerGroup,
};
use distribute_pipeline::{Cardinality, PipelineError, State, Stream};

use crate::split;

/// A [`Stream`] of global batches, each a list of examples, cut over the replicas:
/// [`StrategyDataExt::distribute_stream`](crate::StrategyDataExt::distribute_stream).
///
/// A pass over the stream is an epoch. Every worker reads the whole stream, and each replica gets
/// the part of its id of every batch: the same on any number of workers. `Fit` keeps the stream's
/// state in its checkpoints, so that a run that is resumed in the middle of an epoch goes on with
/// the same batches and reads none again.
#[must_use]
pub struct DistributedStream<S: Stream, F> {
    shared: Arc<Shared<S>>,
    make: F,
    replicas: Vec<(usize, Device)>,
    num_replicas: usize,
    batches: Option<usize>,
    workers: Option<WorkerGroup>,
}

/// What the strategy reads and what a checkpoint asks.
struct Shared<S> {
    place: Mutex<Place<S>>,
}

/// The stream, and where it is.
struct Place<S> {
    stream: S,
    epoch: usize,
    batches: usize,
    /// Whether it is there: not after an error.
    is_known: bool,
    /// The state before the last batch, if it is small: for a batch that is read and not used.
    before: Option<State>,
    is_large: bool,
}

/// The most bytes of a state that is taken before every batch.
const SMALL: usize = 4 << 10;

impl<S: Stream, F> DistributedStream<S, F> {
    pub(crate) fn new<T: Strategy + ?Sized>(strategy: &T, stream: S, make: F) -> Result<Self> {
        let checked: Result<()> = stream.check().map_err(Into::into);
        match strategy.workers() {
            Some(workers) => workers.or_abort(checked)?,
            None => checked?,
        }
        let replicas = strategy.replicas().iter();
        let batches = match stream.cardinality() {
            Cardinality::Known(batches) => usize::try_from(batches).ok(),
            _ => None,
        };
        Ok(Self {
            make,
            replicas: replicas
                .map(|replica| (replica.id, replica.device.clone()))
                .collect(),
            num_replicas: strategy.num_replicas_in_sync(),
            batches,
            workers: strategy
                .workers()
                .filter(|group| group.num_workers() > 1)
                .cloned(),
            shared: Arc::new(Shared::new(stream)),
        })
    }
}

impl<S> Shared<S> {
    fn new(stream: S) -> Self {
        let place = Place {
            stream,
            epoch: 0,
            batches: 0,
            is_known: true,
            before: None,
            is_large: false,
        };
        Self {
            place: Mutex::new(place),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Place<S>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Stream> Place<S> {
    /// Goes to a batch of an epoch: where it is already, or else from the epoch's first batch on.
    fn go_to(&mut self, epoch: usize, batches: usize) -> Result<()> {
        if self.is_known && (self.epoch, self.batches) == (epoch, batches) {
            return Ok(());
        }
        self.is_known = false;
        self.stream.start(epoch as u64)?;
        (self.epoch, self.batches, self.before) = (epoch, 0, None);
        while self.batches < batches && self.stream.next()?.is_some() {
            self.batches += 1;
        }
        self.is_known = true;
        Ok(())
    }

    /// The batch of an epoch, from where the stream is or from the epoch's first batch on.
    fn at(&mut self, epoch: usize, batch: usize) -> Result<Option<S::Item>> {
        self.go_to(epoch, batch)?;
        self.next()
    }

    fn next(&mut self) -> Result<Option<S::Item>> {
        self.before = None;
        if !self.is_large {
            // A state that cannot be had ends no training: only a checkpoint needs it.
            self.before = self.stream.state().ok().filter(|it| it.size() <= SMALL);
            self.is_large = self.before.is_none();
        }
        self.is_known = false;
        let batch = self.stream.next()?;
        self.is_known = true;
        self.batches += usize::from(batch.is_some());
        Ok(batch)
    }
}

impl<S: Stream> SourceState for Shared<S> {
    fn save(&self, epoch: usize, batches: usize) -> Result<Option<Vec<u8>>> {
        let place = self.locked();
        let is_of_epoch = place.is_known && place.epoch == epoch;
        let state = match place.batches.checked_sub(batches) {
            Some(0) if is_of_epoch && batches > 0 => Some(place.stream.state()),
            Some(1) if is_of_epoch && batches > 0 => place.before.clone().map(Ok),
            // An epoch that has not begun is started.
            _ => None,
        };
        let bytes = state.map(|state| state.and_then(|state| state.to_bytes()));
        match bytes.transpose() {
            // The epoch is read again up to its place.
            Err(PipelineError::StateTooLarge { .. }) => Ok(None),
            bytes => Ok(bytes?),
        }
    }

    fn restore(&self, epoch: usize, batches: usize, state: &[u8]) -> Result<()> {
        let mut place = self.locked();
        place.is_known = false;
        place.stream.restore(&State::from_bytes(state)?)?;
        (place.epoch, place.batches) = (epoch, batches);
        place.before = None;
        place.is_known = true;
        Ok(())
    }
}

impl<S, E, F, B> DistributedStream<S, F>
where
    S: Stream<Item = Vec<E>>,
    F: Fn(&[E], &Device) -> Result<B>,
    B: Nest,
{
    /// The parts of a batch for the local replicas.
    fn cut(&self, batch: &[E]) -> Result<PerReplica<B>> {
        let parts = self.replicas.iter().map(|(id, device)| {
            let range = split::replica_range(batch.len(), self.num_replicas, *id);
            match batch.get(range).unwrap_or_default() {
                // What makes batches need not make one of nothing.
                [] => {
                    let mut part = (self.make)(batch.get(..1).unwrap_or_default(), device)?;
                    part.remove_example()?;
                    Ok(part)
                }
                part => (self.make)(part, device),
            }
        });
        let parts = PerReplica::new(parts.collect::<Result<Vec<_>>>()?);
        Ok(parts.of_global_batch(batch.len()))
    }

    fn at(&self, epoch: usize, batch: usize) -> Result<Option<PerReplica<B>>> {
        // The stream is free while the parts are made.
        let batch = self.shared.locked().at(epoch, batch)?;
        batch.map(|batch| self.cut(&batch)).transpose()
    }
}

impl<S, E, F, B> BatchSource for DistributedStream<S, F>
where
    S: Stream<Item = Vec<E>> + 'static,
    F: Fn(&[E], &Device) -> Result<B>,
    B: Nest + Send,
{
    type Batch = B;

    fn batches_per_epoch(&self) -> Option<usize> {
        self.batches
    }

    /// Batches have the sizes that the stream gives them.
    fn global_batch_size(&self) -> Option<usize> {
        None
    }

    fn parts(&self) -> Option<Vec<usize>> {
        Some(self.replicas.iter().map(|(id, _)| *id).collect())
    }

    /// Begins the epoch, or goes on with it where the stream is at that batch. Otherwise the
    /// batches before it are read again.
    fn epoch(
        &self,
        epoch: usize,
        skip_batches: usize,
    ) -> Result<Box<dyn Iterator<Item = Result<PerReplica<B>>> + '_>> {
        let gone = self.shared.locked().go_to(epoch, skip_batches);
        match &self.workers {
            None => gone?,
            // The others wait for this worker's word.
            Some(workers) => workers.or_abort(gone)?,
        }
        let mut numbers = skip_batches..;
        let mut has_ended = false;
        Ok(Box::new(std::iter::from_fn(move || {
            if has_ended {
                return None;
            }
            let batch = self.at(epoch, numbers.next()?);
            has_ended = !matches!(batch, Ok(Some(_)));
            if let Err(error) = &batch {
                self.workers
                    .iter()
                    .for_each(|workers| workers.abort(&error.to_string()));
            }
            batch.transpose()
        })))
    }

    /// The stream is read in its order: for any other batch than the next one, the epoch is read
    /// again from its begin.
    fn batch(&self, epoch: usize, batch: usize) -> Result<Option<PerReplica<B>>> {
        self.at(epoch, batch)
    }

    fn saved_state(&self) -> Option<Arc<dyn SourceState>> {
        let shared: Arc<Shared<S>> = Arc::clone(&self.shared);
        Some(shared)
    }
}

impl<S: Stream, F> fmt::Debug for DistributedStream<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedStream")
            .field("num_replicas", &self.num_replicas)
            .field("batches", &self.batches)
            .finish_non_exhaustive()
    }
}
