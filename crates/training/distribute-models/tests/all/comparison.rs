//! The networks as they are compared with PyTorch's: the rule for initial weights and batches,
//! which `bench/networks/pytorch_loop.py` follows too. See `bench/networks/README.md`.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{Int, TensorData};
use distribute_core::optim::Optimizer;
use distribute_core::prelude::*;
use distribute_data::prelude::*;
use distribute_models::*;
use distribute_readers::digits;

/// The networks that are compared.
pub const NETWORKS: [&str; 4] = ["resnet-narrow", "resnet-18", "gpt", "two-towers"];

/// The loss of each of the first steps of a network's training.
///
/// # Errors
/// The errors of the strategy, and for another name.
pub fn losses<S: Strategy>(strategy: &S, network: &str, steps: usize) -> Result<Vec<f32>> {
    match network {
        "resnet-narrow" => {
            let (config, rate) = (ResNetConfig::narrow(1, 10), 0.006);
            resnet(strategy, &config, rate, Enlarged::new(1, 3, 2)?, steps)
        }
        "resnet-18" => {
            let (config, rate) = (ResNetConfig::resnet18(3, 10), 0.0003);
            resnet(strategy, &config, rate, Enlarged::new(3, 5, 0)?, steps)
        }
        "gpt" => gpt(strategy, steps),
        "two-towers" => two_towers(strategy, steps),
        other => Err(Error::invalid(format!("there is no network `{other}`"))),
    }
}

/// Digits with every pixel `factor` times in both directions, in equal channels, and a black edge.
#[derive(Clone)]
struct Enlarged {
    digits: ImageDataset,
    channels: usize,
    factor: usize,
    edge: usize,
}

impl Enlarged {
    fn new(channels: usize, factor: usize, edge: usize) -> Result<Self> {
        Ok(Self {
            digits: ImageDataset::new(digits()?)?,
            channels,
            factor,
            edge,
        })
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<(Tensor<4>, Tensor<1, Int>)> {
        let indices: Vec<usize> = indices.iter().map(|i| i % self.digits.len()).collect();
        let (images, labels) = self.digits.batch(&indices, device)?;
        let images = images
            .into_data()
            .try_to_vec::<f32>()
            .map_err(Error::internal)?;
        let size = 8 * self.factor + 2 * self.edge;
        let pixel = |image: usize, row: usize, column: usize| {
            let at = |place: usize| {
                place
                    .checked_sub(self.edge)
                    .map(|place| place / self.factor)
            };
            match (at(row), at(column)) {
                (Some(row @ ..8), Some(column @ ..8)) => images[image * 64 + row * 8 + column],
                _ => 0.0,
            }
        };
        let mut pixels = Vec::new();
        for image in 0..indices.len() {
            for _ in 0..self.channels {
                let places = (0..size).flat_map(|row| (0..size).map(move |column| (row, column)));
                pixels.extend(places.map(|(row, column)| pixel(image, row, column)));
            }
        }
        let shape = [indices.len(), self.channels, size, size];
        Ok((
            Tensor::from_data(TensorData::new(pixels, shape), device),
            labels,
        ))
    }
}

/// The loss of each step on the batches of one epoch.
fn course<S: Strategy, M: Module + Sync + 'static, D: Dataset>(
    strategy: &S,
    state: &mut Mirrored<TrainState<M>>,
    data: D,
    global_batch: usize,
    loss: impl Fn(&ReplicaContext, &M, D::Batch) -> Result<Tensor<1>> + Sync,
) -> Result<Vec<f32>>
where
    D::Batch: Nest,
{
    let data = strategy.distribute_dataset(data, Batching::global(global_batch))?;
    let mut losses = Vec::new();
    for batch in data.epoch(0) {
        let reported = strategy.run((&mut *state, batch?), |ctx, (state, batch)| {
            let loss = loss(ctx, &state.model, batch)?;
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        })?;
        losses.push(
            strategy
                .reduce(ReduceOp::Sum, reported)?
                .into_scalar::<f32>(),
        );
    }
    Ok(losses)
}

