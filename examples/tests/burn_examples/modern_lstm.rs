//! burn's `modern-lstm`: a bidirectional LSTM with layer normalization, of cells that are written
//! out.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig, LstmState};
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::activation::sigmoid;
use burn::tensor::s;
use distribute::BurnOptimizer;
use distribute::prelude::*;

use crate::harness::*;

const LENGTH: usize = 6;
const HIDDEN: usize = 8;
const RATE: f64 = 5e-3;

#[derive(Module, Debug)]
struct Cell {
    input: Linear,
    hidden: Linear,
    norm_input: LayerNorm,
    norm_hidden: LayerNorm,
    norm_cell: LayerNorm,
}

impl Cell {
    /// A bias of 1 for the gate that forgets.
    fn gates(inputs: usize, device: &Device) -> Linear {
        let config = LinearConfig::new(inputs, 4 * HIDDEN);
        let initializer = Initializer::XavierNormal { gain: 1.0 };
        let mut gates = config.with_initializer(initializer).init(device);
        let ones = Tensor::<1>::ones([HIDDEN], device);
        gates.bias = gates.bias.map(|bias| {
            bias.map(|bias| {
                let bias = bias.slice_assign(s![HIDDEN..2 * HIDDEN], ones);
                bias.detach().require_grad()
            })
        });
        gates
    }

    fn new(inputs: usize, device: &Device) -> Self {
        let norm = |width| LayerNormConfig::new(width).init(device);
        Self {
            input: Self::gates(inputs, device),
            hidden: Self::gates(HIDDEN, device),
            norm_input: norm(4 * HIDDEN),
            norm_hidden: norm(HIDDEN),
            norm_cell: norm(HIDDEN),
        }
    }

    fn forward(&self, x: Tensor<2>, state: LstmState<2>) -> LstmState<2> {
        let gates = self.norm_input.forward(self.input.forward(x));
        let gates = (gates + self.hidden.forward(state.hidden)).chunk(4, 1);
        let [input, forget, output] = [0, 1, 3].map(|gate| sigmoid(gates[gate].clone()));
        let cell = forget * state.cell + input * gates[2].clone().tanh();
        let cell = self.norm_cell.forward(cell);
        let hidden = self.norm_hidden.forward(output * cell.clone().tanh());
        LstmState::new(cell, hidden)
    }
}

#[derive(Module, Debug)]
struct Stack {
    cells: Vec<Cell>,
}

impl Stack {
    fn new(layers: usize, device: &Device) -> Self {
        let inputs = |layer| if layer == 0 { 1 } else { HIDDEN };
        let cells = (0..layers).map(|layer| Cell::new(inputs(layer), device));
        Self {
            cells: cells.collect(),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, length, _] = x.dims();
        let zeros = || Tensor::zeros([batch, HIDDEN], &x.device());
        let mut states: Vec<_> = (self.cells.iter())
            .map(|_| LstmState::new(zeros(), zeros()))
            .collect();
        let mut outputs = Vec::new();
        for at in 0..length {
            let mut input = x.clone().narrow(1, at, 1).squeeze_dim::<2>(1);
            for (cell, state) in self.cells.iter().zip(&mut states) {
                *state = cell.forward(
                    input,
                    LstmState::new(state.cell.clone(), state.hidden.clone()),
                );
                input = state.hidden.clone();
            }
            outputs.push(input);
        }
        Tensor::stack(outputs, 1)
    }
}

#[derive(Module, Debug)]
struct Model {
    forth: Stack,
    back: Stack,
    output: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            forth: Stack::new(2, device),
            back: Stack::new(2, device),
            output: LinearConfig::new(2 * HIDDEN, 1).init(device),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let back = self.back.forward(x.clone().flip([1])).flip([1]);
        let both = Tensor::cat(vec![self.forth.forward(x), back], 2);
        let last = both.narrow(1, LENGTH - 1, 1).squeeze_dim::<2>(1);
        self.output.forward(last)
    }
}

#[derive(Nest, Clone, Debug)]
pub struct Batch {
    sequences: Tensor<3>,
    targets: Tensor<2>,
}

type Series = Items<Vec<f32>, Batch>;

