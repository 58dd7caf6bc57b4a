//! A small decoder-only transformer that learns to add: one step under `MirroredStrategy` and,
//! where there is a PJRT plugin, compiled under `TpuStrategy`. Its language: two digits, then each
//! is the sum of the two before it, modulo 10. All but two can be known: the loss can fall to zero.
#![forbid(unsafe_code)]

use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::*;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::prelude::*;
use distribute_core::prelude::*;
use distribute_data::prelude::*;
use distribute_tpu_xla::{TpuClusterResolver, TpuStrategy};

const LENGTH: usize = 8;
type TrainInput<'a> = (&'a mut TrainState<Transformer>, Tensor<2, Int>);

#[derive(Module, Debug)]
struct Transformer {
    tokens: Embedding,
    positions: Embedding,
    layers: TransformerEncoder,
    output: Linear,
}

impl Transformer {
    fn new(device: &Device) -> Self {
        let layers = TransformerEncoderConfig::new(32, 64, 4, 2).with_dropout(0.0);
        Self {
            tokens: EmbeddingConfig::new(10, 32).init(device),
            positions: EmbeddingConfig::new(LENGTH, 32).init(device),
            layers: layers.with_norm_first(true).init(device),
            output: LinearConfig::new(32, 10).init(device),
        }
    }

    /// Digits to logits. The mask makes an encoder a decoder: a position sees those before it.
    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [batch, length] = tokens.dims();
        let device = tokens.device();
        let positions = Tensor::arange(0..length as i64, &device).reshape([1, length]);
        let embedded = self.tokens.forward(tokens) + self.positions.forward(positions);
        let mask = generate_autoregressive_mask(batch, length, &device);
        let input = TransformerEncoderInput::new(embedded).mask_attn(mask);
        self.output.forward(self.layers.forward(input))
    }
}

fn sentence(number: usize) -> Vec<i64> {
    let mut digits = vec![number as i64 / 10 % 10, number as i64 % 10];
    (2..LENGTH).for_each(|i| digits.push((digits[i - 1] + digits[i - 2]) % 10));
    digits
}

fn train_step(ctx: &ReplicaContext, (state, tokens): TrainInput<'_>) -> Result<Tensor<1>> {
    let logits = state.model.forward(tokens.clone().slice(s![.., ..-1]));
    // Nothing is asked about the first two digits, which can be any.
    let (logits, next) = (logits.slice(s![.., 1..]), tokens.slice(s![.., 2..]));
    let per_token = sparse_categorical_crossentropy(logits, next);
    let loss = average_loss(ctx, per_token.mean_dim(1))?;
    let gradients = ctx.gradient(&loss, &state.model)?;
    state.apply_gradients(ctx, gradients)?;
    Ok(loss)
}

fn train<S: Strategy>(strategy: &S) -> Result<()> {
    let language = FnDataset::new(1000, |indices, device| {
        let tokens: Vec<i64> = indices.iter().flat_map(|index| sentence(*index)).collect();
        let tokens = Tensor::<1, Int>::from_data(tokens.as_slice(), device);
        Ok(tokens.reshape([-1, LENGTH as i32]))
    });
    let data = strategy.distribute_dataset(language, Batching::global(20).shuffle(1))?;
    let mut state = strategy.scope(|device| {
        device.seed(7);
        TrainState::new(Transformer::new(device), AdamW::new(3e-3))
    })?;
    for epoch in 0..4 {
        let mut loss = 0.0;
        for batch in data.epoch(epoch) {
            let losses = strategy.run((&mut state, batch?), train_step)?;
            let sum = strategy.reduce(ReduceOp::Sum, losses)?;
            loss += sum.into_scalar::<f32>() / data.batches_per_epoch() as f32;
        }
        println!("{} epoch {epoch}: loss {loss:.3}", strategy.name());
    }
    Ok(())
}

fn main() -> Result<()> {
    train(&MirroredStrategy::builder().replicas(2).build()?)?;
    let plugin = TpuClusterResolver::from_env()?.connect();
    match plugin.and_then(|plugin| plugin.initialize()) {
        Ok(system) => train(&TpuStrategy::builder(&system).replicas(2).build()?)?,
        Err(error) => println!("not under TpuStrategy: {error}"),
    }
    Ok(())
}
