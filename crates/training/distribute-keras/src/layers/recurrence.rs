//! What a cell makes of a whole sequence.
//!
//! One operation of `distribute-kernels` with a gradient of its own where it is possible. Else, and
//! in captured steps, step by step, which is about 15 operations for each.

use burn::tensor::Bool;
use burn::tensor::module::linear;
use distribute_core::dropout;
use distribute_kernels::{Cell, Recurrence};
use rand::Rng;

use super::cell::{CellKind, CellWeights};
use super::*;

/// What a cell gives of a sequence, and which steps it leaves out.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    /// The outputs of all steps, and not of the last one alone.
    pub(super) sequences: bool,
    /// The last states too.
    pub(super) states: bool,
    /// Zeros for a step that is left out, and else what the step before gave.
    pub(super) zero_output: bool,
    /// 1 for the steps that count, `[batch, steps]`.
    pub(super) mask: Option<Tensor<2>>,
}

/// What the steps gave, `[batch, steps, units]`, and the last states if they are wanted.
pub(super) struct Read {
    pub(super) outputs: Tensor<3>,
    pub(super) states: Vec<Tensor<2>>,
}

/// Masks of a dropout, each for a gate, or one for all.
struct Dropped(Vec<Tensor<2>>);

impl Dropped {
    fn draw(rate: f64, count: usize, like: ([usize; 2], &Tensor<3>), rng: &mut dyn Rng) -> Self {
        let (dims, x) = like;
        let device = x.device().without_autodiff();
        let mask = |_| {
            let ones = Tensor::ones(dims, (&device, x.dtype()));
            dropout(ones, rate, rng)
        };
        Self((0..count).map(mask).collect())
    }

    /// The product of `x` and a kernel `[inputs, gates * units]`, in which each gate's columns get
    /// `x` times the gate's mask.
    fn product(&self, x: &Tensor<2>, kernel: Tensor<2>) -> Tensor<2> {
        match &self.0[..] {
            [] => x.clone().matmul(kernel),
            [one] => (x.clone() * one.clone()).matmul(kernel),
            masks => {
                let units = kernel.dims()[1] / masks.len();
                let products = masks.iter().enumerate().map(|(gate, mask)| {
                    let columns = kernel.clone().narrow(1, gate * units, units);
                    (x.clone() * mask.clone()).matmul(columns)
                });
                Tensor::cat(products.collect(), 1)
            }
        }
    }
}

impl CellWeights {
    /// Reads a sequence `[batch, steps, features]`, beginning with these states, or with zeros if
    /// there are none.
    pub(super) fn read(
        &self,
        x: Tensor<3>,
        states: Vec<Tensor<2>>,
        reading: &Reading,
        pass: &mut Pass<'_, '_>,
    ) -> Read {
        let [batch, _, features] = x.dims();
        let (units, gates) = (self.cell.units, self.cell.kind.gates());
        let (rate, recurrent_rate) = (self.cell.dropout, self.cell.recurrent_dropout);
        // As in Keras, where a dropout of the state makes each gate a product of its own.
        let masks = if recurrent_rate > 0.0 { gates } else { 1 };
        let mut draw = |rate: f64, features| match pass.training() {
            Some(rng) if rate > 0.0 => Dropped::draw(rate, masks, ([batch, features], &x), rng),
            _ => Dropped(Vec::new()),
        };
        let (dropped, dropped_states) = (draw(rate, features), draw(recurrent_rate, units));
        let z = self.of_inputs(x, &dropped);
        let is_plain = states.is_empty() && !reading.states && dropped_states.0.is_empty();
        let in_one = is_plain.then(|| self.in_one(&z, reading)).flatten();
        match in_one {
            Some(outputs) => Read {
                outputs,
                states: Vec::new(),
            },
            None => self.step_by_step(z, states, reading, &dropped_states),
        }
    }

    /// The outputs by one operation, if there is one for this cell and device.
    fn in_one(&self, z: &Tensor<3>, reading: &Reading) -> Option<Tensor<3>> {
        let activations = (self.cell.activation, self.cell.recurrent_activation);
        let cell = match (self.cell.kind, activations) {
            (CellKind::Simple, (Activation::Tanh, _)) => Cell::Simple,
            (CellKind::Lstm, (Activation::Tanh, Activation::Sigmoid)) => Cell::Lstm,
            (CellKind::Gru { reset_after: true }, (Activation::Tanh, Activation::Sigmoid)) => {
                Cell::Gru
            }
            _ => return None,
        };
        let outputs = Recurrence {
            cell,
            inputs: z,
            kernel: &self.recurrent_kernel.val(),
            bias: self.bias_row(1).as_ref(),
            mask: reading.mask.as_ref(),
            last: !reading.sequences,
        }
        .outputs()?;
        let [_, given, units] = outputs.dims();
        Some(match &reading.mask {
            Some(mask) if reading.zero_output => {
                let [batch, steps] = mask.dims();
                let mask = mask.clone().narrow(1, steps - given, given);
                let left_out = mask.lower_equal_elem(0.0).unsqueeze_dim::<3>(2);
                outputs.mask_fill(left_out.expand([batch, given, units]), 0.0)
            }
            _ => outputs,
        })
    }

