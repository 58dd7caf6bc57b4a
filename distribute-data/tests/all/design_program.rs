//! The program that the design promises: one step, and only the strategy's line differs.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use distribute_core::{
    Adam, CentralStorageStrategy, DefaultStrategy, Device, LogicalDevice, MirroredStrategy,
    OneDeviceStrategy, ReduceOp, Result, Strategy, StrategyExt, Tensor, TensorData, TrainState,
};
use distribute_data::{
    AverageLoss, Batching, ImageDataset, StrategyDataExt, average_loss, l2,
    scale_regularization_loss, sparse_categorical_crossentropy,
};
use distribute_readers::{Array, Examples, Features, Labels, Values};

#[derive(Module, Debug)]
struct Cnn {
    conv: Conv2d,
    pool: MaxPool2d,
    output: Linear,
}

impl Cnn {
    fn new(device: &Device) -> Self {
        let mut cnn = Self {
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            output: LinearConfig::new(4 * 3 * 3, 3).init(device),
        };
        // Not burn's generator: it is one for the process, and tests run at the same time.
        cnn.conv.weight = cnn.conv.weight.map(fixed);
        cnn.conv.bias = cnn.conv.bias.map(|bias| bias.map(fixed));
        cnn.output.weight = cnn.output.weight.map(fixed);
        cnn.output.bias = cnn.output.bias.map(|bias| bias.map(fixed));
        cnn
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = self.pool.forward(relu(self.conv.forward(images)));
        self.output.forward(hidden.flatten(1, 3))
    }

    fn l2(&self, factor: f64) -> Tensor<1> {
        l2(self.conv.weight.val(), factor) + l2(self.output.weight.val(), factor)
    }
}

fn fixed<const D: usize>(weights: Tensor<D>) -> Tensor<D> {
    let shape = weights.shape();
    let values = (0..shape.num_elements()).map(|i| ((i as f32 + 1.0) * 12.9898).sin() * 0.3);
    let values = TensorData::new(values.collect::<Vec<_>>(), shape);
    Tensor::from_data(values, &weights.device()).require_grad()
}

struct GeneratedImages;

impl GeneratedImages {
    /// 83 images: three kinds of bars, with some noise.
    fn train(&self) -> Result<ImageDataset> {
        let count = 83;
        let mut pixels = Vec::new();
        for index in 0..count {
            for y in 0..8 {
                for x in 0..8 {
                    let on = [x == 3, y == 3, x == y][index % 3];
                    let noise = (index * 31 + y * 17 + x * 13) % 40;
                    pixels.push(if on { 255 } else { noise as u8 });
                }
            }
        }
        let images = Array::new(vec![count, 8, 8], Values::U8(pixels)).unwrap();
        let labels = Labels::Classes((0..count as i64).map(|index| index % 3).collect());
        ImageDataset::new(Examples::new("bars", Features::Numbers(images), labels).unwrap())
    }
}

/// The program of the design, word for word but for the device, the types of `total` and the
/// scalar, and the fixed global batch (so that all strategies make the same steps).
fn program(strategy: &impl Strategy, losses: &mut Vec<f32>) -> Result<Vec<f32>> {
    println!("Number of devices: {}", strategy.num_replicas_in_sync());
    let fashion_mnist = GeneratedImages;

    let global_batch = 12;
    let train = strategy.distribute_dataset(
        fashion_mnist.train()?,
        Batching::global(global_batch).shuffle(42),
    )?;

    let mut state = strategy.scope(|device| TrainState::new(Cnn::new(device), Adam::new(1e-2)))?;

    for epoch in 0..10 {
        let (mut total, mut batches) = (0.0, 0);
        for batch in train.epoch(epoch) {
            let per_replica =
                strategy.run((&mut state, batch?), |ctx, (state, (images, labels))| {
                    let logits = state.model.forward(images);
                    let per_example = sparse_categorical_crossentropy(logits, labels);
                    let loss = average_loss(ctx, per_example)?
                        + scale_regularization_loss(ctx, state.model.l2(1e-5))?;
                    let grads = ctx.gradient(&loss, &state.model)?;
                    state.apply_gradients(ctx, grads)?;
                    Ok(loss)
                })?;
            total += strategy
                .reduce(ReduceOp::Sum, per_replica)?
                .into_scalar::<f32>();
            batches += 1;
        }
        assert_eq!(batches, train.batches_per_epoch());
        println!("epoch {epoch}: loss {}", total / batches as f32);
        losses.push(total / batches as f32);
    }
    let weights = state
        .primary()
        .unwrap()
        .model
        .output
        .weight
        .val()
        .into_data();
    Ok(weights.iter::<f32>().collect())
}

