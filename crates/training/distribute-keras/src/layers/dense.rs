//! `Dense`.

use burn::tensor::module::linear;

use super::layout::channels_first_rows;
use super::*;

/// `keras.layers.Dense`, on the last axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    /// The number of outputs.
    pub units: usize,
    /// Applied to the result.
    pub activation: Activation,
    /// Whether a bias per output is added.
    pub use_bias: bool,
    /// How the kernel starts.
    pub kernel_initializer: Initializer,
    /// How the bias starts.
    pub bias_initializer: Initializer,
    /// The loss on the kernel.
    pub kernel_regularizer: Option<Regularizer>,
}

impl KerasLayer for Dense {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            units: count(fields, "units")?,
            activation: activation(fields)?,
            use_bias: fields.flag("use_bias", true)?,
            kernel_initializer: kernel_initializer(fields, "kernel_initializer")?,
            bias_initializer: bias_initializer(fields)?,
            kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        Ok(input.with_features(self.units))
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let kernel = [features(inputs), self.units];
        let bias = self.use_bias.then_some(self.bias_initializer);
        vec![
            weight("kernel", &kernel, self.kernel_initializer),
            weight("bias", &[self.units], bias),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let kernel = channels_first_rows(weights.next(), weights.flattened);
        Some(BuiltLayer::Dense(DenseWeights {
            kernel: weights.trained(kernel),
            bias: weights.optional(self.use_bias),
            activation: self.activation,
            regularizer: self.kernel_regularizer,
        }))
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }

    fn activation(&self) -> Activation {
        self.activation
    }

    fn wants_image(&self) -> Option<bool> {
        Some(false)
    }

    fn set_regularizer(&mut self, regularizer: Option<Regularizer>) {
        self.kernel_regularizer = regularizer;
    }
}

/// The kernel is `[inputs, outputs]`.
#[derive(Module, Debug)]
pub(crate) struct DenseWeights {
    pub(super) kernel: Param<Tensor<2>>,
    pub(super) bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(super) activation: Activation,
    #[module(skip)]
    pub(super) regularizer: Option<Regularizer>,
}

impl Built for DenseWeights {
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let flow = match x.flow {
            Flow::Flat(x) => Flow::Flat(self.product(x)),
            Flow::Sequence(x) => Flow::Sequence(self.product(x)),
            other => {
                let dims = other.keras_dims();
                Flow::like(&dims, self.product(other.into_rows()))
            }
        };
        Ok(Value {
            flow: pass.activate(flow, self.activation),
            mask: x.mask,
        })
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        vec![penalty(self.regularizer, &self.kernel)]
    }
}

impl DenseWeights {
    /// The product and the bias, without the activation.
    pub(super) fn product<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let bias = self.bias.as_ref().map(Param::val);
        linear(x, self.kernel.val(), bias)
    }
}
