//! A model whose gradients are views, shared, expanded, on some replicas only or on none, and its
//! data: for the tests of what happens to gradients where their devices keep them.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{PerReplica, Result, Strategy, TrainState};

#[derive(Module, Debug)]
pub struct Odd {
    hidden: Linear,
    output: Linear,
    /// Two whose gradients are one tensor.
    pub left: Param<Tensor<1>>,
    pub right: Param<Tensor<1>>,
    wide: Param<Tensor<1>>,
    table: Param<Tensor<2>>,
    cut: Param<Tensor<1>>,
    one: Param<Tensor<1>>,
    /// Used by replica 0 only.
    first: Param<Tensor<1>>,
    unused: Param<Tensor<1>>,
}

fn numbers(count: usize, seed: f32) -> Vec<f32> {
    (0..count)
        .map(|i| ((i as f32 + seed) * 12.9898).sin() * 0.5)
        .collect()
}

impl Odd {
    /// Fixed weights, so that tests do not depend on burn's process-wide generator.
    pub fn new(device: &Device) -> Self {
        let fill = |mut linear: Linear, seed: f32| {
            linear.weight = linear.weight.map(|weight| {
                let shape = weight.shape();
                let values = numbers(shape.num_elements(), seed);
                Tensor::from_data(TensorData::new(values, shape), device).require_grad()
            });
            linear.bias = linear
                .bias
                .map(|bias| bias.map(|bias| Tensor::zeros(bias.shape(), device).require_grad()));
            linear
        };
        let param = |count: usize, seed| {
            let data = TensorData::new(numbers(count, seed), [count]);
            Param::from_tensor(Tensor::from_data(data, device).require_grad())
        };
        let table = TensorData::new(numbers(12, 9.0), [3, 4]);
        Self {
            hidden: fill(LinearConfig::new(3, 8).init(device), 1.0),
            output: fill(LinearConfig::new(8, 1).init(device), 2.0),
            left: param(5, 3.0),
            right: param(5, 4.0),
            wide: param(7, 7.0),
            table: Param::from_tensor(Tensor::from_data(table, device).require_grad()),
            cut: param(11, 8.0),
            one: param(1, 10.0),
            first: param(4, 5.0),
            unused: param(3, 6.0),
        }
    }

    pub fn loss(&self, replica: usize, x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
        let device = x.device();
        let error = self.output.forward(relu(self.hidden.forward(x))) - y;
        let mut loss = (error.clone() * error).sum();
        let both = self.left.val() + self.right.val();
        loss = loss + (both.clone() * both).sum();
        // Expanded: a gradient with stride 0.
        loss = loss + self.wide.val().sum() * (replica as f32 + 1.0);
        // A transposed gradient.
        let other = Tensor::<2>::from_data(TensorData::new(numbers(12, 2.5), [4, 3]), &device);
        loss = loss + (self.table.val().transpose() * other).sum();
        // Pieces of one tensor.
        let cut = self.cut.val();
        loss = loss + (cut.clone().narrow(0, 2, 3) * 3.0).sum();
        loss = loss + cut.narrow(0, 4, 6).powi_scalar(2).sum() * (replica as f32 - 0.5);
        loss = loss + self.one.val();
        if replica == 0 {
            loss = loss + self.first.val().powi_scalar(2).sum();
        }
        loss.div_scalar(BATCH as f32)
    }
}

pub type Batch = (Tensor<2>, Tensor<2>);

pub const BATCH: usize = 12;

/// The examples of a range of a global batch, on a device.
fn examples(step: usize, range: std::ops::Range<usize>, device: &Device) -> Batch {
    let count = range.len();
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for row in range {
        let base = (step * BATCH + row) as f32;
        let x: Vec<f32> = (0..3).map(|k| ((base + k as f32) * 78.233).sin()).collect();
        targets.push(x[0] * 2.0 - x[1] + 0.5 * x[2]);
        inputs.extend(x);
    }
    (
        Tensor::from_data(TensorData::new(inputs, [count, 3]), device),
        Tensor::from_data(TensorData::new(targets, [count, 1]), device),
    )
}

pub fn batches(strategy: &dyn Strategy, step: usize) -> PerReplica<Batch> {
    let share = BATCH.div_ceil(strategy.num_replicas_in_sync());
    let batches = strategy.replicas().iter().map(|replica| {
        let start = (replica.id * share).min(BATCH);
        let end = (start + share).min(BATCH);
        examples(step, start..end, &replica.device)
    });
    PerReplica::new(batches.collect())
}

/// All weights, flattened, in the order of their names.
pub fn weights<M: Module + 'static>(state: &TrainState<M>) -> Result<Vec<f32>> {
    let tensors = state.to_tensors()?;
    let values = tensors.values();
    Ok(values
        .flat_map(|data| data.iter::<f32>().collect::<Vec<_>>())
        .collect())
}
