//! `EinsumDense`.

use super::nd::Nd;
use super::operation::{Binary, Einsum, paired};
use super::*;

/// `keras.layers.EinsumDense`: a product with a kernel, summed over the axes that an equation
/// names.
#[derive(Debug, Clone, PartialEq)]
pub struct EinsumDense {
    /// The equation, such as `abc,cd->abd`: input, kernel and output.
    pub equation: String,
    /// The extents of the output without the batch; `None` for what the input has.
    pub output_shape: Vec<Option<usize>>,
    /// The letters of the axes on which the bias has values of its own; none without a bias.
    pub bias_axes: Option<String>,
    /// Applied to the result.
    pub activation: Activation,
    /// How the kernel starts.
    pub kernel_initializer: Initializer,
    /// How the bias starts.
    pub bias_initializer: Initializer,
    /// The loss on the kernel.
    pub kernel_regularizer: Option<Regularizer>,
}

/// The parts of an equation.
struct Parts<'a> {
    input: &'a str,
    kernel: &'a str,
    output: &'a str,
}

impl EinsumDense {
    fn parts(&self) -> Option<Parts<'_>> {
        let (operands, output) = self.equation.split_once("->")?;
        let (input, kernel) = operands.split_once(',')?;
        Some(Parts {
            input,
            kernel,
            output,
        })
    }

    /// The extents of the letters, for an input of these extents, the batch 0.
    fn extent(&self, letter: char, input: &[usize]) -> Option<usize> {
        let parts = self.parts()?;
        // From the end, where an ellipsis of leading axes does not count.
        let from_end = |letters: &str| letters.chars().rev().position(|other| other == letter);
        if let Some(back) = from_end(parts.input) {
            return input.len().checked_sub(back + 1).map(|axis| input[axis]);
        }
        let back = from_end(parts.output)?;
        let output = &self.output_shape;
        output
            .len()
            .checked_sub(back + 1)
            .and_then(|axis| output[axis])
    }

    fn kernel(&self, input: &[usize]) -> Option<Vec<usize>> {
        let letters = self.parts()?.kernel.chars();
        letters.map(|letter| self.extent(letter, input)).collect()
    }

    /// The shape of the bias: the last axes of the output from its first letter on.
    fn bias(&self, output: &[usize]) -> Option<Vec<usize>> {
        let letters = self.bias_axes.as_deref()?;
        let of_output: Vec<char> = self.parts()?.output.chars().collect();
        let first = letters
            .chars()
            .filter_map(|l| of_output.iter().position(|o| *o == l))
            .min()?;
        let used = &of_output[first..];
        let shift = output.len().checked_sub(used.len())?;
        let extent = |(index, letter): (usize, &char)| {
            if letters.contains(*letter) {
                output[shift + index]
            } else {
                1
            }
        };
        Some(used.iter().enumerate().map(extent).collect())
    }
}

impl KerasLayer for EinsumDense {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let equation = fields.get("equation").and_then(Json::as_str).unwrap_or("");
        let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        if Einsum::parse(&equation).is_none() {
            return Err(fields.refuse("equation", "use input,kernel->output with other letters"));
        }
        let output = match fields.get("output_shape") {
            Some(Json::Array(extents)) => extents.iter().map(extent).collect(),
            Some(one) => extent(one).map(|one| vec![one]),
            None => None,
        };
        let Some(output_shape) = output else {
            return Err(fields.refuse("output_shape", "use a list of whole numbers and null"));
        };
        let bias_axes = fields.get("bias_axes").and_then(Json::as_str);
        Ok(Self {
            equation,
            output_shape,
            bias_axes: bias_axes.map(str::to_string),
            activation: activation(fields)?,
            kernel_initializer: kernel_initializer(fields, "kernel_initializer")?,
            bias_initializer: bias_initializer(fields)?,
            kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let full = [vec![0], input.dims()].concat();
        let wrong = || format!("`equation` {} does not fit {input}", self.equation);
        let kernel = self
            .kernel(&full)
            .filter(|kernel| !kernel.contains(&0))
            .ok_or_else(wrong)?;
        let einsum = Einsum::parse(&self.equation).ok_or_else(wrong)?;
        let dims = einsum.extents(&full, &kernel)?;
        match dims.split_first() {
            Some((0, rest)) if !rest.contains(&0) => Shape::of(rest).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let input = inputs.first().copied().unwrap_or(Shape::Flat(1));
        let full = [vec![0], input.dims()].concat();
        let kernel = self.kernel(&full).unwrap_or_default();
        let output = self
            .output_shape(input)
            .map_or_else(|_| Vec::new(), Shape::dims);
        let output = [vec![0], output].concat();
        let bias = self.bias(&output);
        vec![
            weight("kernel", &kernel, self.kernel_initializer),
            bias.and_then(|bias| weight("bias", &bias, self.bias_initializer)),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let einsum = Einsum::parse(&self.equation)?;
        let kernel = weights.next();
        let shape = kernel.shape.clone();
        let kernel = super::layout::row(kernel.values);
        let kernel = weights.trained(kernel);
        let bias = self.bias_axes.is_some().then(|| weights.next());
        let bias_shape = bias
            .as_ref()
            .map_or_else(Vec::new, |bias| bias.shape.clone());
        Some(BuiltLayer::EinsumDense(EinsumDenseWeights {
            kernel,
            bias: bias.map(|bias| weights.trained(super::layout::row(bias.values))),
            shape,
            bias_shape,
            einsum,
            activation: self.activation,
            regularizer: self.kernel_regularizer,
        }))
    }

    fn activation(&self) -> Activation {
        self.activation
    }
}

fn extent(value: &Json) -> Option<Option<usize>> {
    match value {
        Json::Null => Some(None),
        one => size(one).map(Some),
    }
}

/// The kernel and the bias in Keras' order.
#[derive(Module, Debug)]
pub(crate) struct EinsumDenseWeights {
    kernel: Param<Tensor<1>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    shape: Vec<usize>,
    #[module(skip)]
    bias_shape: Vec<usize>,
    #[module(skip)]
    einsum: Einsum,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    regularizer: Option<Regularizer>,
}

impl Built for EinsumDenseWeights {
    fn call_all(
        &self,
        inputs: Vec<Value>,
        pass: &mut Pass<'_, '_>,
    ) -> distribute_core::Result<Option<Value>> {
        let Some(Value { flow, mask }) = inputs.into_iter().next() else {
            return Ok(None);
        };
        let kernel = Nd::R1(self.kernel.val()).reshape(&self.shape);
        // The plan sees to it that the equation fits.
        let Some(mut y) = self.einsum.product(Nd::of(flow), kernel) else {
            return Ok(None);
        };
        if let Some(bias) = &self.bias {
            let bias = Nd::R1(bias.val()).reshape(&self.bias_shape);
            let bias = bias.unsqueeze_to(y.dims().len());
            y = paired(Binary::Add, y.clone(), bias).unwrap_or(y);
        }
        let flow = pass.activate(y.into_flow(), self.activation);
        Ok(Some(Value { flow, mask }))
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        vec![penalty(self.regularizer, &self.kernel)]
    }
}
