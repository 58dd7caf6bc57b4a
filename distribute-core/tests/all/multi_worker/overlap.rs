//! Gradients in packs: one pack travels while the parameters of the one before are updated.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use burn::nn::LinearConfig;
use burn::tensor::Tensor;
use distribute_core::collectives::{
    AbortHandle, Buffer, CollectiveError, Communicator, DType, Description, GatherTarget,
    GroupOptions, in_process,
};
use distribute_core::optim::{Optimizer, ParameterUpdate, Updated};
use distribute_core::{
    Applied, CommunicationOptions, Error, MultiWorkerMirroredStrategy, ReduceOp, Result, Sgd,
    Strategy, StrategyExt, TrainState,
};

/// A step that overlaps needs no time at all; one that does not would wait this long and fail.
const LIMIT: Duration = Duration::from_secs(20);

/// The flags that say which parameters have a gradient, the bias, the weights.
const PACKS: usize = 3;

/// What has begun on one worker since the watch was set.
#[derive(Debug, Default)]
struct Begun {
    watched: bool,
    exchanges: usize,
    updates: usize,
}

#[derive(Debug, Default)]
struct Progress {
    begun: Mutex<Begun>,
    changed: Condvar,
}

impl Progress {
    fn watch(&self) {
        self.begun.lock().unwrap().watched = true;
    }

    fn exchanges(&self) -> usize {
        self.begun.lock().unwrap().exchanges
    }

    /// Counts something; `until` says how far the other side must have come.
    fn count(
        &self,
        count: impl Fn(&mut Begun) -> &mut usize,
        until: impl Fn(&Begun) -> bool,
    ) -> Result<(), String> {
        let mut begun = self.begun.lock().unwrap();
        if !begun.watched {
            return Ok(());
        }
        *count(&mut begun) += 1;
        self.changed.notify_all();
        let waiting = |begun: &mut Begun| !until(begun);
        let waited = self.changed.wait_timeout_while(begun, LIMIT, waiting);
        if waited.unwrap().1.timed_out() {
            Err("an exchange and an update that should overlap do not".to_string())
        } else {
            Ok(())
        }
    }
}

/// Tells how many exchanges have begun, and lets the last end only after an update has begun.
struct Watched {
    inner: Box<dyn Communicator>,
    progress: Arc<Progress>,
    /// Fails in this exchange.
    fails_in: Option<usize>,
}

