//! A small data set in memory, a model with fixed weights, and the hand-written loop to compare
//! with.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    Adam, BatchSource, Batches, Mirrored, PerReplica, ReduceOp, Result, Strategy, StrategyExt,
    TrainState,
};
use distribute_fit::{Objective, StepContext};

/// 44 points in 6 global batches of 8, the last one with 4.
pub const EXAMPLES: usize = 44;
pub const GLOBAL_BATCH: usize = 8;
pub const BATCHES: usize = 6;

pub type Batch = (Tensor<2>, Tensor<2>);

#[derive(Module, Debug)]
pub struct Mlp {
    hidden: Linear,
    pub output: Linear,
}

impl Mlp {
    pub fn new(device: &Device) -> Self {
        let fill = |mut linear: Linear, seed: f32| {
            linear.weight = linear.weight.map(|weight| {
                let shape = weight.shape();
                let values: Vec<f32> = (0..shape.num_elements())
                    .map(|i| ((i as f32 + seed) * 12.9898).sin() * 0.5)
                    .collect();
                Tensor::from_data(TensorData::new(values, shape), device).require_grad()
            });
            linear.bias = linear
                .bias
                .map(|bias| bias.map(|bias| bias.zeros_like().require_grad()));
            linear
        };
        Self {
            hidden: fill(LinearConfig::new(2, 8).init(device), 1.0),
            output: fill(LinearConfig::new(8, 1).init(device), 2.0),
        }
    }

    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        sigmoid(self.output.forward(relu(self.hidden.forward(x))))
    }
}

/// Which points lie above a curve; shuffled differently in every epoch.
pub struct Points<'a, S: ?Sized> {
    pub strategy: &'a S,
    pub global_batch: usize,
    pub examples: usize,
    pub shuffle: bool,
}

impl<'a, S: Strategy + ?Sized> Points<'a, S> {
    pub fn new(strategy: &'a S) -> Self {
        Self {
            strategy,
            global_batch: GLOBAL_BATCH,
            examples: EXAMPLES,
            shuffle: true,
        }
    }

    pub fn row(index: usize) -> ([f32; 2], f32) {
        let x = ((index as f32 + 1.0) * 78.233).sin();
        let y = ((index as f32 + 1.0) * 37.719).cos();
        ([x, y], f32::from(u8::from(y > x * x - 0.4)))
    }

    fn order(&self, epoch: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.examples).collect();
        if self.shuffle {
            order.sort_by_key(|index| (index * 7919 + epoch * 104_729) % 1009);
        }
        order
    }

    /// The rows of one global batch, replica i with the i-th share: as TensorFlow splits.
    fn split(&self, rows: &[usize]) -> PerReplica<Batch> {
        let replicas = self.strategy.replicas();
        let parts = replicas
            .iter()
            .map(|replica| self.part(rows, replica.id, &replica.device));
        PerReplica::new(parts.collect())
    }

    /// The same for one replica of any worker.
    pub fn part(&self, rows: &[usize], replica: usize, device: &Device) -> Batch {
        let share = self
            .global_batch
            .div_ceil(self.strategy.num_replicas_in_sync());
        let from = (replica * share).min(rows.len());
        let part = &rows[from..(from + share).min(rows.len())];
        let (x, y): (Vec<[f32; 2]>, Vec<f32>) = part.iter().map(|i| Self::row(*i)).unzip();
        let x = TensorData::new(x.concat(), [part.len(), 2]);
        let y = TensorData::new(y, [part.len(), 1]);
        (Tensor::from_data(x, device), Tensor::from_data(y, device))
    }
}

impl<S: Strategy + ?Sized> BatchSource for Points<'_, S> {
    type Batch = Batch;

    fn batches_per_epoch(&self) -> Option<usize> {
        Some(self.examples.div_ceil(self.global_batch))
    }

    fn global_batch_size(&self) -> Option<usize> {
        Some(self.global_batch)
    }

    fn replica_batch(
        &self,
        epoch: usize,
        batch: usize,
        replica: usize,
        device: &Device,
    ) -> Result<Option<Batch>> {
        let order = self.order(epoch);
        let rows = order.chunks(self.global_batch).nth(batch);
        Ok(rows.map(|rows| self.part(rows, replica, device)))
    }

    fn epoch(&self, epoch: usize, skip_batches: usize) -> Result<Batches<'_, Batch>> {
        let order = self.order(epoch);
        let from = (skip_batches * self.global_batch).min(order.len());
        let order = order[from..].to_vec();
        let batches: Vec<_> = order
            .chunks(self.global_batch)
            .map(<[usize]>::to_vec)
            .collect();
        Ok(Box::new(
            batches.into_iter().map(|rows| Ok(self.split(&rows))),
        ))
    }
}

/// Squared error, and accuracy; the loss of the hand-written loop is the same expression.
pub fn objective(ctx: &StepContext<'_>, model: &Mlp, (x, y): Batch) -> Result<Objective> {
    let examples = x.dims()[0];
    let predicted = model.forward(x);
    let correct = predicted
        .clone()
        .greater_elem(0.5)
        .equal(y.clone().greater_elem(0.5));
    let correct: Tensor<1> = correct.float().sum();
    let global_batch = ctx.global_batch_size()?.unwrap_or(1);
    ctx.loss_is_scaled();
    Ok(Objective::new(squared_error(predicted, y, global_batch))
        .examples(examples)
        .metric("accuracy", correct, examples))
}

pub fn squared_error(predicted: Tensor<2>, y: Tensor<2>, global_batch: usize) -> Tensor<1> {
    let error = predicted - y;
    (error.clone() * error)
        .sum()
        .div_scalar(global_batch as f32)
}

pub fn new_state<S: Strategy + ?Sized>(strategy: &S) -> Mirrored<TrainState<Mlp>> {
    strategy
        .scope(|device| TrainState::new(Mlp::new(device), Adam::new(0.02)))
        .unwrap()
}

/// The loop that `fit` replaces.
pub fn by_hand<S: Strategy + ?Sized>(
    strategy: &S,
    state: &mut Mirrored<TrainState<Mlp>>,
    epochs: usize,
) -> Vec<f64> {
    let data = Points::new(strategy);
    let mut losses = Vec::new();
    for epoch in 0..epochs {
        let mut sum = 0.0;
        for batch in data.epoch(epoch, 0).unwrap() {
            let batch = batch.unwrap();
            let loss = strategy.run((&mut *state, batch), |ctx, (state, (x, y))| {
                let loss = squared_error(state.model.forward(x), y, GLOBAL_BATCH);
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(loss)
            });
            let loss = strategy.reduce(ReduceOp::Sum, loss.unwrap()).unwrap();
            sum += f64::from(loss.into_scalar::<f32>()) * GLOBAL_BATCH as f64;
        }
        losses.push(sum / EXAMPLES as f64);
    }
    losses
}

/// All tensors of the state as numbers.
pub fn everything(state: &TrainState<Mlp>) -> Vec<(String, Vec<f32>)> {
    let tensors = state.to_tensors().unwrap().into_iter();
    tensors
        .map(|(name, data)| (name, data.iter::<f32>().collect()))
        .collect()
}

pub fn assert_close(a: &TrainState<Mlp>, b: &TrainState<Mlp>, bound: f32) {
    for ((name, a), (_, b)) in everything(a).iter().zip(&everything(b)) {
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() <= bound, "{name}: {a} and {b}");
        }
    }
}
