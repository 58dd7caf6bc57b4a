//! The burn module that a plan becomes.

mod activity;
mod constraints;
mod steps;
mod taken;

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Tensor, activation};
use distribute_core::{Error, Result};

use crate::head::Loss;
use crate::layers::regularizer::penalty;
use crate::layers::{BuiltLayer, Flow, Pass, Value, Weights};
use crate::plan::{PlannedInput, PlannedLayer};
use crate::{Head, Mode, ModelError, Plan, PlannedWeight, Regularizer, Weight};
use activity::ActivityLosses;
use steps::{Output, Parts, Step};

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
/// assert_eq!(model.logits(images, &mut Mode::Inference)?.dims(), [4, 10]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Model {
    layers: Vec<BuiltLayer>,
    #[module(skip)]
    steps: Vec<Step>,
    #[module(skip)]
    inputs: Vec<PlannedInput>,
    #[module(skip)]
    outputs: Vec<Output>,
    /// Whether each layer is trained.
    #[module(skip)]
    trainable: Vec<bool>,
    /// Losses on weights of one name in a layer.
    #[module(skip)]
    regularizers: Vec<(usize, &'static str, Regularizer)>,
    #[module(skip)]
    takes_tokens: bool,
    #[module(skip)]
    is_synchronized: bool,
}

/// What a model gives for a batch, see [`Model::outputs_all`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Outputs {
    /// For each output the last layer's numbers before a final softmax or sigmoid, `[batch,
    /// outputs]`, in the order of [`Model::output_names`].
    pub logits: Vec<Tensor<2>>,
    /// For each example the losses on what layers give (Keras: `activity_regularizer`), `[batch]`;
    /// `None` without such a layer. As every loss of examples it is divided by the size of the
    /// global batch.
    pub activity_losses: Option<Tensor<1>>,
}

impl Model {
    /// A model with the initial weights of `seed`: the same numbers on every machine.
    ///
    /// # Errors
    /// None for a plan made by [`ModelSpec::plan`](crate::ModelSpec::plan).
    pub fn initialized(
        plan: &Plan,
        seed: u64,
        device: &Device,
    ) -> std::result::Result<Self, ModelError> {
        let weights = plan.weights().zip(0..);
        let start = weights.map(|((_, weight), stream)| weight.start(seed, stream));
        Self::new(plan, start.collect(), device)
    }

    /// A model with these weights, in the order and layout of Keras' `model.get_weights()`.
    ///
    /// # Errors
    /// [`ModelError::Weights`] if the number of weights or a shape differs.
    pub fn new(
        plan: &Plan,
        weights: Vec<Weight>,
        device: &Device,
    ) -> std::result::Result<Self, ModelError> {
        check_weights(plan, &weights)?;
        let (steps, outputs) = steps::of(plan);
        let mut weights = weights.into_iter();
        let layers = plan.layers.iter().enumerate().map(|(index, layer)| {
            let mine: Vec<_> = weights.by_ref().take(layer.weights.len()).collect();
            built(plan, index, mine, device)
        });
        let any = |is: &dyn Fn(&PlannedLayer) -> bool| plan.layers.iter().any(is);
        Ok(Self {
            layers: layers.collect(),
            steps,
            inputs: plan.inputs.clone(),
            outputs,
            trainable: plan.layers.iter().map(|layer| layer.trainable).collect(),
            regularizers: regularizers(plan),
            takes_tokens: any(&|layer| layer.spec.layer().reads_numbers()),
            is_synchronized: any(&|layer| layer.trainable && layer.spec.layer().is_synchronized()),
        })
    }

    /// What Keras' model returns: probabilities if it ends with a softmax or sigmoid.
    ///
    /// `input` is as for [`logits`](Self::logits). The result is `[batch, outputs]`.
    ///
    /// # Errors
    /// The errors of [`logits`](Self::logits).
    pub fn forward<const D: usize>(
        &self,
        input: Tensor<D>,
        mode: &mut Mode<'_>,
    ) -> Result<Tensor<2>> {
        let logits = self.logits(input, mode)?;
        let first = self.outputs.first();
        Ok(first.map_or(logits.clone(), |output| applied(output, logits)))
    }