impl Communicator for Watched {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn all_reduce(
        &mut self,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<(), CollectiveError> {
        let last_waits = |begun: &Begun| begun.exchanges != PACKS || begun.updates > 0;
        let ended = |reason| CollectiveError::Aborted { rank: 0, reason };
        let counted = self
            .progress
            .count(|begun| &mut begun.exchanges, last_waits);
        counted.map_err(ended)?;
        if self.fails_in == Some(self.progress.exchanges()) {
            self.inner.abort("the cable was pulled");
        }
        self.inner.all_reduce(op, buffers)
    }

    fn reduce_scatter(
        &mut self,
        op: ReduceOp,
        buffer: Buffer<'_>,
    ) -> Result<Range<usize>, CollectiveError> {
        self.inner.reduce_scatter(op, buffer)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<(), CollectiveError> {
        self.inner.all_gather_into(dtype, input, output)
    }

    fn broadcast(
        &mut self,
        root: usize,
        buffers: &mut [Buffer<'_>],
    ) -> Result<(), CollectiveError> {
        self.inner.broadcast(root, buffers)
    }

    fn reduce(
        &mut self,
        op: ReduceOp,
        root: usize,
        buffers: &mut [Buffer<'_>],
    ) -> Result<(), CollectiveError> {
        self.inner.reduce(op, root, buffers)
    }

    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Result<(), CollectiveError> {
        self.inner.send(to, buffer)
    }

    fn recv(&mut self, from: usize, buffer: Buffer<'_>) -> Result<(), CollectiveError> {
        self.inner.recv(from, buffer)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.inner.barrier()
    }

    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }
}

/// SGD that lets the first update end only after the last exchange has begun.
#[derive(Debug)]
struct WatchedSgd {
    inner: Sgd,
    progress: Arc<Progress>,
    /// Fails in this update.
    fails_in: Option<usize>,
}

impl Optimizer for WatchedSgd {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn slots(&self) -> &[&'static str] {
        self.inner.slots()
    }

    fn learning_rate(&self) -> f64 {
        self.inner.learning_rate()
    }

    fn config(&self) -> serde_json::Value {
        self.inner.config()
    }

    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        self.inner.coefficients(learning_rate, step)
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let first_waits = |begun: &Begun| begun.updates != 1 || begun.exchanges == PACKS;
        let counted = self.progress.count(|begun| &mut begun.updates, first_waits);
        counted.map_err(Error::invalid)?;
        if self.fails_in == Some(self.progress.begun.lock().unwrap().updates) {
            return Err(Error::invalid("no such update"));
        }
        self.inner.update(of)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    exchange: Option<usize>,
    update: Option<usize>,
}

/// Runs `program` on two workers whose packs hold one parameter each; faults are worker 1's.
fn two_workers<T: Send + 'static>(
    faults: Faults,
    program: fn(MultiWorkerMirroredStrategy, WatchedSgd, Arc<Progress>) -> Result<T>,
) -> Vec<Result<T>> {
    let (done, results) = mpsc::channel();
    let options = GroupOptions::default().timeout(2 * LIMIT);
    for inner in in_process(2, options).unwrap() {
        let done = done.clone();
        std::thread::spawn(move || {
            let index = inner.rank();
            let faults = if index == 1 {
                faults
            } else {
                Faults::default()
            };
            let progress = Arc::<Progress>::default();
            let communicator = Watched {
                inner: Box::new(inner),
                progress: Arc::clone(&progress),
                fails_in: faults.exchange,
            };
            let optimizer = WatchedSgd {
                inner: Sgd::new(0.1),
                progress: Arc::clone(&progress),
                fails_in: faults.update,
            };
            let strategy = MultiWorkerMirroredStrategy::builder()
                .replicas(1)
                .communication_options(CommunicationOptions {
                    bytes_per_pack: 1,
                    ..CommunicationOptions::default()
                })
                .communicator(Box::new(communicator))
                .build();
            let outcome = strategy.and_then(|strategy| program(strategy, optimizer, progress));
            let _ = done.send((index, outcome));
        });
    }
    let hanging = "a worker hangs or panicked";
    let mut outcomes = [(); 2].map(|()| results.recv_timeout(3 * LIMIT).expect(hanging));
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// One step of a layer with two parameters, so of several packs; `micro_batches` calls.
fn steps(
    strategy: &MultiWorkerMirroredStrategy,
    optimizer: WatchedSgd,
    progress: &Progress,
    micro_batches: usize,
) -> Result<Vec<(Applied, usize)>> {
    let mut state = strategy.scope(|device| {
        TrainState::new(LinearConfig::new(3, 2).init(device), optimizer).accumulate(micro_batches)
    })?;
    progress.watch();
    let mut done = Vec::new();
    for _ in 0..micro_batches {
        let applied = strategy.run(&mut state, |ctx, state| {
            let input = Tensor::<2>::ones([4, 3], ctx.device());
            let loss = state.model.forward(input).sum();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            let applied = state.apply_gradients(ctx, gradients)?;
            Ok(u32::from(applied == Applied::Updated))
        })?;
        let updated = applied.into_values().remove(0) == 1;
        let applied = if updated {
            Applied::Updated
        } else {
            Applied::Accumulated
        };
        done.push((applied, progress.exchanges()));
    }
    Ok(done)
}

#[test]
fn the_exchange_of_one_pack_overlaps_the_update_of_another() {
    let outcomes = two_workers(Faults::default(), |strategy, optimizer, progress| {
        steps(&strategy, optimizer, &progress, 1)
    });
    for outcome in outcomes {
        assert_eq!(outcome.unwrap(), [(Applied::Updated, PACKS)]);
    }
}

#[test]
fn only_the_last_micro_batch_is_exchanged() {
    let outcomes = two_workers(Faults::default(), |strategy, optimizer, progress| {
        steps(&strategy, optimizer, &progress, 3)
    });
    for outcome in outcomes {
        let accumulated = (Applied::Accumulated, 0);
        let expected = [accumulated, accumulated, (Applied::Updated, PACKS)];
        assert_eq!(outcome.unwrap(), expected);
    }
}

#[test]
fn an_update_that_fails_while_packs_travel_ends_the_step_on_all_workers() {
    let faults = Faults {
        update: Some(1),
        ..Faults::default()
    };
    let outcomes = two_workers(faults, |strategy, optimizer, progress| {
        steps(&strategy, optimizer, &progress, 1)?;
        // Worker 0 may have been through with the step.
        strategy.workers().unwrap().barrier()
    });
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("no such update"), "{text}");
    }
}

#[test]
fn an_exchange_that_fails_between_packs_ends_the_step_on_all_workers() {
    let faults = Faults {
        exchange: Some(PACKS),
        ..Faults::default()
    };
    let outcomes = two_workers(faults, |strategy, optimizer, progress| {
        steps(&strategy, optimizer, &progress, 1)
    });
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("the cable was pulled"), "{text}");
        assert!(text.contains("rank 1"), "{text}");
    }
}
