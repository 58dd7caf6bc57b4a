//! Convolutions.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::ops::ConvOptions;
use distribute_kernels::{conv2d, conv2d_relu};

use super::dense::penalty;
use super::{Flow, Pass};
use crate::plan::pads;
use crate::{Activation, Padding, Regularizer};

/// A convolution; the kernel is `[filters, channels / groups, rows, columns]`.
#[derive(Module, Debug)]
pub(crate) struct Conv2d {
    pub(crate) kernel: Param<Tensor<4>>,
    pub(crate) bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) options: WindowOptions,
    #[module(skip)]
    pub(crate) groups: usize,
    #[module(skip)]
    pub(crate) activation: Activation,
    #[module(skip)]
    pub(crate) regularizer: Option<Regularizer>,
}

/// Windows of a convolution or a pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowOptions {
    pub(crate) size: [usize; 2],
    pub(crate) strides: [usize; 2],
    pub(crate) dilation: [usize; 2],
    pub(crate) padding: Padding,
}

impl WindowOptions {
    pub(crate) fn pairs(&self, x: &Tensor<4>) -> [(usize, usize); 2] {
        let [_, _, height, width] = x.dims();
        let window = [0, 1].map(|i| (self.size[i] - 1) * self.dilation[i] + 1);
        pads([height, width], window, self.strides, self.padding)
    }
}

/// Of images, a kernel and a bias.
type Operation = fn(Tensor<4>, Tensor<4>, Option<Tensor<1>>, ConvOptions<2>) -> Tensor<4>;

impl Conv2d {
    pub(crate) fn forward(&self, x: Tensor<4>, pass: &Pass<'_, '_>) -> Flow {
        match (pass.without_activation, self.activation) {
            (true, _) => Flow::Image(self.convolve(x)),
            (false, Activation::Relu) => Flow::Image(self.convolve_by(conv2d_relu, x)),
            (false, activation) => Flow::Image(self.convolve(x)).activate(activation),
        }
    }

    fn convolve(&self, x: Tensor<4>) -> Tensor<4> {
        self.convolve_by(conv2d, x)
    }

    fn convolve_by(&self, operation: Operation, x: Tensor<4>) -> Tensor<4> {
        let pairs = self.options.pairs(&x);
        let WindowOptions {
            strides, dilation, ..
        } = self.options;
        let options = ConvOptions::new_with_padding(strides, pairs, dilation, self.groups);
        let bias = self.bias.as_ref().map(Param::val);
        operation(x, self.kernel.val(), bias, options)
    }

    pub(crate) fn loss(&self) -> Option<Tensor<1>> {
        penalty(self.regularizer, &self.kernel)
    }
}

/// A convolution of every channel by itself, then one of 1 x 1.
#[derive(Module, Debug)]
pub(crate) struct SeparableConv2d {
    pub(crate) depthwise: Conv2d,
    pub(crate) pointwise: Conv2d,
}

impl SeparableConv2d {
    pub(crate) fn forward(&self, x: Tensor<4>, pass: &Pass<'_, '_>) -> Flow {
        self.pointwise.forward(self.depthwise.convolve(x), pass)
    }
}
