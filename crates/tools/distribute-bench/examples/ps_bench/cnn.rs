//! `mnist-cnn` of `distribute-cli` by hand, on made-up images.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor, TensorData};

pub const LEARNING_RATE: f64 = 1e-3;
const BATCH: usize = 64;

pub type Batch = (Tensor<4>, Tensor<1, Int>);

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

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.relu.forward(self.conv1.forward(images));
        let x = self.relu.forward(self.conv2.forward(self.pool.forward(x)));
        let x: Tensor<2> = self.pool.forward(x).flatten(1, 3);
        let x = self.relu.forward(self.dense1.forward(x));
        self.dense2.forward(x)
    }

    pub fn loss(&self, (images, labels): Batch) -> Tensor<1> {
        let loss: CrossEntropyLoss = CrossEntropyLossConfig::new().init(&images.device());
        loss.forward(self.forward(images), labels)
    }
}

/// Batches that everybody goes through: what they show does not change the time.
pub struct Batches {
    batches: Vec<Batch>,
    next: usize,
}

impl Batches {
    pub fn new(device: &Device) -> Self {
        let batch = |seed: u64| {
            let pixel = |i: u64| ((i * 2_654_435_761 + seed * 40_503) % 1_000) as f32 / 1_000.0;
            let pixels: Vec<f32> = (0..BATCH as u64 * 784).map(pixel).collect();
            let labels: Vec<i32> = (0..BATCH as i32)
                .map(|i| (i * 7 + seed as i32) % 10)
                .collect();
            let images = TensorData::new(pixels, [BATCH, 1, 28, 28]);
            let labels = TensorData::new(labels, [BATCH]);
            (
                Tensor::from_data(images, device),
                Tensor::from_data(labels, device),
            )
        };
        Self {
            batches: (0..8).map(batch).collect(),
            next: 0,
        }
    }

    pub fn next(&mut self) -> Batch {
        self.next += 1;
        self.batches[self.next % self.batches.len()].clone()
    }
}

/// A training loop as burn's documentation writes it.
pub struct HandWritten {
    model: Option<Cnn>,
    optimizer: ModuleOptimizer,
    batches: Batches,
}

impl HandWritten {
    pub fn new() -> Self {
        let device = Device::flex().autodiff();
        Self {
            model: Some(Cnn::new(&device)),
            optimizer: AdamConfig::new().with_epsilon(1e-7).init(),
            batches: Batches::new(&device),
        }
    }

    /// One step; its loss.
    pub fn step(&mut self) -> Option<f32> {
        let model = self.model.take()?;
        let loss = model.loss(self.batches.next());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optimizer.step(LEARNING_RATE, model, gradients));
        Some(loss.into_scalar())
    }
}
