//! Matrix products and tables.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::module::{embedding, linear};

use super::flow::Value;
use super::{Flow, Pass};
use crate::{Activation, Regularizer};

/// A matrix product on the last axis; the kernel is `[inputs, outputs]`.
#[derive(Module, Debug)]
pub(crate) struct Dense {
    pub(crate) kernel: Param<Tensor<2>>,
    pub(crate) bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) activation: Activation,
    #[module(skip)]
    pub(crate) regularizer: Option<Regularizer>,
}

impl Dense {
    pub(crate) fn forward(&self, x: Flow, pass: &Pass<'_, '_>) -> Flow {
        let y = match x {
            Flow::Flat(x) => Flow::Flat(self.product(x)),
            Flow::Sequence(x) => Flow::Sequence(self.product(x)),
            image @ Flow::Image(_) => {
                let dims = image.keras_dims();
                Flow::like(&dims, self.product(image.into_rows()))
            }
        };
        match pass.without_activation {
            true => y,
            false => y.activate(self.activation),
        }
    }

    /// The product and the bias, without the activation.
    pub(crate) fn product<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let bias = self.bias.as_ref().map(Param::val);
        linear(x, self.kernel.val(), bias)
    }

    pub(crate) fn loss(&self) -> Option<Tensor<1>> {
        penalty(self.regularizer, &self.kernel)
    }
}

/// One vector per token; `[tokens, dimensions]`.
#[derive(Module, Debug)]
pub(crate) struct Embedding {
    pub(crate) embeddings: Param<Tensor<2>>,
    #[module(skip)]
    pub(crate) mask_zero: bool,
    #[module(skip)]
    pub(crate) regularizer: Option<Regularizer>,
}

impl Embedding {
    pub(crate) fn forward(&self, tokens: Tensor<2>) -> Value {
        let mask = self.mask_zero.then(|| {
            let mask = tokens.clone().not_equal_elem(0.0).float();
            mask.cast(self.embeddings.val().dtype())
        });
        let flow = Flow::Sequence(embedding(self.embeddings.val(), tokens.int()));
        Value { flow, mask }
    }

    pub(crate) fn loss(&self) -> Option<Tensor<1>> {
        penalty(self.regularizer, &self.embeddings)
    }
}

/// The loss on a kernel.
pub(super) fn penalty<const D: usize>(
    regularizer: Option<Regularizer>,
    kernel: &Param<Tensor<D>>,
) -> Option<Tensor<1>> {
    let Regularizer { l1, l2 } = regularizer?;
    let l1 = (l1 != 0.0).then(|| kernel.val().abs().sum().mul_scalar(l1));
    let l2 = (l2 != 0.0).then(|| {
        let kernel = kernel.val();
        (kernel.clone() * kernel).sum().mul_scalar(l2)
    });
    match (l1, l2) {
        (Some(l1), Some(l2)) => Some(l1 + l2),
        (one, other) => one.or(other),
    }
}
