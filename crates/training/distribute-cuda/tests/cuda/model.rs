//! The documents' CNN for 28 x 28 images, and synthetic images.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use distribute_core::{
    Mirrored, PerReplica, ReduceOp, Result, Sgd, Strategy, StrategyExt, TrainState,
};

#[derive(Module, Debug)]
pub struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    dense1: Linear,
    dense2: Linear,
    relu: Relu,
}

impl Cnn {
    pub fn new(device: &Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([1, 32], [3, 3]).init(device),
            conv2: Conv2dConfig::new([32, 64], [3, 3]).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dense1: LinearConfig::new(1600, 64).init(device),
            dense2: LinearConfig::new(64, 10).init(device),
            relu: Relu::new(),
        }
    }

    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.relu.forward(self.conv1.forward(images));
        let x = self.relu.forward(self.conv2.forward(self.pool.forward(x)));
        let x: Tensor<2> = self.pool.forward(x).flatten(1, 3);
        self.dense2
            .forward(self.relu.forward(self.dense1.forward(x)))
    }

    /// The sum of the examples' cross entropies over `global_batch`.
    pub fn loss(&self, (images, labels): &Batch, global_batch: usize) -> Tensor<1> {
        let log = log_softmax(self.forward(images.clone()), 1);
        let picked = log.gather(1, labels.clone().unsqueeze_dim(1));
        picked.sum().neg().div_scalar(global_batch as f32)
    }
}

pub type Batch = (Tensor<4>, Tensor<1, Int>);

/// The examples of a range of a global batch: a bright column per class, and noise.
pub fn batch(step: usize, range: std::ops::Range<usize>, device: &Device) -> Batch {
    let count = range.len();
    let (mut pixels, mut labels) = (Vec::with_capacity(count * 784), Vec::new());
    for row in range {
        let class = (row * 7 + step) % 10;
        let mut state = (0x9e37_79b9_u32 ^ (step * 65_537 + row) as u32).wrapping_mul(747_796_405);
        for pixel in 0..784 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            let bright = if pixel % 28 / 2 == class + 2 {
                1.0
            } else {
                0.0
            };
            pixels.push(bright + 0.3 * noise);
        }
        labels.push(class as i32);
    }
    (
        Tensor::from_data(TensorData::new(pixels, [count, 1, 28, 28]), device),
        Tensor::from_data(TensorData::new(labels, [count]), device),
    )
}

/// A state with the same weights wherever it is: they are made on the CPU.
pub fn state<S: Strategy>(strategy: &S) -> Result<Mirrored<TrainState<Cnn>>> {
    let flex = Device::flex().autodiff();
    flex.seed(42);
    let initial = Cnn::new(&flex);
    strategy.scope(|device| TrainState::new(initial.clone().fork(device), Sgd::new(0.05)))
}

/// The losses of some steps.
pub fn train<S: Strategy>(
    strategy: &S,
    state: &mut Mirrored<TrainState<Cnn>>,
    steps: usize,
    global_batch: usize,
) -> Result<Vec<f32>> {
    let share = global_batch / strategy.num_replicas_in_sync();
    let mut losses = Vec::new();
    for step in 0..steps {
        let batches = strategy.replicas().iter().map(|replica| {
            let range = replica.id * share..(replica.id + 1) * share;
            batch(step, range, &replica.device)
        });
        let batches = PerReplica::new(batches.collect());
        let loss = strategy.run((&mut *state, batches), |ctx, (state, batch)| {
            let loss = state.model.loss(&batch, global_batch);
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        })?;
        losses.push(strategy.reduce(ReduceOp::Sum, loss)?.into_scalar::<f32>());
    }
    Ok(losses)
}

/// The largest difference of two lists.
pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}