    /// [`forward`](Self::forward) of a model with any number of inputs and outputs: what each
    /// output is, `[batch, outputs]`, in the order of [`output_names`](Self::output_names).
    ///
    /// # Errors
    /// The errors of [`logits_all`](Self::logits_all).
    pub fn forward_all(
        &self,
        inputs: Vec<Tensor<2>>,
        mode: &mut Mode<'_>,
    ) -> Result<Vec<Tensor<2>>> {
        Ok(self.returned(self.logits_all(inputs, mode)?))
    }

    /// What Keras' model returns, of what stands before the heads: `[batch, outputs]` of each
    /// output, in the order of [`output_names`](Self::output_names).
    pub fn returned(&self, logits: Vec<Tensor<2>>) -> Vec<Tensor<2>> {
        let outputs = self.outputs.iter().zip(logits);
        outputs.map(|(output, x)| applied(output, x)).collect()
    }

    /// What the logits say of every class: `[batch, outputs]`, between 0 and 1. One output is the
    /// probability of class 1; behind a sigmoid each class has a probability of its own; else they
    /// add up to 1. This is what [`Head::loss`] compares with the labels.
    pub fn probabilities(&self, logits: Tensor<2>) -> Tensor<2> {
        match self.head().loss(logits.dims()[1]) {
            Loss::Binary | Loss::BinaryPerClass => activation::sigmoid(logits),
            Loss::Categorical => activation::softmax(logits, 1),
        }
    }

    /// The last layer's numbers, before a final softmax or sigmoid: `[batch, outputs]`.
    ///
    /// `input` holds one example after the other, each with as many values as the plan's input
    /// shape, channels last: `[batch, height, width]`, `[batch, values]`, ...
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it holds another number of values, and for a model with
    /// several inputs or outputs. In training the errors of
    /// [`SyncBatchNorm::forward`](distribute_core::SyncBatchNorm::forward), if the model has a
    /// `synchronized` layer.
    pub fn logits<const D: usize>(
        &self,
        input: Tensor<D>,
        mode: &mut Mode<'_>,
    ) -> Result<Tensor<2>> {
        let ([planned], [_]) = (self.inputs.as_slice(), self.outputs.as_slice()) else {
            return Err(Error::invalid(format!(
                "the model has the inputs {} and the outputs {}, and takes one of each here; use \
                 `logits_all` or `forward_all`",
                listed(self.input_names()),
                listed(self.output_names())
            )));
        };
        let device = input.device();
        let first = values(input, planned)?;
        let mut outputs = self.run(vec![first], mode)?;
        let logits = outputs.logits.pop();
        Ok(logits.unwrap_or_else(|| Tensor::zeros([0, 0], &device)))
    }

    /// [`logits`](Self::logits) of a model with any number of inputs and outputs.
    ///
    /// `inputs` are in the order of [`input_names`](Self::input_names), see
    /// [`in_order`](Self::in_order); each is `[batch, values]`, one example after the other. The
    /// results are in the order of [`output_names`](Self::output_names), each `[batch, outputs]`.
    /// Which loss belongs to which one, [`heads`](Self::heads) say.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use distribute_core::Error;
    /// use distribute_keras::{Mode, Model, ModelOutput, built_in};
    ///
    /// let mut spec = built_in("mlp", 10, 0).ok_or_else(|| Error::invalid("no such model"))?;
    /// // The output of the last but one layer is an output too.
    /// let value = spec.outputs[0].value - 1;
    /// spec.outputs.push(ModelOutput { name: "features".to_string(), value });
    /// let plan = spec.plan_all(&[&[8, 8]])?;
    /// let model = Model::initialized(&plan, 1, &Device::flex())?;
    /// let images = Tensor::<2>::zeros([4, 64], &Device::flex());
    /// let inputs = model.in_order([(plan.inputs[0].name.as_str(), images)])?;
    /// let outputs = model.logits_all(inputs, &mut Mode::Inference)?;
    /// assert_eq!(outputs[0].dims(), [4, 10]);
    /// assert_eq!(model.output_names().nth(1), Some("features"));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of inputs, or of values in one, and for
    /// inputs with other numbers of examples; the errors of [`logits`](Self::logits).
    pub fn logits_all(
        &self,
        inputs: Vec<Tensor<2>>,
        mode: &mut Mode<'_>,
    ) -> Result<Vec<Tensor<2>>> {
        Ok(self.outputs_all(inputs, mode)?.logits)
    }

