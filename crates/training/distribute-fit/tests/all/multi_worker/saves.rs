//! A save is one exchange between the workers, whatever is saved.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{Device, Tensor};
use distribute_core::checkpoint::{Section, list, load};
use distribute_core::collectives::{
    AbortHandle, Buffer, CollectiveError, Communicator, DType, Description, GatherTarget,
    GroupOptions, ReduceOp, in_process,
};
use distribute_core::{Adam, MultiWorkerMirroredStrategy, Result, StrategyExt, TrainState};
use distribute_fit::callbacks::ModelCheckpoint;
use distribute_fit::{Fit, Objective, StepContext};
use tempfile::TempDir;

use crate::common::{BATCHES, Batch, Mlp, Points, squared_error};

/// Counts the operations of one rank.
struct Counted {
    inner: Box<dyn Communicator>,
    calls: Arc<AtomicUsize>,
}

impl Counted {
    fn count(&mut self) -> &mut dyn Communicator {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &mut *self.inner
    }
}

type Outcome<T = ()> = std::result::Result<T, CollectiveError>;

impl Communicator for Counted {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Outcome {
        self.count().all_reduce(op, buffers)
    }

    fn reduce_scatter(&mut self, op: ReduceOp, buffer: Buffer<'_>) -> Outcome<Range<usize>> {
        self.count().reduce_scatter(op, buffer)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Outcome {
        self.count().all_gather_into(dtype, input, output)
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Outcome {
        self.count().broadcast(root, buffers)
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Outcome {
        self.count().reduce(op, root, buffers)
    }

    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Outcome {
        self.count().send(to, buffer)
    }

    fn recv(&mut self, from: usize, buffer: Buffer<'_>) -> Outcome {
        self.count().recv(from, buffer)
    }

    fn barrier(&mut self) -> Outcome {
        self.count().barrier()
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }
}

/// With running statistics, of which each replica has its own.
#[derive(Module, Debug)]
struct Net {
    norm: BatchNorm,
    mlp: Mlp,
}

fn train(strategy: &MultiWorkerMirroredStrategy, folder: &TempDir, every: u64) -> Result<()> {
    let mut data = Points::new(strategy);
    // Every replica has examples in each batch.
    data.examples = 40;
    let new = |device: &Device| Net {
        norm: BatchNormConfig::new(2).init(device),
        mlp: Mlp::new(device),
    };
    let new = |device: &Device| TrainState::new(new(device), Adam::new(0.02));
    let mut state = strategy.scope(new)?;
    let objective = |ctx: &StepContext<'_>, net: &Net, (x, y): Batch| {
        let (examples, size) = (x.dims()[0], ctx.global_batch_size()?.unwrap_or(1));
        let output: Tensor<2> = net.mlp.forward(net.norm.forward(x));
        ctx.loss_is_scaled();
        Ok(Objective::new(squared_error(output, y, size)).examples(examples))
    };
    let saver = ModelCheckpoint::with_workers(strategy, folder.path())?.every_steps(every);
    let fit = Fit::new(strategy).epochs(2).callback(saver);
    fit.run(&mut state, &data, objective).map(drop)
}

/// The calls of each worker in a run that saves every few updates, and the number of saves.
fn calls(every: u64) -> (Vec<usize>, usize) {
    let folder = TempDir::new().unwrap();
    let group = in_process(2, GroupOptions::default()).unwrap();
    let counts: Vec<Arc<AtomicUsize>> = group.iter().map(|_| Arc::default()).collect();
    std::thread::scope(|scope| {
        for (endpoint, calls) in group.into_iter().zip(&counts) {
            let (calls, folder) = (Arc::clone(calls), &folder);
            scope.spawn(move || {
                let inner = Box::new(endpoint);
                let builder = MultiWorkerMirroredStrategy::builder().replicas(2);
                let counted = Box::new(Counted { inner, calls });
                let strategy = builder.communicator(counted).build().unwrap();
                train(&strategy, folder, every).unwrap();
            });
        }
    });
    let saved = list(folder.path()).unwrap();
    let newest = load(&saved.last().unwrap().path).unwrap();
    let own = newest
        .tensors
        .keys()
        .filter_map(|name| Section::replica_of(name));
    assert_eq!(
        own.max(),
        Some(3),
        "each of the four has its own statistics"
    );
    let calls = counts.iter().map(|count| count.load(Ordering::Relaxed));
    (calls.collect(), saved.len())
}

#[test]
fn a_save_is_one_exchange_of_the_workers() {
    let updates = 2 * (BATCHES - 1);
    let (often, saves) = calls(1);
    let (once, last) = calls(updates as u64);
    assert_eq!((saves, last), (updates, 1));
    // One call for each save: for statistics, losses that were not added up yet, and the comparison
    // of the replicas.
    let more: Vec<usize> = often.iter().zip(&once).map(|(a, b)| a - b).collect();
    assert_eq!(more, [saves - last; 2]);
}