#[test]
fn the_same_program_gives_the_same_training_under_every_strategy() {
    let mut reference = Vec::new();
    let weights = program(&DefaultStrategy::new(), &mut reference).unwrap();
    assert!(
        reference[9] < 0.2 * reference[0],
        "it must learn: {reference:?}"
    );
    let check = |strategy: &dyn Fn(&mut Vec<f32>) -> Result<Vec<f32>>| {
        let mut losses = Vec::new();
        let found = strategy(&mut losses).unwrap();
        // 83 examples in batches of 12: the last one has 11, and 3 replicas get 4, 4 and 3.
        close(&losses, &reference, 1e-4);
        close(&found, &weights, 1e-4);
    };
    let one = OneDeviceStrategy::new(LogicalDevice::cpu(0)).unwrap();
    check(&|losses| program(&one, losses));
    for replicas in [1, 2, 3] {
        let mirrored = MirroredStrategy::builder()
            .replicas(replicas)
            .build()
            .unwrap();
        check(&|losses| program(&mirrored, losses));
    }
    let central = CentralStorageStrategy::with_replicas(2).unwrap();
    check(&|losses| program(&central, losses));
}

#[test]
fn replicas_with_empty_batches_take_part() {
    // 83 = 6 * 13 + 5: over 4 replicas the last batch is 2, 2, 1 and 0.
    let strategy = MirroredStrategy::builder().replicas(4).build().unwrap();
    let batching = Batching::global(13).shuffle(1);
    let train = strategy.distribute_dataset(GeneratedImages.train().unwrap(), batching);
    let train = train.unwrap();
    let mut state = strategy
        .scope(|device| TrainState::new(Cnn::new(device), Adam::new(1e-3)))
        .unwrap();
    let mut sizes = Vec::new();
    for batch in train.epoch(0) {
        let losses = strategy.run(
            (&mut state, batch.unwrap()),
            |ctx, (state, (images, labels))| {
                let size = images.dims()[0];
                let logits = state.model.forward(images);
                let per_example = sparse_categorical_crossentropy(logits, labels);
                let loss = AverageLoss::new().own_batch().of(ctx, per_example)?;
                let grads = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, grads)?;
                Ok((size, loss))
            },
        );
        let (last, losses) = losses.unwrap().unzip();
        sizes = last.into_values();
        let losses: Vec<f32> = losses
            .into_values()
            .into_iter()
            .map(Tensor::into_scalar)
            .collect();
        assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
        if sizes[3] == 0 {
            assert_eq!(losses[3], 0.0);
        }
    }
    assert_eq!(sizes, [2, 2, 1, 0]);
    let copies = state.values().unwrap().iter().map(|state| {
        let weights = state.model.output.weight.val().into_data();
        weights.iter::<f32>().collect::<Vec<_>>()
    });
    let copies: Vec<_> = copies.collect();
    assert!(
        copies
            .iter()
            .all(|copy| *copy == copies[0] && copy.iter().all(|w| w.is_finite()))
    );
}

fn close(found: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!(
            (a - b).abs() <= bound,
            "{a} and {b}: {found:?} {expected:?}"
        );
    }
}