    /// [`logits_all`](Self::logits_all), and the losses on what layers give, which the loss of a
    /// model with an `activity_regularizer` needs, in evaluation too.
    ///
    /// # Errors
    /// The errors of [`logits_all`](Self::logits_all).
    pub fn outputs_all(&self, inputs: Vec<Tensor<2>>, mode: &mut Mode<'_>) -> Result<Outputs> {
        if inputs.len() != self.inputs.len() {
            return Err(Error::invalid(format!(
                "{} inputs were given, the model has these: {}",
                inputs.len(),
                listed(self.input_names())
            )));
        }
        let sizes: Vec<usize> = inputs.iter().map(|input| input.dims()[0]).collect();
        if sizes.iter().any(|size| *size != sizes[0]) {
            return Err(Error::invalid(format!(
                "the inputs {} have {sizes:?} examples; give as many of each",
                listed(self.input_names())
            )));
        }
        let planned = inputs.into_iter().zip(&self.inputs);
        let first = planned.map(|(input, planned)| values(input, planned));
        self.run(first.collect::<Result<_>>()?, mode)
    }

    fn run(&self, inputs: Vec<Value>, mode: &mut Mode<'_>) -> Result<Outputs> {
        let first = inputs.first();
        let batch = first.map_or(0, |input| input.flow.keras_dims()[0]);
        let mut activity = ActivityLosses::default();
        let mut values: Vec<Option<Value>> = Vec::with_capacity(inputs.len() + self.steps.len());
        values.extend(inputs.into_iter().map(Some));
        let mut parts = Parts::default();
        let computed_in = self.takes_tokens.then(|| self.computed_in());
        for step in &self.steps {
            // What is read for the last time is handed over, so that its memory can be used again.
            let mut read: Vec<Option<Value>> = Vec::with_capacity(step.inputs.len());
            read.extend(step.inputs.iter().map(|value| values[*value].clone()));
            for value in &step.last {
                values[*value] = None;
            }
            if let Some(dtype) = computed_in.filter(|_| !step.takes_numbers) {
                read.iter_mut()
                    .flatten()
                    .for_each(|value| value.cast(dtype));
            }
            let mut pass = Pass {
                mode: &mut *mode,
                arguments: step.arguments,
                output: step.output,
                without_activation: step.without_activation,
                reordered: step.reordered,
                states: Vec::new(),
            };
            if let Some(part) = parts.of(step) {
                values.push(Some(part));
                continue;
            }
            let inputs = read.into_iter().flatten().collect();
            let value = match self.layers.get(step.layer) {
                Some(layer) => layer.built().call_all(inputs, &mut pass)?,
                None => None,
            };
            let states = std::mem::take(&mut pass.states);
            if let Some(regularizer) = step.activity {
                let given = value.iter().map(|value| value.flow.clone());
                let given = given.chain(states.iter().cloned().map(Flow::Flat));
                given.for_each(|values| activity.add(regularizer, values, batch));
            }
            values.push(parts.made(step, value, states));
        }
        let outputs = self.outputs.iter();
        // A plan gives every layer what it takes, so that every output is there.
        let outputs = outputs.filter_map(|output| values.get(output.value)?.clone());
        Ok(Outputs {
            logits: outputs.map(|value| value.flow.flatten(true)).collect(),
            activity_losses: activity.sum,
        })
    }

    /// The type of the arithmetic: that of weights of 16 bits, if there are some.
    fn computed_in(&self) -> DType {
        let mut found = HalfType(DType::F32);
        self.layers.iter().for_each(|layer| layer.visit(&mut found));
        found.0
    }

