//! The competitors: the same model, data and arithmetic, with and without this library.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::conv::Conv2dConfig;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::relu;
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Int, Tensor, TensorData};
use distribute_core::{
    Adam, Mirrored, PerReplica, ReduceOp, Result, Strategy, StrategyExt, TrainState,
};
use distribute_data::{AverageLoss, scale_regularization_loss, sparse_categorical_crossentropy};
use distribute_kernels::nn::{Conv2d, MaxPool2d};

/// Batches that every competitor cycles through.
pub(super) const BATCHES: usize = 8;
const L2: f64 = 1e-5;
pub(super) const LEARNING_RATE: f64 = 1e-3;

pub(super) type Batch = (Tensor<4>, Tensor<1, Int>);

/// The documents' CNN for 28 x 28 images, written by hand.
#[derive(Module, Debug)]
pub(super) struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    dense1: Linear,
    dense2: Linear,
    relu: Relu,
    #[module(skip)]
    kernels: Kernels,
}

/// Whose convolution and max-pooling a model uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernels {
    /// The kernels of `distribute-kernels`.
    Ours,
    Burns,
}

impl Cnn {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([1, 32], [3, 3]).init(device).into(),
            conv2: Conv2dConfig::new([32, 64], [3, 3]).init(device).into(),
            pool: MaxPool2dConfig::new([2, 2])
                .with_strides([2, 2])
                .init()
                .into(),
            dense1: LinearConfig::new(1600, 64).init(device),
            dense2: LinearConfig::new(64, 10).init(device),
            relu: Relu::new(),
            kernels: Kernels::Ours,
        }
    }

    /// A convolution, ReLU and max-pooling.
    fn block(&self, conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
        match self.kernels {
            Kernels::Ours => self.pool.forward(conv.forward_relu(x)),
            Kernels::Burns => {
                let bias = conv.bias.as_ref().map(|bias| bias.val());
                let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
                let x = relu(conv2d(x, conv.weight.val(), bias, options));
                max_pool2d(x, MaxPoolOptions::new([2, 2]))
            }
        }
    }

    pub(super) fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.block(&self.conv1, images);
        let x: Tensor<2> = self.block(&self.conv2, x).flatten(1, 3);
        self.dense2
            .forward(self.relu.forward(self.dense1.forward(x)))
    }

    /// The sum of squares of all kernels times the factor.
    pub(super) fn l2(&self) -> Tensor<1> {
        let square = |sum: Tensor<1>| sum.mul_scalar(L2);
        square(self.conv1.weight.val().powi_scalar(2).sum())
            + square(self.conv2.weight.val().powi_scalar(2).sum())
            + square(self.dense1.weight.val().powi_scalar(2).sum())
            + square(self.dense2.weight.val().powi_scalar(2).sum())
    }
}

/// Synthetic images: training throughput does not depend on what they show.
pub(super) fn batches(device: &Device, batch_size: usize, replica: usize) -> Vec<Batch> {
    (0..BATCHES)
        .map(|index| {
            let seed = (replica * BATCHES + index) as u64;
            let values: Vec<f32> = (0..batch_size * 784)
                .map(|i| ((i as u64 * 2_654_435_761 + seed * 40_503) % 1_000) as f32 / 1_000.0)
                .collect();
            let labels: Vec<i32> = (0..batch_size)
                .map(|i| ((i * 7 + index) % 10) as i32)
                .collect();
            let images = TensorData::new(values, [batch_size, 1, 28, 28]);
            let images = Tensor::from_data(images, device);
            (
                images,
                Tensor::from_data(TensorData::new(labels, [batch_size]), device),
            )
        })
        .collect()
}

/// The work of a competitor in a measured time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trained {
    /// Steps of all replicas together.
    pub steps: usize,
    /// The same by time.
    pub steps_per_s: f64,
    /// The loss of the last step.
    pub loss: f32,
    /// The CPU time of it, where other processes did the work.
    pub cpu: Option<Duration>,
}

/// One competitor.
pub trait Contender {
    /// The `impl` key of its results.
    fn name(&self) -> &'static str;

    /// The number of replicas it trains on.
    fn replicas(&self) -> usize;

    /// Trains for this time, to the end of the step that it ends in; at least one step.
    ///
    /// # Errors
    /// The errors of the strategy, and the end of a process that trains.
    fn train_for(&mut self, time: Duration) -> Result<Trained>;
}

/// What does one step after the other.
pub trait Steps {
    /// One step, and its loss over all replicas.
    ///
    /// # Errors
    /// The errors of the strategy.
    fn step(&mut self) -> Result<f32>;
}

