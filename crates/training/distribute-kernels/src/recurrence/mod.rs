//! A whole sequence in a recurrent layer: the operation and its place in a graph.

mod cell;
mod functions;
mod product;
mod sequence;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

use std::sync::Arc;

use burn::tensor::Tensor;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn_backend::tensor::FloatTensor;
use burn_flex::{Flex, FlexTensor};

use crate::operand::{Operand, elements, tensor_of};
use crate::vectors;
pub use cell::Cell;
use sequence::{Forward, Saved, Sizes};

/// A recurrent layer's reading of a sequence, beginning with states of zeros.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use distribute_kernels::{Cell, Recurrence};
///
/// let device = Device::flex().autodiff();
/// let reading = Recurrence {
///     cell: Cell::Lstm,
///     inputs: &Tensor::<3>::ones([2, 5, 4 * 8], &device),
///     kernel: &Tensor::<2>::ones([8, 4 * 8], &device),
///     bias: None,
///     mask: None,
///     last: false,
/// };
/// if let Some(outputs) = reading.outputs() {
///     assert_eq!(outputs.dims(), [2, 5, 8]);
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Recurrence<'a> {
    /// What a step computes.
    pub cell: Cell,
    /// The inputs' part of the gates of all steps, `[batch, steps, gates * units]`: the sequence
    /// times the kernel on the inputs, plus its bias. The gates are in the order of Keras' layer.
    pub inputs: &'a Tensor<3>,
    /// The kernel on the state, `[units, gates * units]`.
    pub kernel: &'a Tensor<2>,
    /// Added to the product of the state and the kernel, `[gates * units]`; of Keras' layers a
    /// `GRU` has it.
    pub bias: Option<&'a Tensor<1>>,
    /// A step of an example that is not above 0 in here, `[batch, steps]`, is left out: the state
    /// stays, and the output is the one of the step before.
    pub mask: Option<&'a Tensor<2>>,
    /// The output of the last step is wanted alone.
    pub last: bool,
}

impl Recurrence<'_> {
    /// The outputs of all steps, `[batch, steps, units]`, or of the last one, `[batch, 1, units]`.
    ///
    /// A product with the kernel is a sum over the units, and a gradient of the state one over the
    /// gates, in chains of 256 fused multiply-adds from 0, whose sums are added in their order. The
    /// gradients of the kernel and of the bias are sums in such chains over the examples, and in an
    /// example over the steps. `sigmoid` and `tanh` are exact to a few units in the last place.
    /// What an example gives does not depend on the examples beside it.
    ///
    /// `None` for all that is not f32 on burn's CPU backend, on a CPU with AVX2, AVX-512 or NEON,
    /// and for arguments whose shapes do not fit: compose the steps of burn's operations then.
    #[must_use]
    pub fn outputs(&self) -> Option<Tensor<3>> {
        let sizes = self.sizes()?;
        let (inputs, kernel) = (Operand::of(self.inputs)?, Operand::of(self.kernel)?);
        let (bias, mask) = (Operand::of_any(self.bias)?, Operand::of_any(self.mask)?);
        let is_tracked = Operand::is_any_tracked([Some(&inputs), Some(&kernel), bias.as_ref()]);
        let mask = mask.map(|mask| mask.into_parts().0);
        let (inputs, of_inputs) = inputs.into_parts();
        let (kernel, of_kernel) = kernel.into_parts();
        let (bias, of_bias) = bias.map(Operand::into_parts).unzip();
        let operation = Operation {
            sizes,
            last: self.last,
        };
        let done = operation.run([inputs, kernel], bias, mask)?;
        let output = match of_bias {
            _ if !is_tracked => Operand::Plain(done.output),
            None => Operand::Tracked(operation.track([of_inputs, of_kernel], done)),
            Some(of_bias) => {
                Operand::Tracked(operation.track([of_inputs, of_kernel, of_bias], done))
            }
        };
        Some(output.into_tensor())
    }

    fn sizes(&self) -> Option<Sizes> {
        let [batch, steps, columns] = self.inputs.dims();
        let [units, _] = self.kernel.dims();
        let sizes = Sizes {
            cell: self.cell,
            batch,
            steps,
            units,
        };
        let fits = columns == sizes.columns()
            && self.kernel.dims() == [units, columns]
            && self.bias.is_none_or(|bias| bias.dims() == [columns])
            && self.mask.is_none_or(|mask| mask.dims() == [batch, steps]);
        (fits && batch * steps * units > 0 && vectors::exist()).then_some(sizes)
    }
}

