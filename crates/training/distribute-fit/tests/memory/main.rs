//! Saving and restoring a run take the memory of a copy of its state and one leaf, counted by an
//! allocator.

#[path = "../../../../../distribute-core/tests/memory/counting.rs"]
mod counting;

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use counting::{LIVE, PEAK, alone};
use distribute_core::checkpoint::{Checkpoint, load_latest};
use distribute_core::{
    Adam, BatchSource, Batches, Mirrored, MirroredStrategy, PerReplica, Result, Strategy,
    StrategyExt, TrainState,
};
use distribute_fit::callbacks::ModelCheckpoint;
use distribute_fit::{Callback, Control, Fit, Objective, Outcome, StepContext};

/// Large enough to make all other memory negligible.
const WIDTH: usize = 256;
const LAYERS: usize = 6;
const LEAF: usize = WIDTH * WIDTH * 4;
/// What may be taken beside the state and a leaf: for the run, names, metadata and file buffers.
const CONSTANT: usize = 256 << 10;

type State = Mirrored<TrainState<Net>>;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    norm: BatchNorm,
}

fn state(strategy: &MirroredStrategy) -> State {
    let build = |device: &Device| {
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(device);
        let net = Net {
            layers: (0..LAYERS).map(layer).collect(),
            norm: BatchNormConfig::new(WIDTH).init(device),
        };
        TrainState::new(net, Adam::new(1e-3))
    };
    strategy.scope(build).unwrap()
}

struct Ones<'a>(&'a MirroredStrategy);

impl BatchSource for Ones<'_> {
    type Batch = Tensor<2>;

    fn batches_per_epoch(&self) -> Option<usize> {
        Some(4)
    }

    fn global_batch_size(&self) -> Option<usize> {
        Some(4)
    }

    fn epoch(&self, _: usize, skip_batches: usize) -> Result<Batches<'_, Tensor<2>>> {
        let batch = || {
            let replicas = self.0.replicas().iter();
            let parts = replicas.map(|replica| Tensor::ones([2, WIDTH], &replica.device));
            Ok(PerReplica::new(parts.collect()))
        };
        Ok(Box::new((skip_batches..4).map(move |_| batch())))
    }
}

fn objective(ctx: &StepContext<'_>, model: &Net, input: Tensor<2>) -> Result<Objective> {
    let layers = model.layers.iter();
    let output = layers.fold(input, |input, layer| layer.forward(input));
    let loss = model.norm.forward(output).powi_scalar(2).mean();
    Ok(Objective::new(ctx.mean_loss(loss)?))
}

/// Counts the most memory from the last batch, before the callbacks that save, until the save is on
/// disk, and the most memory while a run begins.
#[derive(Default)]
struct Watch {
    before: usize,
    of_save: usize,
    at_begin: usize,
}

impl Callback for Watch {
    fn on_train_begin(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.at_begin = PEAK.load(Ordering::SeqCst);
        Ok(())
    }

    fn on_batch_end(&mut self, _: &mut Control<'_>) -> Result<()> {
        self.before = LIVE.load(Ordering::SeqCst);
        PEAK.store(self.before, Ordering::SeqCst);
        Ok(())
    }

    fn on_train_end(&mut self, _: &Outcome, _: &mut Control<'_>) -> Result<()> {
        self.of_save = PEAK.load(Ordering::SeqCst) - self.before;
        Ok(())
    }
}

/// Trains up to this update and saves it; gives what was counted, and what the run began with.
fn run(
    strategy: &MirroredStrategy,
    directory: &Path,
    state: &mut State,
    steps: u64,
    from: Option<Checkpoint>,
) -> (Watch, usize) {
    let mut watch = Watch::default();
    let fit = Fit::new(strategy)
        .max_steps(steps)
        .resume_from(from)
        .callback(&mut watch)
        .callback(ModelCheckpoint::new(directory).unwrap().every_steps(steps));
    let before = LIVE.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    fit.run(state, &Ones(strategy), objective).unwrap();
    (watch, before)
}

#[test]
fn a_save_and_a_restore_by_fit_take_the_state_and_one_leaf() {
    let _alone = alone();
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut trained = state(&strategy);
    let (watch, _) = run(&strategy, directory.path(), &mut trained, 2, None);
    let newest = || load_latest(directory.path()).unwrap().found.unwrap();
    let (_, saved) = newest();
    let bytes = |data: &burn::tensor::TensorData| data.as_bytes().len();
    let size: usize = saved.tensors.values().map(bytes).sum();
    assert!(
        size > 3 * LAYERS * LEAF,
        "the weights and two slots of each"
    );
    let most = size + LEAF + CONSTANT;
    assert!(watch.of_save <= most, "{} for {size}", watch.of_save);

    // The checkpoint is in memory before the run begins, and so is the state that it replaces.
    let mut resumed = state(&strategy);
    let (watch, before) = run(&strategy, directory.path(), &mut resumed, 3, Some(saved));
    let taken = watch.at_begin - before;
    assert!(taken <= most, "{taken} for {size}");
    assert!(watch.of_save <= most, "{} for {size}", watch.of_save);
    assert_eq!(newest().1.metadata.step, 3);
    assert!(fs::read_dir(directory.path()).unwrap().count() > 1);
}
