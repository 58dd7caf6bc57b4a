//! The burn module that a plan becomes.

mod build;
mod layout;

use burn::module::Module;
use burn::tensor::{Device, Tensor, activation};

use crate::head::Loss;
use crate::layers::{Flow, Layer, Pass, Value};
use crate::{Arguments, Head, Mode, ModelError, Plan, Shape, Weight};

/// A graph of layers (`keras.Model`); a chain of them is `keras.Sequential`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use distribute_core::Error;
/// use distribute_keras::{Mode, Model, built_in};
///
/// let spec = built_in("mnist-cnn", 10, 0).ok_or_else(|| Error::invalid("no such model"))?;
/// let plan = spec.plan(&[28, 28])?;
/// assert_eq!(plan.parameters(), 121_930);
/// let model = Model::initialized(&plan, 1, &Device::flex())?;
/// let images = Tensor::<2>::zeros([4, 28 * 28], &Device::flex());
/// assert_eq!(model.logits(images, &mut Mode::Inference).dims(), [4, 10]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Model {
    layers: Vec<Layer>,
    #[module(skip)]
    calls: Vec<Step>,
    #[module(skip)]
    input: Shape,
    #[module(skip)]
    head: Head,
}

/// One call of a layer.
#[derive(Debug, Clone)]
struct Step {
    layer: usize,
    inputs: Vec<usize>,
    /// The values that nobody reads after this call.
    last: Vec<usize>,
    arguments: Arguments,
    output: Shape,
    reordered: bool,
    without_activation: bool,
}

impl Model {
    /// A model with the initial weights of `seed`: the same numbers on every machine.
    ///
    /// # Errors
    /// None for a plan made by [`ModelSpec::plan`](crate::ModelSpec::plan).
    pub fn initialized(plan: &Plan, seed: u64, device: &Device) -> Result<Self, ModelError> {
        let weights = plan.weights().zip(0..);
        let draw = |((_, weight), stream): ((_, &crate::PlannedWeight), u64)| {
            weight.initializer.draw(&weight.shape, seed, stream)
        };
        Self::new(plan, weights.map(draw).collect(), device)
    }

    /// A model with these weights, in the order and layout of Keras' `model.get_weights()`.
    ///
    /// # Errors
    /// [`ModelError::Weights`] if the number of weights or a shape differs.
    pub fn new(plan: &Plan, weights: Vec<Weight>, device: &Device) -> Result<Self, ModelError> {
        check_weights(plan, &weights)?;
        // Without a loss the activations stay where they are: `forward` gives what Keras gives.
        let (head, strip) = plan.ending().unwrap_or((Head::Linear, None));
        let mut weights = weights.into_iter();
        let layers = plan.layers.iter().enumerate().map(|(index, layer)| {
            let mine = weights.by_ref().take(layer.weights.len()).collect();
            let call = plan.calls.iter().find(|call| call.layer == index);
            let input = call.and_then(|call| call.shapes.first());
            let features = input.map_or(0, |shape| shape.features());
            build::layer(layer, features, mine, device)
        });
        Ok(Self {
            layers: layers.collect(),
            calls: steps(plan, strip),
            input: plan.input,
            head,
        })
    }