    /// The names of the inputs, in the order of Keras' `model.inputs`.
    pub fn input_names(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|input| input.name.as_str())
    }

    /// The names of the outputs, in the order of Keras' `model.outputs`.
    pub fn output_names(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().map(|output| output.name.as_str())
    }

    /// What every output ends with.
    pub fn heads(&self) -> impl Iterator<Item = Head> {
        self.outputs.iter().map(|output| output.head)
    }

    /// Inputs by their names, in the order that [`logits_all`](Self::logits_all) wants.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an input that is missing, given twice or not the model's.
    pub fn in_order<'a>(
        &self,
        named: impl IntoIterator<Item = (&'a str, Tensor<2>)>,
    ) -> Result<Vec<Tensor<2>>> {
        let wrong = |name: &str, what: &str| {
            Error::invalid(format!(
                "the input {name} {what}; the model has these: {}",
                listed(self.input_names())
            ))
        };
        let mut given = BTreeMap::new();
        for (name, input) in named {
            if !self.input_names().any(|known| known == name) {
                return Err(wrong(name, "is not the model's"));
            }
            if given.insert(name, input).is_some() {
                return Err(wrong(name, "is given twice"));
            }
        }
        let all = self.input_names().map(|name| {
            let input = given.remove(name);
            input.ok_or_else(|| wrong(name, "is missing"))
        });
        all.collect()
    }

    /// The inputs of examples that are rows of all inputs, one behind the other, in the order that
    /// [`logits_all`](Self::logits_all) wants.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for rows of another length.
    pub fn split_inputs(&self, rows: Tensor<2>) -> Result<Vec<Tensor<2>>> {
        let widths = self.inputs.iter().map(|input| input.shape.elements());
        let (all, found) = (widths.clone().sum::<usize>(), rows.dims()[1]);
        if all != found {
            return Err(Error::invalid(format!(
                "the inputs {} have {all} values together, and {found} were given",
                listed(self.input_names())
            )));
        }
        let mut first = 0;
        let parts = widths.map(|width| {
            first += width;
            rows.clone().narrow(1, first - width, width)
        });
        Ok(parts.collect())
    }

    /// Whether an input holds numbers of words or classes, which an `Embedding`, a lookup or a
    /// `CategoryEncoding` reads. 16 bits do not hold them all, so all inputs are given in f32; the
    /// model itself turns the others into the type of its weights.
    pub fn takes_tokens(&self) -> bool {
        self.takes_tokens
    }

    /// Whether [`Outputs::activity_losses`] are there: a layer has a loss on what it gives (Keras:
    /// `activity_regularizer`), with a factor other than 0.
    pub fn has_activity_losses(&self) -> bool {
        let mut regularizers = self.steps.iter().filter_map(|step| step.activity);
        regularizers.any(|Regularizer { l1, l2 }| l1 != 0.0 || l2 != 0.0)
    }

    /// The sum of the losses on weights of all layers that are trained; nothing if none has one. In
    /// Keras 3 it is a part of `sum(model.losses)`, beside the losses on outputs that
    /// [`outputs_all`](Self::outputs_all) gives; Keras 2 also adds the constants of frozen layers.
    pub fn regularization_loss(&self) -> Option<Tensor<1>> {
        let losses = self.trained().flat_map(|layer| layer.built().losses());
        let others = self
            .regularizers
            .iter()
            .flat_map(|(layer, name, regularizer)| {
                let mut found = NamedWeights {
                    name,
                    regularizer: *regularizer,
                    path: Vec::new(),
                    losses: Vec::new(),
                };
                if let Some(layer) = self.layers.get(*layer) {
                    layer.visit(&mut found);
                }
                found.losses
            });
        losses
            .chain(others)
            .flatten()
            .reduce(|sum, loss| sum + loss)
    }

    fn trained(&self) -> impl Iterator<Item = &BuiltLayer> {
        let layers = self.layers.iter().zip(&self.trainable);
        layers.filter_map(|(layer, trainable)| trainable.then_some(layer))
    }

    /// The loss of no examples: 0, on the autodiff graph of the weights that are trained.
    pub fn zero_loss(&self, device: &Device) -> Tensor<1> {
        let mut first = FirstTrained::default();
        self.trained().for_each(|layer| layer.visit(&mut first));
        match first.leaf.or(first.any) {
            Some(weights) => weights.narrow(0, 0, 1).mul_scalar(0.0),
            None => Tensor::zeros([1], device),
        }
    }

    /// Whether all replicas must make a pass of training together, those without examples too: a
    /// layer is `synchronized` and trained.
    pub fn is_synchronized(&self) -> bool {
        self.is_synchronized
    }

    /// The head of the first output.
    pub fn head(&self) -> Head {
        self.heads().next().unwrap_or(Head::Linear)
    }
}