#[derive(Debug, Clone, Copy)]
struct Operation {
    sizes: Sizes,
    last: bool,
}

/// The output, and the values that the backward pass needs.
struct Done {
    kernel: FlexTensor,
    saved: Saved,
    output: FlexTensor,
}

impl Operation {
    fn run(
        &self,
        [inputs, kernel]: [FlexTensor; 2],
        bias: Option<FlexTensor>,
        mask: Option<FlexTensor>,
    ) -> Option<Done> {
        let (inputs, kernel) = (inputs.to_contiguous(), kernel.to_contiguous());
        let bias = bias.map(|bias| bias.to_contiguous());
        let bias = match &bias {
            Some(bias) => elements(bias)?,
            None => &[],
        };
        let left_out = match mask.map(|mask| mask.to_contiguous()) {
            Some(mask) => elements(&mask)?
                .iter()
                .map(|counts| *counts <= 0.0)
                .collect(),
            None => Vec::new(),
        };
        let sizes = self.sizes;
        let saved = vectors::run(Forward {
            sizes,
            inputs: elements(&inputs)?,
            kernel: elements(&kernel)?,
            bias,
            left_out,
        });
        let Sizes {
            batch,
            steps,
            units,
            ..
        } = sizes;
        let output = if self.last {
            let examples = saved.outputs.chunks_exact(steps * units);
            let last = examples.flat_map(|outputs| &outputs[(steps - 1) * units..]);
            tensor_of(last.copied().collect(), [batch, 1, units])
        } else {
            tensor_of(saved.outputs.clone(), [batch, steps, units])
        };
        Some(Done {
            kernel,
            saved,
            output,
        })
    }

    /// The output as a node whose parents are the inputs, the kernel and, if there is one, the
    /// bias.
    fn track<const N: usize>(
        &self,
        nodes: [NodeGuard; N],
        done: Done,
    ) -> FloatTensor<Autodiff<Flex>> {
        let prepared = Backward::<Flex, N>::prepare::<NoCheckpointing>(Sequence, nodes);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let state = State {
                    sizes: self.sizes,
                    kernel: done.kernel,
                    saved: Arc::new(done.saved),
                };
                prepared.finish(state, done.output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(done.output),
        }
    }
}

#[derive(Debug)]
struct Sequence;

/// The values that the backward pass needs from the forward pass.
#[derive(Debug, Clone)]
struct State {
    sizes: Sizes,
    kernel: FlexTensor,
    saved: Arc<Saved>,
}

impl<const N: usize> Backward<Flex, N> for Sequence {
    type State = State;

    fn backward(self, ops: Ops<State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node).to_contiguous();
        let State {
            sizes,
            kernel,
            saved,
        } = ops.state;
        // Both are f32: the forward pass has read the kernel, and the gradient has its output's
        // type.
        let (Some(kernel), Some(gradient)) = (elements(&kernel), elements(&gradient)) else {
            return;
        };
        let parent = |i: usize| ops.parents.get(i).and_then(Option::as_ref);
        let gradients = vectors::run(sequence::Backward {
            sizes,
            saved: &saved,
            kernel,
            gradient,
            of_weights: parent(1).is_some() || parent(2).is_some(),
        });
        let columns = sizes.columns();
        let mut register = |i: usize, values: Vec<f32>, shape: &[usize]| {
            if let Some(parent) = parent(i) {
                grads.register::<Flex>(parent.id, tensor_of(values, shape));
            }
        };
        register(0, gradients.inputs, &[sizes.batch, sizes.steps, columns]);
        register(1, gradients.kernel, &[sizes.units, columns]);
        register(2, gradients.bias, &[columns]);
    }
}