    /// What Keras' model returns: probabilities if it ends with a softmax or sigmoid.
    ///
    /// `input` is as for [`logits`](Self::logits). The result is `[batch, outputs]`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>, mode: &mut Mode<'_>) -> Tensor<2> {
        let logits = self.logits(input, mode);
        match self.head {
            Head::Linear => logits,
            Head::Softmax => activation::softmax(logits, 1),
            Head::Sigmoid => activation::sigmoid(logits),
        }
    }

    /// What the logits say of every class: `[batch, outputs]`, between 0 and 1. One output is the
    /// probability of class 1; behind a sigmoid each class has a probability of its own; else they
    /// add up to 1. This is what [`Head::loss`] compares with the labels.
    pub fn probabilities(&self, logits: Tensor<2>) -> Tensor<2> {
        match self.head.loss(logits.dims()[1]) {
            Loss::Binary | Loss::BinaryPerClass => activation::sigmoid(logits),
            Loss::Categorical => activation::softmax(logits, 1),
        }
    }

    /// The last layer's numbers, before a final softmax or sigmoid: `[batch, outputs]`.
    ///
    /// `input` holds one example after the other, each with as many values as the plan's input
    /// shape, channels last: `[batch, height, width]`, `[batch, values]`, ...
    ///
    /// # Panics
    /// If it holds another number of values; the plan has checked the data set's shape.
    pub fn logits<const D: usize>(&self, input: Tensor<D>, mode: &mut Mode<'_>) -> Tensor<2> {
        let device = input.device();
        let first = Value::of(Flow::from_examples(input, self.input));
        let mut values = Vec::with_capacity(self.calls.len() + 1);
        values.push(Some(first));
        for call in &self.calls {
            // What is read for the last time is handed over, so that its memory can be used again.
            let mut read: Vec<Option<Value>> = Vec::with_capacity(call.inputs.len());
            read.extend(call.inputs.iter().map(|value| values[*value].clone()));
            for value in &call.last {
                values[*value] = None;
            }
            let mut pass = Pass {
                mode: &mut *mode,
                arguments: call.arguments,
                output: call.output,
                without_activation: call.without_activation,
                reordered: call.reordered,
            };
            let inputs = read.into_iter().flatten().collect();
            let layer = self.layers.get(call.layer);
            values.push(layer.and_then(|layer| layer.forward(inputs, &mut pass)));
        }
        let output = values.pop().flatten().map(|value| value.flow);
        // A plan has an input at least, and gives every layer what it takes.
        output.map_or_else(|| Tensor::zeros([0, 0], &device), |x| x.flatten(true))
    }

    /// Whether the input holds numbers of words, which an embedding looks up.
    pub fn takes_tokens(&self) -> bool {
        let mut layers = self.layers.iter();
        layers.any(|layer| matches!(layer, Layer::Embedding(_)))
    }

    /// The sum of all kernel regularization losses (Keras: `sum(model.losses)`); nothing if no
    /// layer has one.
    pub fn regularization_loss(&self) -> Option<Tensor<1>> {
        let losses = self.layers.iter().flat_map(Layer::regularization_losses);
        losses.reduce(|sum, loss| sum + loss)
    }

    /// The loss of no examples: 0, on the autodiff graph of the model's weights.
    pub fn zero_loss(&self, device: &Device) -> Tensor<1> {
        let weights = self.layers.iter().find_map(Layer::any_weight);
        match weights {
            Some(weights) => weights.narrow(0, 0, 1).mul_scalar(0.0),
            None => Tensor::zeros([1], device),
        }
    }

    /// What the model ends with.
    pub fn head(&self) -> Head {
        self.head
    }
}

/// The calls, each with the values that are read for the last time.
fn steps(plan: &Plan, strip: Option<usize>) -> Vec<Step> {
    let mut read_later = vec![false; plan.calls.len() + 1];
    let mut steps = Vec::with_capacity(plan.calls.len());
    for (index, call) in plan.calls.iter().enumerate().rev() {
        let mut last = Vec::new();
        for value in &call.inputs {
            if !std::mem::replace(&mut read_later[*value], true) {
                last.push(*value);
            }
        }
        steps.push(Step {
            layer: call.layer,
            inputs: call.inputs.clone(),
            last,
            arguments: call.arguments,
            output: call.output,
            reordered: call.reordered,
            without_activation: strip == Some(index),
        });
    }
    steps.reverse();
    steps
}

fn check_weights(plan: &Plan, weights: &[Weight]) -> Result<(), ModelError> {
    let error = |what| ModelError::Weights {
        model: plan.name.clone(),
        what,
    };
    let count = plan.weights().count();
    if count != weights.len() {
        let what = format!(
            "{} weights were given, the model has {count}",
            weights.len()
        );
        return Err(error(what));
    }
    for (index, ((layer, planned), weight)) in plan.weights().zip(weights).enumerate() {
        if planned.shape != weight.shape || planned.elements() != weight.values.len() {
            return Err(error(format!(
                "weight {index} has the shape {:?}, where {}/{} of the model has {:?}",
                weight.shape, layer.name, planned.name, planned.shape
            )));
        }
    }
    Ok(())
}
