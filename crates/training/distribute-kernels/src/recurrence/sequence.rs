//! All steps of a sequence, and the way back.
//!
//! Values of all steps lie by example, then by step. The gradients of the kernel and of the bias
//! are sums over the examples, and in an example over its steps.

use pulp::{Simd, WithSimd};

use super::cell::{Cell, Step};
use super::product::{Packed, product, transposed, width};
use crate::tile::CHAIN;

/// The sizes. None is 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) cell: Cell,
    pub(super) batch: usize,
    pub(super) steps: usize,
    pub(super) units: usize,
}

impl Sizes {
    /// The length of a row of the kernel.
    pub(super) fn columns(&self) -> usize {
        self.cell.gates() * self.units
    }

    /// The numbers that a step of an example saves.
    fn saved(&self) -> usize {
        self.cell.saved() * self.units
    }

    /// The elements of a step among the elements of all steps, `each` for every step.
    fn at(&self, example: usize, step: usize, each: usize) -> std::ops::Range<usize> {
        let start = (example * self.steps + step) * each;
        start..start + each
    }
}

/// The values of all steps that a backward pass needs.
#[derive(Debug)]
pub(super) struct Saved {
    /// What the cell saves.
    gates: Vec<f32>,
    /// The outputs of all steps.
    pub(super) outputs: Vec<f32>,
    /// Whether each step is left out; empty if none is.
    left_out: Vec<bool>,
}

impl Saved {
    /// The outputs of the step before each step.
    fn outputs_before(&self, sizes: &Sizes) -> Vec<f32> {
        let example = sizes.steps * sizes.units;
        let mut before = vec![0.0; self.outputs.len()];
        let examples = self.outputs.chunks_exact(example);
        for (to, from) in before.chunks_exact_mut(example).zip(examples) {
            to[sizes.units..].copy_from_slice(&from[..example - sizes.units]);
        }
        before
    }
}

pub(super) struct Forward<'a> {
    pub(super) sizes: Sizes,
    /// The inputs' part of the gates of all steps.
    pub(super) inputs: &'a [f32],
    pub(super) kernel: &'a [f32],
    /// Empty if there is none.
    pub(super) bias: &'a [f32],
    /// Whether each step is left out; empty if none is.
    pub(super) left_out: Vec<bool>,
}

impl WithSimd for Forward<'_> {
    type Output = Saved;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Saved {
        let Self { sizes, inputs, .. } = self;
        let (columns, units, saved) = (sizes.columns(), sizes.units, sizes.saved());
        let kernel = Packed::new::<S>(self.kernel, columns);
        let width = width::<S>(columns);
        let mut of_state = vec![0.0; sizes.batch * width];
        let mut h = vec![0.0; sizes.batch * units];
        let nothing = vec![0.0; saved];
        let count = sizes.batch * sizes.steps;
        let (mut gates, mut outputs) = (vec![0.0; count * saved], vec![0.0; count * units]);
        for step in 0..sizes.steps {
            kernel.product(simd, &h, &mut of_state);
            let examples = h.chunks_exact_mut(units);
            for (example, (h, state)) in examples.zip(of_state.chunks_exact_mut(width)).enumerate()
            {
                for (state, bias) in state.iter_mut().zip(self.bias) {
                    *state += bias;
                }
                let (before, gates) = gates.split_at_mut(sizes.at(example, step, saved).start);
                let (before, gates) = match step {
                    0 => (&nothing[..], &mut gates[..saved]),
                    _ => (&before[before.len() - saved..], &mut gates[..saved]),
                };
                if is_left_out(&self.left_out, example * sizes.steps + step) {
                    gates.copy_from_slice(before);
                } else {
                    let inputs = &inputs[sizes.at(example, step, columns)];
                    let parts = [inputs, &state[..columns]];
                    sizes.cell.forward(parts, before, gates, h);
                }
                outputs[sizes.at(example, step, units)].copy_from_slice(h);
            }
        }
        Saved {
            gates,
            outputs,
            left_out: self.left_out,
        }
    }
}

pub(super) struct Backward<'a> {
    pub(super) sizes: Sizes,
    pub(super) saved: &'a Saved,
    pub(super) kernel: &'a [f32],
    /// The gradient of the outputs of all steps, or of the last one's alone.
    pub(super) gradient: &'a [f32],
    /// Whether the gradients of the kernel and of the bias are wanted.
    pub(super) of_weights: bool,
}

