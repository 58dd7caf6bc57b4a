//! burn's `text-classification`: a transformer encoder over tokens with a padding mask, with Noam's
//! schedule; and its fine-tuning with adapters (LoRA).

use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::module::{Lora, Module};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Bool, Int};
use distribute::BurnOptimizer;
use distribute::prelude::*;

use crate::harness::*;

const LENGTH: usize = 12;
const TOKENS: usize = 40;
const WIDTH: usize = 16;
const CLASSES: usize = 4;
const PADDING: i64 = 0;

#[derive(Nest, Clone, Debug)]
pub struct Batch {
    tokens: Tensor<2, Int>,
    class: Tensor<1, Int>,
    /// True where there is no token.
    mask: Tensor<2, Bool>,
}

type Texts = Items<(Vec<i64>, i64), Batch>;

fn batch(items: Vec<(Vec<i64>, i64)>, device: &Device) -> Batch {
    let mut padded = Vec::new();
    for (tokens, _) in &items {
        padded.extend((0..LENGTH).map(|at| tokens.get(at).copied().unwrap_or(PADDING)));
    }
    let tokens = integers(padded, device).reshape([-1, LENGTH as i32]);
    Batch {
        mask: tokens.clone().equal_elem(PADDING),
        tokens,
        class: integers(items.iter().map(|(_, label)| *label).collect(), device),
    }
}

/// Texts of 2 to 12 tokens: a class token, then words, most of them from the class' own part of
/// the vocabulary.
fn texts(seed: u64) -> Texts {
    let mut numbers = Numbers(seed);
    let item = |_| {
        let class = numbers.below(CLASSES);
        let mut tokens = vec![1];
        for _ in 0..1 + numbers.below(LENGTH - 1) {
            tokens.push(match numbers.below(4) {
                0 => 2 + numbers.below(TOKENS - 2) as i64,
                _ => (2 + class * 9 + numbers.below(9)) as i64,
            });
        }
        (tokens, class as i64)
    };
    Items::new((0..15 * BATCH).map(item).collect(), batch)
}

#[derive(Module, Debug)]
struct Model {
    transformer: TransformerEncoder,
    tokens: Embedding,
    positions: Embedding,
    output: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        let transformer = TransformerEncoderConfig::new(WIDTH, 32, 4, 2);
        let transformer = transformer.with_dropout(0.0).with_norm_first(true);
        Self {
            transformer: transformer.init(device),
            tokens: EmbeddingConfig::new(TOKENS, WIDTH).init(device),
            positions: EmbeddingConfig::new(LENGTH, WIDTH).init(device),
            output: LinearConfig::new(WIDTH, CLASSES).init(device),
        }
    }

    /// The logits at the class token.
    fn forward(&self, tokens: Tensor<2, Int>, mask: Tensor<2, Bool>) -> Tensor<2> {
        let [batch, length] = tokens.dims();
        let positions = Tensor::arange(0..length as i64, &tokens.device()).reshape([1, length]);
        let positions = self.positions.forward(positions.repeat_dim(0, batch));
        let embedded = (self.tokens.forward(tokens) + positions) / 2;
        let input = TransformerEncoderInput::new(embedded).mask_pad(mask);
        let output = self.output.forward(self.transformer.forward(input));
        output.slice([0..batch, 0..1]).reshape([batch, CLASSES])
    }
}

fn burn_loop(model: Model, texts: &Texts) -> Result<Vec<f32>> {
    let device = Device::flex().autodiff();
    let train = texts.loader(BATCH, &device);
    let mut model = model;
    let mut optimizer = AdamConfig::new().init();
    let schedule = NoamLrSchedulerConfig::new(0.1)
        .with_warmup_steps(10)
        .with_model_size(WIDTH);
    let mut schedule = schedule.init().map_err(Error::input)?;
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for batch in train.iter() {
            let batch = batch?;
            let rate = schedule.step();
            let output = model.forward(batch.tokens, batch.mask);
            let loss = CrossEntropyLossConfig::new().init(&output.device());
            let loss = loss.forward(output, batch.class);
            losses.push(loss.clone().into_scalar::<f32>());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(rate, model, gradients);
        }
    }
    Ok(losses)
}

fn our_loop(strategy: &dyn Strategy, model: Model, texts: &Texts) -> Result<Vec<f32>> {
    let train = strategy.distribute_dataset(texts.dataset(), Batching::global(BATCH))?;
    let optimizer = BurnOptimizer::new(AdamConfig::new(), 0.0);
    let mut state = strategy.scope(|_| TrainState::new(model, optimizer))?;
    let schedule = NoamLrSchedulerConfig::new(0.1)
        .with_warmup_steps(10)
        .with_model_size(WIDTH);
    let mut schedule = schedule.init().map_err(Error::input)?;
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for batch in train.iter() {
            state.set_learning_rate(schedule.step().base());
            let shares = strategy.run((&mut state, batch?), |ctx, (state, batch)| {
                let output = state.model.forward(batch.tokens, batch.mask);
                let loss = CrossEntropyLossConfig::new().init(&output.device());
                let loss = ctx.mean_loss(loss.forward(output, batch.class))?;
                state.minimize(ctx, &loss)?;
                Ok(loss)
            })?;
            losses.push(strategy.reduce(ReduceOp::Sum, shares)?.into_scalar::<f32>());
        }
    }
    Ok(losses)
}

/// The model with adapters, and a new last layer that trains with them.
fn adapted(seed: u64) -> Model {
    let trained = model(seed, Model::new);
    seeded(seed + 1, |device| {
        let mut model = trained.apply_lora(Lora::new(2, 4.0));
        let output = LinearConfig::new(WIDTH, CLASSES).init(device);
        let _ = (
            output.weight.val(),
            output.bias.as_ref().map(|bias| bias.val()),
        );
        model.output = output;
        model
    })
}

#[test]
fn text_classification_has_the_losses_of_burn() {
    let texts = texts(11);
    let wanted = burn_loop(model(11, Model::new), &texts).unwrap();
    falls(&wanted);
    has_losses_of_burn(&wanted, move |strategy| {
        our_loop(strategy, model(11, Model::new), &texts)
    });
}

#[test]
fn text_classification_with_lora_has_the_losses_of_burn() {
    let texts = texts(12);
    let wanted = burn_loop(adapted(12), &texts).unwrap();
    falls(&wanted);
    has_losses_of_burn(&wanted, move |strategy| {
        our_loop(strategy, adapted(12), &texts)
    });
}