/// The last number of a series is the target.
fn batch(items: Vec<Vec<f32>>, device: &Device) -> Batch {
    let count = items.len();
    let all = rows(&items, LENGTH + 1, device);
    Batch {
        sequences: all.clone().narrow(1, 0, LENGTH).reshape([count, LENGTH, 1]),
        targets: all.narrow(1, LENGTH, 1),
    }
}

/// Each number is the sum of the two before, with some noise.
fn series(seed: u64) -> Series {
    let mut numbers = Numbers(seed);
    let item = |_| {
        let mut series = vec![numbers.unit(), numbers.unit()];
        for at in 2..LENGTH + 1 {
            series.push(series[at - 2] + series[at - 1] + 0.1 * numbers.normal());
        }
        series
    };
    Items::new((0..15 * BATCH).map(item).collect(), batch)
}

fn burn_loop(model: Model, series: &Series) -> Result<Vec<f32>> {
    let device = Device::flex().autodiff();
    let train = series.loader(BATCH, &device);
    let mut model = model;
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for batch in train.iter() {
            let batch = batch?;
            let predicted = model.forward(batch.sequences);
            let loss = MseLoss::new().forward(predicted, batch.targets, Reduction::Mean);
            losses.push(loss.clone().into_scalar::<f32>());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(RATE, model, gradients);
        }
    }
    Ok(losses)
}

fn our_loop(strategy: &dyn Strategy, model: Model, series: &Series) -> Result<Vec<f32>> {
    let train = strategy.distribute_dataset(series.dataset(), Batching::global(BATCH))?;
    let optimizer = BurnOptimizer::new(AdamConfig::new(), RATE);
    let mut state = strategy.scope(|_| TrainState::new(model, optimizer))?;
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for batch in train.iter() {
            let shares = strategy.run((&mut state, batch?), |ctx, (state, batch)| {
                let predicted = state.model.forward(batch.sequences);
                let loss = MseLoss::new().forward(predicted, batch.targets, Reduction::Mean);
                let loss = ctx.mean_loss(loss)?;
                state.minimize(ctx, &loss)?;
                Ok(loss)
            })?;
            losses.push(strategy.reduce(ReduceOp::Sum, shares)?.into_scalar::<f32>());
        }
    }
    Ok(losses)
}

/// `burn_loop` of which each batch is computed in halves, whose gradients burn adds.
fn burn_halves(model: Model, series: &Series) -> Result<Vec<f32>> {
    let device = Device::flex().autodiff();
    let mut model = model;
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    let halves = series.loader(BATCH / 2, &device);
    for _epoch in 0..2 {
        let mut parts = halves.iter();
        while let (Some(first), Some(second)) = (parts.next(), parts.next()) {
            let (mut sum, mut gradients) = (0.0, GradientsAccumulator::new());
            for half in [first?, second?] {
                let predicted = model.forward(half.sequences);
                let loss = MseLoss::new().forward(predicted, half.targets, Reduction::Mean) / 2;
                sum += loss.clone().into_scalar::<f32>();
                let of_half = GradientsParams::from_grads(loss.backward(), &model);
                gradients.accumulate(&model, of_half);
            }
            losses.push(sum);
            model = optimizer.step(RATE, model, gradients.grads());
        }
    }
    Ok(losses)
}

#[test]
fn modern_lstm_has_the_losses_of_burn() {
    for seed in [21, 26] {
        let series = series(seed);
        let wanted = burn_loop(model(seed, Model::new), &series).unwrap();
        falls(&wanted);
        has_losses_of_burn(&wanted, move |strategy| {
            our_loop(strategy, model(seed, Model::new), &series)
        });
    }
}

/// What remains between one device and two replicas is the order of sums: burn's own accumulation
/// over the halves of each batch has the bits of two replicas, and of two workers.
#[test]
fn two_replicas_have_the_bits_of_burns_accumulation() {
    let series = series(26);
    let wanted = burn_halves(model(26, Model::new), &series).unwrap();
    let outcomes =
        under_strategies(move |strategy| our_loop(strategy, model(26, Model::new), &series));
    for (name, found) in outcomes {
        if !["one device", "three replicas"].contains(&name) {
            assert_eq!(found, wanted, "{name}");
        }
    }
}