/// A layer of the plan with these weights.
fn built(plan: &Plan, index: usize, weights: Vec<Weight>, device: &Device) -> BuiltLayer {
    let layer = &plan.layers[index];
    let call = plan.calls.iter().find(|call| call.layer == index);
    let input = call.and_then(|call| call.shapes.first());
    let weights = Weights {
        left: weights.into_iter(),
        device,
        features: input.map_or(0, |shape| shape.features()),
        flattened: layer.flattened,
    };
    layer.spec.build(layer.trainable, weights)
}

/// The losses on weights that no option of their layer has: of trained layers that have the weight.
fn regularizers(plan: &Plan) -> Vec<(usize, &'static str, Regularizer)> {
    let layers = plan.layers.iter().enumerate();
    let trained = layers.filter(|(_, layer)| layer.trainable);
    let all = trained.flat_map(|(index, layer)| {
        let there = layer.rules.regularizers.iter().filter(|(name, _)| {
            let ends = |weight: &PlannedWeight| weight.name.rsplit('/').next() == Some(name);
            layer.weights.iter().any(ends)
        });
        there.map(move |(name, regularizer)| (index, *name, *regularizer))
    });
    all.collect()
}

/// The losses on the weights of one name in a layer.
struct NamedWeights<'a> {
    name: &'a str,
    regularizer: Regularizer,
    path: Vec<String>,
    losses: Vec<Option<Tensor<1>>>,
}

impl ModuleVisitor for NamedWeights<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.last().is_some_and(|last| last == self.name) {
            self.losses.push(penalty(Some(self.regularizer), param));
        }
    }
}

/// The type of a weight that is not f32.
struct HalfType(DType);

impl ModuleVisitor for HalfType {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.0 == DType::F32 {
            self.0 = param.val().dtype();
        }
    }
}

/// The first weight of layers that are trained, in one row.
#[derive(Default)]
struct FirstTrained {
    leaf: Option<Tensor<1>>,
    /// For a model of another type than its variables, none of whose weights is a leaf.
    any: Option<Tensor<1>>,
}

impl ModuleVisitor for FirstTrained {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let place = if param.is_require_grad() {
            &mut self.leaf
        } else {
            &mut self.any
        };
        place.get_or_insert_with(|| param.val().reshape([-1]));
    }
}

fn applied(output: &Output, logits: Tensor<2>) -> Tensor<2> {
    match output.head {
        Head::Linear => logits,
        Head::Softmax if logits.dims()[1] == output.features => activation::softmax(logits, 1),
        // At each place of an image or a sequence.
        Head::Softmax => {
            let [examples, values] = logits.dims();
            let places = values / output.features.max(1);
            let each = logits.reshape([examples * places, output.features]);
            activation::softmax(each, 1).reshape([examples, values])
        }
        Head::Sigmoid => activation::sigmoid(logits),
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// The values of an input.
fn values<const D: usize>(input: Tensor<D>, planned: &PlannedInput) -> Result<Value> {
    let dims = input.dims();
    let found: usize = dims[1..].iter().product();
    if found != planned.shape.elements() {
        return Err(Error::invalid(format!(
            "the input {} has the shape {dims:?}, but an example of it is {} and so has {} values",
            planned.name,
            planned.shape,
            planned.shape.elements()
        )));
    }
    Ok(Value::of(Flow::from_examples(input, planned.shape)))
}

fn check_weights(plan: &Plan, weights: &[Weight]) -> std::result::Result<(), ModelError> {
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