    fn step_by_step(
        &self,
        z: Tensor<3>,
        mut states: Vec<Tensor<2>>,
        reading: &Reading,
        dropped_states: &Dropped,
    ) -> Read {
        let [batch, steps, _] = z.dims();
        let units = self.cell.units;
        let zeros = Tensor::zeros([batch, units], (&z.device(), z.dtype()));
        states.resize(self.cell.kind.states(), zeros.clone());
        let mask = reading.mask.clone().map(|mask| mask.greater_elem(0.0));
        let mut inputs = Vec::with_capacity(steps);
        each_step(z, &mut inputs);
        let (mut outputs, mut last) = (Vec::with_capacity(steps), zeros);
        for (step, z) in inputs.into_iter().enumerate() {
            let mut new = self.step(z, &states, dropped_states);
            let mut output = new[0].clone();
            if let Some(mask) = &mask {
                let counts: Tensor<2, Bool> = mask.clone().narrow(1, step, 1);
                let counts = counts.expand([batch, units]);
                output = last.clone().mask_where(counts.clone(), output);
                for (new, old) in new.iter_mut().zip(&states) {
                    *new = old.clone().mask_where(counts.clone(), new.clone());
                }
            }
            if !reading.zero_output {
                last = output.clone();
            }
            outputs.push(output);
            states = new;
        }
        let given = if reading.sequences { 0 } else { steps - 1 };
        Read {
            outputs: Tensor::stack(outputs.split_off(given), 1),
            states,
        }
    }

    /// What the inputs of all steps give, with the bias: `[batch, steps, gates * units]`. One
    /// product for all of them.
    fn of_inputs(&self, x: Tensor<3>, dropped: &Dropped) -> Tensor<3> {
        let [batch, steps, features] = x.dims();
        let (kernel, bias) = (self.kernel.val(), self.bias_row(0));
        if dropped.0.is_empty() {
            return linear(x, kernel, bias);
        }
        let each = |mask: &Tensor<2>| {
            let mask = mask.clone().unsqueeze_dim::<3>(1);
            let mask = mask.expand([batch, steps, features]);
            mask.reshape([batch * steps, features])
        };
        let dropped = Dropped(dropped.0.iter().map(each).collect());
        let z = dropped.product(&x.reshape([batch * steps, features]), kernel);
        let z = match bias {
            Some(bias) => z + bias.unsqueeze(),
            None => z,
        };
        let columns = z.dims()[1];
        z.reshape([batch, steps, columns])
    }

    /// The states behind one step; the first of them is its output.
    fn step(&self, z: Tensor<2>, states: &[Tensor<2>], dropped: &Dropped) -> Vec<Tensor<2>> {
        let units = self.cell.units;
        let gate = |z: &Tensor<2>, gate: usize| z.clone().narrow(1, gate * units, units);
        let open = |z| self.cell.recurrent_activation.apply(z, 1);
        let bend = |z| self.cell.activation.apply(z, 1);
        let (h, kernel) = (&states[0], self.recurrent_kernel.val());
        match self.cell.kind {
            CellKind::Simple => vec![bend(z + dropped.product(h, kernel))],
            CellKind::Lstm => {
                let z = z + dropped.product(h, kernel);
                let [input, forget, output] = [0, 1, 3].map(|at| open(gate(&z, at)));
                let c = forget * states[1].clone() + input * bend(gate(&z, 2));
                vec![output * bend(c.clone()), c]
            }
            CellKind::Gru { reset_after: true } => {
                let product = dropped.product(h, kernel);
                let inner = match self.bias_row(1) {
                    Some(bias) => product + bias.unsqueeze(),
                    None => product,
                };
                let [update, reset] = [0, 1].map(|at| open(gate(&z, at) + gate(&inner, at)));
                let candidate = bend(gate(&z, 2) + reset * gate(&inner, 2));
                vec![mixed(update, h, candidate)]
            }
            CellKind::Gru { reset_after: false } => {
                let (gates, own) = dropped.split();
                let first = kernel.clone().narrow(1, 0, 2 * units);
                let inner = gates.product(h, first);
                let [update, reset] = [0, 1].map(|at| open(gate(&z, at) + gate(&inner, at)));
                let kernel = kernel.narrow(1, 2 * units, units);
                let candidate = bend(gate(&z, 2) + own.product(&(reset * h.clone()), kernel));
                vec![mixed(update, h, candidate)]
            }
        }
    }
}

/// The steps of `[batch, steps, values]`. By halves: the gradient of a part is as large as the
/// whole, so that parts of one step each would cost the square of the number of steps.
fn each_step(x: Tensor<3>, all: &mut Vec<Tensor<2>>) {
    match x.dims()[1] {
        0 => {}
        1 => all.push(x.squeeze_dim(1)),
        steps => {
            each_step(x.clone().narrow(1, 0, steps / 2), all);
            each_step(x.narrow(1, steps / 2, steps - steps / 2), all);
        }
    }
}

impl Dropped {
    /// The masks of a GRU's gates, and of its candidate.
    fn split(&self) -> (Self, Self) {
        match &self.0[..] {
            [gates @ .., own] if !gates.is_empty() => {
                (Self(gates.to_vec()), Self(vec![own.clone()]))
            }
            all => (Self(all.to_vec()), Self(all.to_vec())),
        }
    }
}

/// The old state as far as the gate is open, and else the candidate.
fn mixed(update: Tensor<2>, h: &Tensor<2>, candidate: Tensor<2>) -> Tensor<2> {
    let rest = update.clone().neg().add_scalar(1.0);
    update * h.clone() + rest * candidate
}
