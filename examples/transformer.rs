//! A small decoder-only transformer that learns to add: the same step under `MirroredStrategy` and,
//! if there is a PJRT plugin, compiled under `TpuStrategy`. Its language: two digits, then each
//! digit is the sum of the previous two, modulo 10. So the loss of these digits can fall to zero.
#![forbid(unsafe_code)]

use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::*;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::prelude::*;
use distribute::prelude::*;
use distribute::tpu::{TpuClusterResolver, TpuStrategy};

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

    /// Digits to logits. The causal mask hides later positions, which makes the encoder a decoder.
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
    // The first two digits are random and are not predicted.
    let (logits, next) = (logits.slice(s![.., 1..]), tokens.slice(s![.., 2..]));
    let per_token = sparse_categorical_crossentropy(logits, next);
    let loss = average_loss(ctx, per_token.mean_dim(1))?;
    state.minimize(ctx, &loss)?;
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