/// Does one step after the other until the time is over. A step returns its loss.
pub(super) fn steps_for(time: Duration, mut step: impl FnMut() -> Result<f32>) -> Result<Trained> {
    let started = Instant::now();
    let mut steps = 0;
    loop {
        let loss = step()?;
        steps += 1;
        let elapsed = started.elapsed();
        if elapsed >= time {
            return Ok(Trained {
                steps,
                steps_per_s: steps as f64 / elapsed.as_secs_f64(),
                loss,
                cpu: None,
            });
        }
    }
}

/// A training loop as burn's documentation writes it, without a strategy.
pub struct HandWritten {
    kernels: Kernels,
    model: Option<Cnn>,
    optimizer: ModuleOptimizer,
    loss: CrossEntropyLoss,
    batches: Vec<Batch>,
    steps: usize,
}

impl HandWritten {
    /// With batches of `batch_size` images and the kernels that the strategies' models use.
    pub fn new(batch_size: usize) -> Self {
        Self::with_kernels(batch_size, Kernels::Ours)
    }

    /// With burn's own kernels.
    pub fn with_burns_kernels(batch_size: usize) -> Self {
        Self::with_kernels(batch_size, Kernels::Burns)
    }

    fn with_kernels(batch_size: usize, kernels: Kernels) -> Self {
        let device = Device::flex().autodiff();
        let model = Cnn {
            kernels,
            ..Cnn::new(&device)
        };
        Self {
            kernels,
            model: Some(model),
            optimizer: AdamConfig::new().with_epsilon(1e-7).init(),
            loss: CrossEntropyLossConfig::new().init(&device),
            batches: batches(&device, batch_size, 0),
            steps: 0,
        }
    }
}

impl Steps for HandWritten {
    fn step(&mut self) -> Result<f32> {
        let (images, labels) = self.batches[self.steps % BATCHES].clone();
        self.steps += 1;
        let missing = || distribute_core::Error::invalid("a step failed before");
        let model = self.model.take().ok_or_else(missing)?;
        let loss = self.loss.forward(model.forward(images), labels) + model.l2();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optimizer.step(LEARNING_RATE, model, gradients));
        Ok(loss.into_scalar())
    }
}

impl Contender for HandWritten {
    fn name(&self) -> &'static str {
        match self.kernels {
            Kernels::Ours => "hand-written",
            Kernels::Burns => "burn-kernels",
        }
    }

    fn replicas(&self) -> usize {
        1
    }

    fn train_for(&mut self, time: Duration) -> Result<Trained> {
        steps_for(time, || self.step())
    }
}

/// The same training under a strategy.
pub struct UnderStrategy<S> {
    name: &'static str,
    strategy: S,
    state: Mirrored<TrainState<Cnn>>,
    batches: Vec<PerReplica<Batch>>,
    global_batch: usize,
    steps: usize,
}

impl<S: Strategy> UnderStrategy<S> {
    /// With batches of `batch_size` images for each replica.
    ///
    /// # Errors
    /// The errors of the strategy.
    pub fn new(name: &'static str, strategy: S, batch_size: usize) -> Result<Self> {
        let state =
            strategy.scope(|device| TrainState::new(Cnn::new(device), Adam::new(LEARNING_RATE)))?;
        let mut columns: Vec<_> = strategy
            .replicas()
            .iter()
            .map(|replica| batches(&replica.device, batch_size, replica.id).into_iter())
            .collect();
        let batches = (0..BATCHES)
            .map(|_| PerReplica::new(columns.iter_mut().filter_map(Iterator::next).collect()))
            .collect();
        let global_batch = batch_size * strategy.num_replicas_in_sync();
        Ok(Self {
            name,
            strategy,
            state,
            batches,
            global_batch,
            steps: 0,
        })
    }
}

impl<S: Strategy> Steps for UnderStrategy<S> {
    fn step(&mut self) -> Result<f32> {
        let batch = self.batches[self.steps % BATCHES].clone();
        self.steps += 1;
        let global_batch = self.global_batch;
        let losses = self
            .strategy
            .run((&mut self.state, batch), |ctx, (state, (x, y))| {
                let per_example = sparse_categorical_crossentropy(state.model.forward(x), y);
                let loss = AverageLoss::new()
                    .global_batch_size(global_batch)
                    .of(ctx, per_example)?
                    + scale_regularization_loss(ctx, state.model.l2())?;
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(loss)
            })?;
        Ok(self.strategy.reduce(ReduceOp::Sum, losses)?.into_scalar())
    }
}

impl<S: Strategy> Contender for UnderStrategy<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn replicas(&self) -> usize {
        self.strategy.num_replicas_in_sync()
    }

    fn train_for(&mut self, time: Duration) -> Result<Trained> {
        steps_for(time, || self.step())
    }
}
