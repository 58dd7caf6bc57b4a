//! Models and their steps, as a user would write them.

use burn::module::{ModuleMapper, Param};
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    PaddingConfig2d, Relu,
};
use burn::prelude::*;
use distribute_core::{
    LocalBatchNorm, ReplicaContext, Result, SyncBatchNorm, SyncBatchNormConfig, TrainState,
};
use distribute_data::{
    AverageLoss, l2, scale_regularization_loss, sparse_categorical_crossentropy,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The same model with weights of a generator of its own: burn's belongs to the process, so what
/// it draws depends on the tests beside this one. What has one number everywhere, such as the
/// scale of a normalization, stays; of a single number that is 0 or 1.
pub fn with_fixed_weights<M: Module>(model: M) -> M {
    model.map(&mut Drawn(ChaCha8Rng::seed_from_u64(1)))
}

struct Drawn(ChaCha8Rng);

impl ModuleMapper for Drawn {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let dims = value.dims();
        let mut drawn = value.to_data().iter::<f32>().collect::<Vec<_>>();
        let is_constant = match drawn[..] {
            [one] => one == 0.0 || one == 1.0,
            _ => drawn.iter().all(|other| *other == drawn[0]),
        };
        if !is_constant {
            // About as large as what burn draws: an embedding has the variance 1.
            let inputs = if D == 2 {
                dims[0]
            } else {
                drawn.len() / dims[0]
            };
            let bound = if drawn.iter().any(|value| value.abs() > 1.0) {
                3_f32.sqrt()
            } else if D == 1 {
                0.2
            } else {
                (inputs as f32).sqrt().recip()
            };
            drawn.fill_with(|| self.0.random_range(-bound..bound));
        }
        let other = Tensor::from_data(TensorData::new(drawn, dims), &value.device());
        let other = other.set_require_grad(value.is_require_grad());
        Param::from_mapped_value(id, other, mapper)
    }
}

/// Inputs and labels.
type Batch<const D: usize> = (Tensor<D>, Tensor<1, Int>);

#[derive(Module, Debug)]
pub struct Mlp {
    first: Linear,
    norm: LayerNorm,
    second: Linear,
}

impl Mlp {
    pub fn new(device: &Device) -> Self {
        with_fixed_weights(Self {
            first: LinearConfig::new(12, 32).init(device),
            norm: LayerNormConfig::new(32).init(device),
            second: LinearConfig::new(32, 5).init(device),
        })
    }

    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = burn::tensor::activation::relu(self.first.forward(x));
        self.second.forward(self.norm.forward(hidden))
    }
}

/// The step of the design's first page.
pub fn mlp_step(
    global_batch: usize,
) -> impl for<'x> Fn(&ReplicaContext, (&'x mut TrainState<Mlp>, Batch<2>)) -> Result<Tensor<1>>
+ Sync
+ Copy {
    move |ctx, (state, (x, y))| {
        let per_example = sparse_categorical_crossentropy(state.model.forward(x), y);
        let loss = AverageLoss::new()
            .global_batch_size(global_batch)
            .of(ctx, per_example)?
            + scale_regularization_loss(ctx, l2(state.model.first.weight.val(), 1e-4))?;
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(loss)
    }
}

#[derive(Module, Debug)]
pub struct Cnn {
    first: Conv2d,
    second: Conv2d,
    activation: Relu,
    pool: MaxPool2d,
    dense: Linear,
}

impl Cnn {
    pub fn new(device: &Device) -> Self {
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        with_fixed_weights(Self {
            first: Conv2dConfig::new([1, 8], [3, 3])
                .with_padding(padding.clone())
                .init(device),
            second: Conv2dConfig::new([8, 12], [3, 3])
                .with_padding(padding)
                .init(device),
            activation: Relu::new(),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dense: LinearConfig::new(12 * 2 * 2, 10).init(device),
        })
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self
            .pool
            .forward(self.activation.forward(self.first.forward(x)));
        let x = self
            .pool
            .forward(self.activation.forward(self.second.forward(x)));
        self.dense.forward(x.flatten(1, 3))
    }
}

pub fn cnn_step(
    global_batch: usize,
) -> impl for<'x> Fn(&ReplicaContext, (&'x mut TrainState<Cnn>, Batch<4>)) -> Result<Tensor<1>>
+ Sync
+ Copy {
    move |ctx, (state, (x, y))| {
        let per_example = sparse_categorical_crossentropy(state.model.forward(x), y);
        let loss = AverageLoss::new()
            .global_batch_size(global_batch)
            .of(ctx, per_example)?;
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(loss)
    }
}

/// A small decoder-only transformer: each token sees those before it.
#[derive(Module, Debug)]
pub struct Transformer {
    tokens: Embedding,
    positions: Embedding,
    layers: TransformerEncoder,
    output: Linear,
}

impl Transformer {
    pub fn new(device: &Device) -> Self {
        Self::with(2, 0.0, device)
    }

    /// With this many layers, each with four dropouts of this rate.
    pub fn with(layers: usize, rate: f64, device: &Device) -> Self {
        with_fixed_weights(Self {
            tokens: EmbeddingConfig::new(11, 16).init(device),
            positions: EmbeddingConfig::new(8, 16).init(device),
            layers: TransformerEncoderConfig::new(16, 32, 2, layers)
                .with_dropout(rate)
                .init(device),
            output: LinearConfig::new(16, 11).init(device),
        })
    }

    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [batch, length] = tokens.dims();
        let device = tokens.device();
        let mask = generate_autoregressive_mask(batch, length, &device);
        let positions = Tensor::arange(0..length as i64, &device).reshape([1, length]);
        let embedded = self.tokens.forward(tokens) + self.positions.forward(positions);
        let input = TransformerEncoderInput::new(embedded).mask_attn(mask);
        self.output.forward(self.layers.forward(input))
    }
}

pub fn transformer_step(
    global_batch: usize,
) -> impl for<'x> Fn(
    &ReplicaContext,
    (&'x mut TrainState<Transformer>, Tensor<2, Int>),
) -> Result<Tensor<1>>
+ Sync
+ Copy {
    move |ctx, (state, tokens)| {
        let [batch, length] = tokens.dims();
        let logits = state
            .model
            .forward(tokens.clone().slice([0..batch, 0..length - 1]));
        let next = tokens.slice([0..batch, 1..length]);
        let per_token = sparse_categorical_crossentropy(logits, next);
        let loss = AverageLoss::new()
            .global_batch_size(global_batch)
            .of(ctx, per_token)?;
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(loss)
    }
}

/// Normalized over the parts of all replicas, and over each one's own.
#[derive(Module, Debug)]
pub struct Normalized {
    pub inputs: SyncBatchNorm,
    pub hidden: Linear,
    pub norm: LocalBatchNorm,
    pub output: Linear,
}

impl Normalized {
    pub fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        with_fixed_weights(Self {
            inputs: SyncBatchNormConfig::new(inputs).init(device).unwrap(),
            hidden: LinearConfig::new(inputs, 8).init(device),
            norm: BatchNormConfig::new(8).init(device).into(),
            output: LinearConfig::new(8, outputs).init(device),
        })
    }
}
