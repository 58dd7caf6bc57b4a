//! Points above and below a curve, a model with fixed weights, and its loss.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::Result;
use distribute_data::{Dataset, FnDataset};
use distribute_fit::{Objective, StepContext};

/// 11 batches of 8, the last one with 4.
pub const TRAIN: std::ops::Range<usize> = 0..84;
pub const BATCHES: usize = 11;
pub const TEST: std::ops::Range<usize> = 84..104;

pub type Batch = (Tensor<2>, Tensor<2>);

/// A layer with fixed weights, as burn's generator belongs to the process; its bias is zero.
pub fn filled(config: &LinearConfig, seed: f32, device: &Device) -> Linear {
    let mut linear = config.init(device);
    linear.weight = linear.weight.map(|weight| {
        let shape = weight.shape();
        let values = (0..shape.num_elements()).map(|i| ((i as f32 + seed) * 12.9).sin());
        let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
        Tensor::from_data(data, device).require_grad()
    });
    linear.bias = linear
        .bias
        .map(|bias| bias.map(|bias| bias.zeros_like().require_grad()));
    linear
}

#[derive(Module, Debug)]
pub struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    pub fn new(device: &Device) -> Self {
        Self {
            hidden: filled(&LinearConfig::new(2, 8), 1.0, device),
            output: filled(&LinearConfig::new(8, 1), 2.0, device),
        }
    }

    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        sigmoid(self.output.forward(self.hidden.forward(x).tanh()))
    }
}

pub fn points(range: std::ops::Range<usize>) -> impl Dataset<Batch = Batch> {
    let first = range.start;
    FnDataset::new(range.len(), move |indices: &[usize], device: &Device| {
        let point = |index: &usize| {
            let index = (first + index) as f32 + 1.0;
            let (x, y) = ((index * 78.233).sin(), (index * 37.719).cos());
            ([x, y], f32::from(u8::from(y > x * x - 0.4)))
        };
        let (x, y): (Vec<[f32; 2]>, Vec<f32>) = indices.iter().map(point).unzip();
        let x = TensorData::new(x.concat(), [indices.len(), 2]);
        let y = TensorData::new(y, [indices.len(), 1]);
        Ok((Tensor::from_data(x, device), Tensor::from_data(y, device)))
    })
}

pub fn objective(ctx: &StepContext<'_>, model: &Mlp, (x, y): Batch) -> Result<Objective> {
    let examples = x.dims()[0];
    let predicted = model.forward(x);
    let right = predicted.clone().greater_elem(0.5);
    let right: Tensor<1> = right.equal(y.clone().greater_elem(0.5)).float().sum();
    let global_batch = ctx.global_batch_size()?.unwrap_or(1) as f64;
    let loss = (predicted - y).square().sum() / global_batch;
    let objective = Objective::new(loss).examples(examples);
    Ok(objective.metric("accuracy", right, examples))
}