fn resnet<S: Strategy>(
    strategy: &S,
    config: &ResNetConfig,
    rate: f64,
    images: Enlarged,
    steps: usize,
) -> Result<Vec<f32>> {
    let batch = 16;
    let data = FnDataset::new(steps * batch, move |indices: &[usize], device: &Device| {
        images.batch(indices, device)
    });
    let optimizer = Sgd::new(rate).momentum(0.9);
    let mut state = strategy.try_scope(|device| started(config.init(device)?, optimizer))?;
    course(
        strategy,
        &mut state,
        data,
        batch,
        |ctx, model, (images, labels)| {
            let logits = model.forward(ctx, images)?;
            average_loss(ctx, sparse_categorical_crossentropy(logits, labels))
        },
    )
}

fn gpt<S: Strategy>(strategy: &S, steps: usize) -> Result<Vec<f32>> {
    let batch = 8;
    let text = Text::alice()?;
    let (windows, _) = text.train_test(64)?;
    let data = FnDataset::new(steps * batch, move |indices: &[usize], device: &Device| {
        let indices: Vec<usize> = indices.iter().map(|i| i % windows.len()).collect();
        windows.batch(&indices, device)
    });
    let config = GptConfig::new(text.vocabulary());
    let mut state = strategy.try_scope(|device| started(config.init(device)?, Adam::new(3e-4)))?;
    course(
        strategy,
        &mut state,
        data,
        batch,
        |ctx, model, (tokens, next)| {
            let per_token = sparse_categorical_crossentropy(model.forward(tokens)?, next);
            average_loss(ctx, per_token.mean_dim(1))
        },
    )
}

fn two_towers<S: Strategy>(strategy: &S, steps: usize) -> Result<Vec<f32>> {
    let batch = 64;
    let interactions = Interactions::new(200, 100, steps * batch)?;
    let config = RecommenderConfig::new(200, 100, TwoTowersConfig::new(1, 1));
    let mut state = strategy.try_scope(|device| started(config.init(device), Adam::new(0.003)))?;
    course(
        strategy,
        &mut state,
        interactions,
        batch,
        |ctx, model, batch| {
            let logits = model.forward(batch.users, batch.items)?;
            let column = |values: Tensor<1>| values.unsqueeze_dim::<2>(1);
            average_loss(
                ctx,
                binary_crossentropy(column(logits), column(batch.liked)),
            )
        },
    )
}

/// A state whose weights follow a rule: of a tensor with two or more axes element `i` is
/// `2 u - 1` times a bound, where `u` is the upper 24 bits of SplitMix64's output `i` from the seed
/// FNV-1a (64 bits) of the path. The bound is the root of 6 through the inputs of a filter, or of 1
/// through the rows of a matrix. Biases are 0, and normalizations as they are made.
fn started<M: Module + 'static>(
    model: M,
    optimizer: impl Optimizer + 'static,
) -> Result<TrainState<M>> {
    let mut state = TrainState::new(model, optimizer);
    let mut tensors: BTreeMap<String, TensorData> = state.to_tensors()?;
    for (name, data) in &mut tensors {
        let Some(path) = name.strip_prefix("model/") else {
            continue;
        };
        let shape = data.shape().clone();
        let bound: f64 = match shape.as_slice() {
            [_, channels, rows, columns] => 6.0 / (channels * rows * columns) as f64,
            [rows, _] => 1.0 / *rows as f64,
            _ if path.ends_with("bias") => 0.0,
            _ => continue,
        };
        let bound = bound.sqrt();
        let seed = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let value = |i: usize| (bound * (2.0 * unit(seed, i as u64) - 1.0)) as f32;
        let values: Vec<f32> = (0..shape.num_elements()).map(value).collect();
        *data = TensorData::new(values, shape);
    }
    state.load_tensors(&tensors, 0)?;
    Ok(state)
}

/// The `i`-th number of SplitMix64 from a seed, from 0 to 1.
fn unit(seed: u64, i: u64) -> f64 {
    let mut mixed = seed.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 40) as f64 / f64::from(1 << 24)
}
