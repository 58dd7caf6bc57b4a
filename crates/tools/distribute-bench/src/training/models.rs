//! The built-in models as competitors, on made-up examples.

use std::fmt;
use std::time::Duration;

use burn::tensor::{Device, Int, Tensor, TensorData};
use distribute_core::{
    Adam, Error, Mirrored, PerReplica, ReduceOp, Result, Strategy, StrategyExt, TrainState,
};
use distribute_data::{
    AverageLoss, binary_crossentropy, scale_regularization_loss, sparse_categorical_crossentropy,
};
use distribute_keras::{Mode, Model, Plan, built_in};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::contenders::{Contender, Steps, Trained, steps_for};

const LEARNING_RATE: f64 = 1e-3;
const CLASSES: usize = 10;
/// What `text` is measured with: the tokens of a text, and how many there are.
const TEXT_STEPS: usize = 64;
const TEXT_TOKENS: usize = 2_000;
/// Decides weights and examples, which the time of a step does not depend on.
const SEED: u64 = 1;

/// A model to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchModel {
    /// The CNN of TensorFlow's tutorial, on images of 28 x 28
    MnistCnn,
    /// A small CNN, on images of 8 x 8
    DigitsCnn,
    /// Two hidden layers, on 64 numbers
    Mlp,
    /// Word embeddings, on texts of 64 words out of 2,000
    Text,
}

impl fmt::Display for BenchModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MnistCnn => "mnist-cnn",
            Self::DigitsCnn => "digits-cnn",
            Self::Mlp => "mlp",
            Self::Text => "text",
        })
    }
}

impl BenchModel {
    fn shape(self) -> &'static [usize] {
        match self {
            Self::MnistCnn => &[28, 28],
            Self::DigitsCnn | Self::Mlp => &[8, 8],
            Self::Text => &[TEXT_STEPS],
        }
    }

    fn plan(self) -> Result<Plan> {
        let name = self.to_string();
        let spec = built_in(&name, CLASSES, TEXT_TOKENS)
            .ok_or_else(|| Error::invalid(format!("there is no model {name}")))?;
        Ok(spec.plan(self.shape())?)
    }

    /// Examples of one replica.
    fn batch(self, device: &Device, batch_size: usize, replica: usize) -> Batch {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED + replica as u64);
        let elements: usize = self.shape().iter().product();
        let (most, classes) = match self {
            Self::Text => (TEXT_TOKENS, 2),
            _ => (1, CLASSES),
        };
        let value = |rng: &mut ChaCha8Rng| match self {
            Self::Text => rng.random_range(0..most) as f32,
            _ => rng.random::<f32>(),
        };
        let values: Vec<f32> = (0..batch_size * elements)
            .map(|_| value(&mut rng))
            .collect();
        let labels: Vec<i64> = (0..batch_size)
            .map(|_| rng.random_range(0..classes as i64))
            .collect();
        let values = TensorData::new(values, [batch_size, elements]);
        let labels = TensorData::new(labels, [batch_size]);
        (
            Tensor::from_data(values, device),
            Tensor::from_data(labels, device),
        )
    }
}

type Batch = (Tensor<2>, Tensor<1, Int>);

/// A model's training under a strategy.
pub struct ModelUnder<S> {
    name: &'static str,
    strategy: S,
    state: Mirrored<TrainState<Model>>,
    batch: PerReplica<Batch>,
    global_batch: usize,
}

impl<S: Strategy> ModelUnder<S> {
    /// With batches of `batch_size` examples for each replica.
    ///
    /// # Errors
    /// The errors of the strategy.
    pub fn new(
        name: &'static str,
        strategy: S,
        model: BenchModel,
        batch_size: usize,
    ) -> Result<Self> {
        let plan = model.plan()?;
        let state = strategy.try_scope(|device| {
            let model = Model::initialized(&plan, SEED, device)?;
            Ok(TrainState::new(model, Adam::new(LEARNING_RATE)))
        })?;
        let replicas = strategy.replicas().iter();
        let batch = replicas.map(|replica| model.batch(&replica.device, batch_size, replica.id));
        Ok(Self {
            name,
            batch: PerReplica::new(batch.collect()),
            global_batch: batch_size * strategy.num_replicas_in_sync(),
            strategy,
            state,
        })
    }
}

impl<S: Strategy> Steps for ModelUnder<S> {
    fn step(&mut self) -> Result<f32> {
        let size = self.global_batch;
        let arguments = (&mut self.state, self.batch.clone());
        let losses = self.strategy.run(arguments, |ctx, (state, (x, y))| {
            let logits = state.model.logits(x, &mut Mode::Inference)?;
            let [examples, outputs] = logits.dims();
            let per_example = match outputs {
                1 => binary_crossentropy(logits, y.reshape([examples, 1])),
                _ => sparse_categorical_crossentropy(logits, y),
            };
            let mut loss = AverageLoss::new()
                .global_batch_size(size)
                .of(ctx, per_example)?;
            if let Some(penalty) = state.model.regularization_loss() {
                loss = loss + scale_regularization_loss(ctx, penalty)?;
            }
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        })?;
        Ok(self.strategy.reduce(ReduceOp::Sum, losses)?.into_scalar())
    }
}

impl<S: Strategy> Contender for ModelUnder<S> {
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
