//! A recurrence gives what its steps give that are composed of burn's operations.

use burn::tensor::activation::{sigmoid, tanh};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_kernels::{Cell, Recurrence};
use proptest::prelude::*;

use crate::support::{Numbers, bits};

const CELLS: [Cell; 3] = [Cell::Simple, Cell::Lstm, Cell::Gru];

fn tensor<const D: usize>(shape: [usize; D], numbers: &mut Numbers) -> Tensor<D> {
    let values = (0..shape.iter().product()).map(|_| 2.0 * numbers.next() - 1.0);
    let values = TensorData::new(values.collect::<Vec<f32>>(), shape);
    Tensor::from_data(values, &Device::flex().autodiff())
}

#[derive(Debug, Clone)]
struct Layer {
    cell: Cell,
    inputs: Tensor<3>,
    kernel: Tensor<2>,
    bias: Option<Tensor<1>>,
    mask: Option<Tensor<2>>,
    last: bool,
}

impl Layer {
    fn new(cell: Cell, [batch, steps, units]: [usize; 3], numbers: &mut Numbers) -> Self {
        let columns = cell.gates() * units;
        let kernel = tensor([units, columns], numbers) / (units as f32).sqrt();
        Self {
            cell,
            inputs: tensor([batch, steps, columns], numbers).require_grad(),
            kernel: kernel.detach().require_grad(),
            bias: Some(tensor([columns], numbers).require_grad()),
            mask: None,
            last: false,
        }
    }

    fn fused(&self) -> Tensor<3> {
        let reading = Recurrence {
            cell: self.cell,
            inputs: &self.inputs,
            kernel: &self.kernel,
            bias: self.bias.as_ref(),
            mask: self.mask.as_ref(),
            last: self.last,
        };
        reading.outputs().unwrap()
    }

    fn composed(&self) -> Tensor<3> {
        let [batch, steps, _] = self.inputs.dims();
        let [units, _] = self.kernel.dims();
        let mut state = [0, 1].map(|_| Tensor::<2>::zeros([batch, units], &self.inputs.device()));
        let mut outputs = Vec::new();
        for step in 0..steps {
            let z = self.inputs.clone().narrow(1, step, 1).squeeze_dim(1);
            let mut new = self.step(z, state.clone());
            if let Some(mask) = &self.mask {
                let counts = mask.clone().narrow(1, step, 1).greater_elem(0.0);
                let counts = counts.expand([batch, units]);
                for (new, old) in new.iter_mut().zip(&state) {
                    *new = old.clone().mask_where(counts.clone(), new.clone());
                }
            }
            state = new;
            outputs.push(state[0].clone());
        }
        let given = if self.last { steps - 1 } else { 0 };
        Tensor::stack(outputs.split_off(given), 1)
    }

    fn step(&self, z: Tensor<2>, [h, c]: [Tensor<2>; 2]) -> [Tensor<2>; 2] {
        let units = h.dims()[1];
        let inner = h.clone().matmul(self.kernel.clone());
        let inner = match &self.bias {
            Some(bias) => inner + bias.clone().unsqueeze(),
            None => inner,
        };
        let gate = |all: &Tensor<2>, at: usize| all.clone().narrow(1, at * units, units);
        let sum = |at| gate(&z, at) + gate(&inner, at);
        match self.cell {
            Cell::Lstm => {
                let c = sigmoid(sum(1)) * c + sigmoid(sum(0)) * tanh(sum(2));
                [sigmoid(sum(3)) * tanh(c.clone()), c]
            }
            Cell::Gru => {
                let (update, reset) = (sigmoid(sum(0)), sigmoid(sum(1)));
                let candidate = tanh(gate(&z, 2) + reset * gate(&inner, 2));
                let h = update.clone() * h + (1.0 - update) * candidate;
                [h, c]
            }
            _ => [tanh(sum(0)), c],
        }
    }

    /// The outputs, and the gradients of inputs, kernel and bias.
    fn trained(&self, outputs: Tensor<3>) -> Vec<Tensor<1>> {
        let weights = tensor(outputs.dims(), &mut Numbers(77));
        let gradients = (outputs.clone() * weights).sum().backward();
        let mut all = vec![outputs.reshape([-1])];
        all.push(self.inputs.grad(&gradients).unwrap().reshape([-1]));
        all.push(self.kernel.grad(&gradients).unwrap().reshape([-1]));
        let bias = self.bias.as_ref();
        all.extend(bias.map(|bias| bias.grad(&gradients).unwrap()));
        all
    }

    fn check(&self) {
        let ours = self.trained(self.fused());
        let expected = self.trained(self.composed());
        assert_eq!(ours.len(), expected.len());
        for (i, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            let scale: f32 = expected.clone().abs().max().into_scalar();
            let difference: f32 = (ours.clone() - expected.clone()).abs().max().into_scalar();
            assert!(
                difference <= 1e-5 * scale.max(1.0),
                "{i}: {difference} {:?}",
                self.cell
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_sequence_gives_what_its_steps_give(
        cell in 0..3_usize,
        shape in [1..12_usize, 1..9, 1..40],
        [bias, masked, last] in any::<[bool; 3]>(),
        seed in any::<u64>(),
    ) {
        let mut numbers = Numbers(seed);
        let [batch, steps, _] = shape;
        let mut layer = Layer::new(CELLS[cell], shape, &mut numbers);
        layer.last = last;
        layer.bias = layer.bias.filter(|_| bias);
        if masked {
            layer.mask = Some(tensor([batch, steps], &mut numbers));
        }
        layer.check();
    }
}

/// More than one chain in every sum.
#[test]
fn many_units_and_steps_give_what_they_give_step_by_step() {
    for cell in CELLS {
        Layer::new(cell, [9, 40, 90], &mut Numbers(3)).check();
        Layer::new(cell, [2, 2, 270], &mut Numbers(4)).check();
    }
}

/// So that the split of a batch over replicas changes no output.
#[test]
fn an_example_does_not_depend_on_those_beside_it() {
    for cell in CELLS {
        let all = Layer::new(cell, [11, 6, 20], &mut Numbers(5));
        let outputs = all.fused();
        for example in [0, 7, 10] {
            let inputs = all.inputs.clone().narrow(0, example, 1);
            let alone = Layer {
                inputs,
                ..all.clone()
            };
            let expected = outputs.clone().narrow(0, example, 1);
            assert_eq!(bits(&alone.fused()), bits(&expected));
        }
    }
}

#[test]
fn without_autodiff_the_bits_are_the_same() {
    for cell in CELLS {
        let tracked = Layer::new(cell, [3, 4, 5], &mut Numbers(6));
        let plain = Layer {
            inputs: tracked.inputs.clone().inner(),
            kernel: tracked.kernel.clone().inner(),
            bias: tracked.bias.clone().map(Tensor::inner),
            ..tracked.clone()
        };
        assert_eq!(bits(&plain.fused()), bits(&tracked.fused()));
    }
}

#[test]
fn what_does_not_fit_is_left_to_burn() {
    let mut layer = Layer::new(Cell::Gru, [2, 3, 4], &mut Numbers(7));
    layer.cell = Cell::Lstm;
    let reading = Recurrence {
        cell: layer.cell,
        inputs: &layer.inputs,
        kernel: &layer.kernel,
        bias: None,
        mask: None,
        last: true,
    };
    assert!(reading.outputs().is_none());
}