/// The gradients of the operation's arguments.
pub(super) struct Gradients {
    pub(super) inputs: Vec<f32>,
    pub(super) kernel: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

impl WithSimd for Backward<'_> {
    type Output = Gradients;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Gradients {
        let sizes = self.sizes;
        let inputs = self.of_inputs(simd);
        let (mut kernel, mut bias) = (Vec::new(), Vec::new());
        if self.of_weights {
            let columns = sizes.columns();
            let of_state = inputs.clone();
            let of_state = sizes
                .cell
                .of_state(sizes.units, of_state, &self.saved.gates);
            let before = transposed(&self.saved.outputs_before(&sizes), sizes.units);
            let rows = product(simd, &before, &of_state, columns);
            kernel.reserve(sizes.units * columns);
            for row in rows.chunks_exact(width::<S>(columns)) {
                kernel.extend_from_slice(&row[..columns]);
            }
            bias = sum_of_rows(&of_state, columns);
        }
        Gradients {
            inputs,
            kernel,
            bias,
        }
    }
}

impl Backward<'_> {
    /// The gradient of the inputs' part of the gates of all steps.
    #[inline(always)]
    fn of_inputs<S: Simd>(&self, simd: S) -> Vec<f32> {
        let Self { sizes, saved, .. } = self;
        let (columns, units) = (sizes.columns(), sizes.units);
        let kernel = Packed::new::<S>(&transposed(self.kernel, columns), units);
        let width = width::<S>(units);
        let mut through_gates = vec![0.0; sizes.batch * width];
        let mut of_state = vec![0.0; sizes.batch * columns];
        let mut of_h = vec![0.0; sizes.batch * units];
        let mut of_c = of_h.clone();
        let mut inputs = vec![0.0; sizes.batch * sizes.steps * columns];
        let nothing = vec![0.0; sizes.saved().max(units)];
        for step in (0..sizes.steps).rev() {
            let rows = of_h
                .chunks_exact_mut(units)
                .zip(of_c.chunks_exact_mut(units));
            let rows = rows.zip(of_state.chunks_exact_mut(columns));
            for (example, ((of_h, of_c), of_state)) in rows.enumerate() {
                self.add_gradient(example, step, of_h);
                if is_left_out(&saved.left_out, example * sizes.steps + step) {
                    of_state.fill(0.0);
                    continue;
                }
                let before = |all, each| match step {
                    0 => &nothing[..each],
                    _ => of_step(all, sizes.at(example, step - 1, each)),
                };
                let values = Step {
                    before: before(&saved.gates, sizes.saved()),
                    saved: &saved.gates[sizes.at(example, step, sizes.saved())],
                    h_before: before(&saved.outputs, units),
                    h: &saved.outputs[sizes.at(example, step, units)],
                };
                let of_inputs = &mut inputs[sizes.at(example, step, columns)];
                sizes
                    .cell
                    .backward(&values, [of_h, of_c], [of_inputs, of_state]);
            }
            if step > 0 {
                kernel.product(simd, &of_state, &mut through_gates);
                let rows = of_h.chunks_exact_mut(units);
                for (of_h, gates) in rows.zip(through_gates.chunks_exact(width)) {
                    of_h.iter_mut()
                        .zip(gates)
                        .for_each(|(to, gates)| *to += gates);
                }
            }
        }
        inputs
    }

    /// Adds the gradient that the output of a step has from outside.
    #[inline(always)]
    fn add_gradient(&self, example: usize, step: usize, of_h: &mut [f32]) {
        let sizes = &self.sizes;
        let all = sizes.batch * sizes.steps * sizes.units;
        let from = if self.gradient.len() == all {
            sizes.at(example, step, sizes.units)
        } else if step + 1 == sizes.steps {
            example * sizes.units..(example + 1) * sizes.units
        } else {
            return;
        };
        let gradient = &self.gradient[from];
        of_h.iter_mut()
            .zip(gradient)
            .for_each(|(to, from)| *to += from);
    }
}

fn is_left_out(left_out: &[bool], step: usize) -> bool {
    left_out.get(step).copied().unwrap_or(false)
}

fn of_step(all: &[f32], at: std::ops::Range<usize>) -> &[f32] {
    &all[at]
}

/// The sum of all rows, by chains of [`CHAIN`] additions from 0 that are added in their order.
#[inline(always)]
fn sum_of_rows(rows: &[f32], columns: usize) -> Vec<f32> {
    let mut sum = vec![0.0; columns];
    let mut chain = vec![0.0; columns];
    for rows in rows.chunks(CHAIN * columns) {
        chain.fill(0.0);
        for row in rows.chunks_exact(columns) {
            chain.iter_mut().zip(row).for_each(|(to, from)| *to += from);
        }
        sum.iter_mut()
            .zip(&chain)
            .for_each(|(to, from)| *to += from);
    }
    sum
}
