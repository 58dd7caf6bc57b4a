//! Convolution of images: the operation and its place in a graph.

mod filter_gradient;
mod forward;
mod input_gradient;
mod layout;
mod shape;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

use burn::tensor::Tensor;
use burn::tensor::module;
use burn::tensor::ops::ConvOptions;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn_backend::tensor::FloatTensor;
use burn_flex::{Flex, FlexTensor};

use crate::operand::{Operand, elements, tensor_of};
use shape::Conv;

/// Filters `[filters, channels, rows, columns]` over images `[batch, channels, height, width]`,
/// plus the bias `[filters]`: what [`burn::tensor::module::conv2d`] computes, but for rounding.
///
/// An output is the sum over the channels, and in a channel over the filter's rows and columns, in
/// chains of 256 fused multiply-adds from 0, whose sums are added in their order; the bias is added
/// last. An image's gradient is the sum over the filter's rows and columns, and for each over the
/// filters, in such chains for each. The gradients of a filter and of the bias are the sums over
/// the images, and in an image over the outputs in the order of rows, in chains of as many rows
/// as have 256 outputs, or of one row.
///
/// So the error is at most (the longest chain + the number of chains + 1) times 2^-24 of the sum of
/// the absolute products: a fused multiply-add rounds once, by at most 2^-24 of the sum so far, and
/// so does each addition of a chain's sum or of the bias. Roundings go both ways: over kernels from
/// 1 to 7, up to 70 channels and 64 images the error is below 1e-6 of that sum, which
/// `tests/all/conv_accuracy.rs` compares with sums in f64.
///
/// f32 on burn's CPU backend, in one group, on a CPU with AVX2, AVX-512 or NEON, is computed
/// here. All else is handed to burn.
///
/// # Panics
/// Where burn does: the channels differ, or no filter fits into the padded image.
#[must_use]
pub fn conv2d(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    options: impl Into<ConvOptions<2>>,
) -> Tensor<4> {
    let options = options.into();
    convolved(&x, &weight, bias.as_ref(), &options, false)
        .unwrap_or_else(|| module::conv2d(x, weight, bias, options))
}

/// [`conv2d`], of which what is not positive becomes 0, as
/// [`relu`](burn::tensor::activation::relu) makes it: without a pass over the output for it, or
/// over its gradient.
///
/// # Panics
/// As [`conv2d`].
#[must_use]
pub fn conv2d_relu(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    options: impl Into<ConvOptions<2>>,
) -> Tensor<4> {
    let options = options.into();
    convolved(&x, &weight, bias.as_ref(), &options, true)
        .unwrap_or_else(|| burn::tensor::activation::relu(module::conv2d(x, weight, bias, options)))
}

/// `None` where burn's own operation is to be used.
fn convolved(
    x: &Tensor<4>,
    weight: &Tensor<4>,
    bias: Option<&Tensor<1>>,
    options: &ConvOptions<2>,
    relu: bool,
) -> Option<Tensor<4>> {
    let conv = Conv::new(x.dims(), weight.dims(), bias.map(Tensor::dims), options)?;
    let operation = Operation { conv, relu };
    let (x, weight, bias) = (
        Operand::of(x)?,
        Operand::of(weight)?,
        Operand::of_any(bias)?,
    );
    let is_tracked = Operand::is_any_tracked([Some(&x), Some(&weight), bias.as_ref()]);
    let ((x, of_x), (weight, of_weight)) = (x.into_parts(), weight.into_parts());
    let (bias, of_bias) = bias.map(Operand::into_parts).unzip();
    let done = operation.run(x, weight, bias)?;
    let output = match of_bias {
        _ if !is_tracked => Operand::Plain(done.output),
        None => Operand::Tracked(operation.track([of_x, of_weight], done)),
        Some(of_bias) => Operand::Tracked(operation.track([of_x, of_weight, of_bias], done)),
    };
    Some(output.into_tensor())
}

#[derive(Debug, Clone, Copy)]
struct Operation {
    conv: Conv,
    relu: bool,
}

/// An output, and its inputs.
struct Done {
    x: FlexTensor,
    weight: FlexTensor,
    output: FlexTensor,
}

impl Operation {
    fn run(&self, x: FlexTensor, weight: FlexTensor, bias: Option<FlexTensor>) -> Option<Done> {
        let (x, weight) = (x.to_contiguous(), weight.to_contiguous());
        let bias = bias.map(|bias| bias.to_contiguous());
        let bias = match &bias {
            Some(bias) => Some(elements(bias)?),
            None => None,
        };
        let output = self
            .conv
            .forward(elements(&x)?, elements(&weight)?, bias, self.relu);
        let output = tensor_of(output, self.conv.output_shape());
        Some(Done { x, weight, output })
    }

    /// The output as a node whose parents are the images, the filters and, if there is one, the
    /// bias.
    fn track<const N: usize>(
        &self,
        nodes: [NodeGuard; N],
        done: Done,
    ) -> FloatTensor<Autodiff<Flex>> {
        let prepared = Backward::<Flex, N>::prepare::<NoCheckpointing>(Conv2d, nodes);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let state = State {
                    conv: self.conv,
                    x: done.x,
                    weight: done.weight,
                    rectified: self.relu.then(|| done.output.clone()),
                };
                prepared.finish(state, done.output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(done.output),
        }
    }
}

#[derive(Debug)]
struct Conv2d;

/// The values that the backward pass needs from the forward pass.
#[derive(Debug, Clone)]
struct State {
    conv: Conv,
    x: FlexTensor,
    weight: FlexTensor,
    /// The output, if the gradient passes only where it is positive.
    rectified: Option<FlexTensor>,
}

impl<const N: usize> Backward<Flex, N> for Conv2d {
    type State = State;

    fn backward(self, ops: Ops<State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node);
        let State {
            conv,
            x,
            weight,
            rectified,
        } = ops.state;
        let gradient = match rectified {
            Some(output) => rectified_gradient(output, gradient),
            None => gradient,
        };
        let gradient = gradient.to_contiguous();
        // All are f32: the forward pass has read them, and the gradient has its output's type.
        let operands = (elements(&x), elements(&weight), elements(&gradient));
        let (Some(x), Some(weight), Some(gradient)) = operands else {
            return;
        };
        let parent = |i: usize| ops.parents.get(i).and_then(Option::as_ref);
        if let Some(parent) = parent(0) {
            let gradient = conv.input_gradient(weight, gradient);
            grads.register::<Flex>(parent.id, tensor_of(gradient, conv.input_shape()));
        }
        if parent(1).is_some() || parent(2).is_some() {
            let (filters, bias) = conv.filter_gradient(x, gradient);
            if let Some(parent) = parent(1) {
                grads.register::<Flex>(parent.id, tensor_of(filters, conv.filter_shape()));
            }
            if let Some(parent) = parent(2) {
                grads.register::<Flex>(parent.id, tensor_of(bias, [conv.filters]));
            }
        }
    }
}

fn rectified_gradient(output: FlexTensor, gradient: FlexTensor) -> FlexTensor {
    use burn_backend::ops::ActivationOps;
    Flex::relu_backward(output, gradient)
}
