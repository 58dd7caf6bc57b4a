//! What a cell computes in a step of one example, and its gradient.
//!
//! A gate has one element for each unit. The sum of a gate is the part of the inputs plus the part
//! of the state.

use super::functions::{sigmoid, tanh};

/// What a step computes, named as the cell in Keras that does with its default options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cell {
    /// `SimpleRNNCell`: one gate.
    Simple,
    /// `LSTMCell` (Hochreiter and Schmidhuber, 1997): the input gate, the forget gate, the
    /// candidate, the output gate.
    Lstm,
    /// `GRUCell` with `reset_after` (Cho et al., 2014): the update gate, the reset gate, the
    /// candidate.
    Gru,
}

/// The values of a step that its gradient needs.
pub(super) struct Step<'a> {
    /// What the step before has saved, or zeros.
    pub(super) before: &'a [f32],
    pub(super) saved: &'a [f32],
    /// The output of the step before, or zeros.
    pub(super) h_before: &'a [f32],
    pub(super) h: &'a [f32],
}

impl Cell {
    /// How many gates it has.
    #[must_use]
    pub const fn gates(self) -> usize {
        match self {
            Self::Simple => 1,
            Self::Lstm => 4,
            Self::Gru => 3,
        }
    }

    /// The numbers for each unit that a step saves beside its output.
    pub(super) const fn saved(self) -> usize {
        match self {
            Self::Simple => 0,
            // The gates, and the state behind the step.
            Self::Lstm => 5,
            // The gates, and the state's part of the candidate.
            Self::Gru => 4,
        }
    }

    /// Makes the output of this step of the output `h` of the step before.
    #[inline(always)]
    pub(super) fn forward(
        self,
        [inputs, state]: [&[f32]; 2],
        before: &[f32],
        saved: &mut [f32],
        h: &mut [f32],
    ) {
        match self {
            Self::Simple => {
                for ((h, x), state) in h.iter_mut().zip(inputs).zip(state) {
                    *h = tanh(x + state);
                }
            }
            Self::Lstm => lstm([inputs, state], before, saved, h),
            Self::Gru => gru([inputs, state], saved, h),
        }
    }

    /// The gradients of both parts of the gates, given the gradients of the output and of an LSTM's
    /// inner state. The two become the gradients of what the step before gave, without the part
    /// that comes through the gates.
    #[inline(always)]
    pub(super) fn backward(
        self,
        step: &Step<'_>,
        [of_h, of_c]: [&mut [f32]; 2],
        [inputs, state]: [&mut [f32]; 2],
    ) {
        match self {
            Self::Simple => {
                for ((x, h), of_h) in inputs.iter_mut().zip(step.h).zip(of_h) {
                    *x = *of_h * (1.0 - h * h);
                    *of_h = 0.0;
                }
                state.copy_from_slice(inputs);
            }
            Self::Lstm => {
                lstm_gradient(step, of_h, of_c, inputs);
                state.copy_from_slice(inputs);
            }
            Self::Gru => gru_gradient(step, of_h, [inputs, state]),
        }
    }

    /// The gradient of the state's part of the gates, of all steps, made of the inputs' part.
    #[inline(always)]
    pub(super) fn of_state(self, units: usize, mut inputs: Vec<f32>, saved: &[f32]) -> Vec<f32> {
        if self == Self::Gru {
            let steps = inputs.chunks_exact_mut(3 * units);
            for (gates, saved) in steps.zip(saved.chunks_exact(4 * units)) {
                let [_, _, candidate] = parts_mut(gates, units);
                let [_, reset, _, _] = parts(saved, units);
                for (candidate, reset) in candidate.iter_mut().zip(reset) {
                    *candidate *= reset;
                }
            }
        }
        inputs
    }
}

/// The first `N` times `units` elements.
#[inline(always)]
fn parts<const N: usize>(row: &[f32], units: usize) -> [&[f32]; N] {
    std::array::from_fn(|i| &row[i * units..][..units])
}

#[inline(always)]
fn parts_mut<const N: usize>(row: &mut [f32], units: usize) -> [&mut [f32]; N] {
    let mut rest = row.chunks_exact_mut(units);
    std::array::from_fn(|_| rest.next().unwrap_or_default())
}

/// `sigmoid` of the sums of some gates.
#[inline(always)]
fn open(gates: &mut [f32], inputs: &[f32], state: &[f32]) {
    for ((gate, x), state) in gates.iter_mut().zip(inputs).zip(state) {
        *gate = sigmoid(x + state);
    }
}

#[inline(always)]
fn lstm([inputs, state]: [&[f32]; 2], before: &[f32], saved: &mut [f32], h: &mut [f32]) {
    let units = h.len();
    let (two, three) = (2 * units, 3 * units);
    open(&mut saved[..two], &inputs[..two], &state[..two]);
    open(
        &mut saved[three..][..units],
        &inputs[three..],
        &state[three..],
    );
    let [input, forget, candidate, output, c] = parts_mut(saved, units);
    let sums = inputs[two..three].iter().zip(&state[two..three]);
    for (candidate, (x, state)) in candidate.iter_mut().zip(sums) {
        *candidate = tanh(x + state);
    }
    let [_, _, _, _, c_before] = parts(before, units);
    let kept = forget.iter().zip(c_before);
    let new = input.iter().zip(candidate.iter());
    for ((c, (f, before)), (i, g)) in c.iter_mut().zip(kept).zip(new) {
        *c = f * before + i * g;
    }
    for ((h, o), c) in h.iter_mut().zip(output.iter()).zip(c.iter()) {
        *h = o * tanh(*c);
    }
}

#[inline(always)]
fn lstm_gradient(step: &Step<'_>, of_h: &mut [f32], of_c: &mut [f32], gates: &mut [f32]) {
    let units = of_h.len();
    let [input, forget, candidate, output, c] = parts(step.saved, units);
    let [_, _, _, _, c_before] = parts(step.before, units);
    let [of_input, of_forget, of_candidate, of_output] = parts_mut(gates, units);
    let (of_h, of_c) = (&mut of_h[..units], &mut of_c[..units]);
    for u in 0..units {
        let (i, f, g, o) = (input[u], forget[u], candidate[u], output[u]);
        let bent = tanh(c[u]);
        let inner = of_c[u] + of_h[u] * o * (1.0 - bent * bent);
        of_output[u] = of_h[u] * bent * o * (1.0 - o);
        of_input[u] = inner * g * i * (1.0 - i);
        of_forget[u] = inner * c_before[u] * f * (1.0 - f);
        of_candidate[u] = inner * i * (1.0 - g * g);
        of_c[u] = inner * f;
        of_h[u] = 0.0;
    }
}

#[inline(always)]
fn gru([inputs, state]: [&[f32]; 2], saved: &mut [f32], h: &mut [f32]) {
    let units = h.len();
    let two = 2 * units;
    open(&mut saved[..two], &inputs[..two], &state[..two]);
    let [update, reset, candidate, of_state] = parts_mut(saved, units);
    of_state.copy_from_slice(&state[two..][..units]);
    let sums = inputs[two..].iter().zip(reset.iter()).zip(of_state.iter());
    for (candidate, ((x, r), state)) in candidate.iter_mut().zip(sums) {
        *candidate = tanh(x + r * state);
    }
    for ((h, u), candidate) in h.iter_mut().zip(update.iter()).zip(candidate.iter()) {
        *h = u * *h + (1.0 - u) * candidate;
    }
}

#[inline(always)]
fn gru_gradient(step: &Step<'_>, of_h: &mut [f32], [inputs, state]: [&mut [f32]; 2]) {
    let units = of_h.len();
    let [update, reset, candidate, of_state] = parts(step.saved, units);
    let [of_update, of_reset, of_candidate] = parts_mut(inputs, units);
    let h_before = &step.h_before[..units];
    let of_h = &mut of_h[..units];
    for k in 0..units {
        let (u, r, n) = (update[k], reset[k], candidate[k]);
        let bent = of_h[k] * (1.0 - u) * (1.0 - n * n);
        of_update[k] = of_h[k] * (h_before[k] - n) * u * (1.0 - u);
        of_reset[k] = bent * of_state[k] * r * (1.0 - r);
        of_candidate[k] = bent;
        of_h[k] *= u;
    }
    state.copy_from_slice(inputs);
    let [_, _, of_candidate] = parts_mut(state, units);
    for (gradient, r) in of_candidate.iter_mut().zip(reset) {
        *gradient *= r;
    }
}
