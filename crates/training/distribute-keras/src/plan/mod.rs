//! Shapes of all values for one input, checked before a tensor exists.

mod order;

use crate::shape::{MOST_AXES, tuple};
use crate::{
    Arguments, Call, LayerRules, LayerSpec, ModelError, ModelInput, ModelSpec, PlannedWeight, Shape,
};

/// A model for inputs of known shapes: what [`Model`](crate::Model) is built from.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The model's name.
    pub name: String,
    /// What the model receives, in order.
    pub inputs: Vec<PlannedInput>,
    /// Every layer once, with its weights.
    pub layers: Vec<PlannedLayer>,
    /// The calls of the layers in the order in which they are made.
    pub calls: Vec<PlannedCall>,
    /// What the model returns, in order.
    pub outputs: Vec<PlannedOutput>,
}

/// An input of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedInput {
    /// Its name.
    pub name: String,
    /// The shape of one example.
    pub shape: Shape,
}

/// An output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedOutput {
    /// Its name.
    pub name: String,
    /// Which value it is, as in [`PlannedCall::inputs`].
    pub value: usize,
    /// The shape of one example of it.
    pub shape: Shape,
}

/// One layer and its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedLayer {
    /// Its name in the model.
    pub name: String,
    /// The layer.
    pub spec: LayerSpec,
    /// Its weights, in Keras' order.
    pub weights: Vec<PlannedWeight>,
    /// Whether it is trained, see [`NamedLayer::trainable`](crate::NamedLayer::trainable).
    pub trainable: bool,
    /// The group of its weights in a file, see
    /// [`NamedLayer::saved_as`](crate::NamedLayer::saved_as).
    pub saved_as: String,
    /// Losses and constraints beside the layer's own options.
    pub rules: LayerRules,
    /// For a `Dense` layer behind a flattened image: that image, whose values arrive in the order
    /// (channels, height, width) where Keras has (height, width, channels).
    pub flattened: Option<(usize, usize, usize)>,
}

/// One call of a layer, and its shapes.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCall {
    /// The layer's position in [`Plan::layers`].
    pub layer: usize,
    /// What it receives, see [`Call::inputs`].
    pub inputs: Vec<usize>,
    /// The shapes of its inputs, without a mask, see [`Arguments::with_mask`].
    pub shapes: Vec<Shape>,
    /// The shape of its output.
    pub output: Shape,
    /// The arguments of the call.
    pub arguments: Arguments,
    /// For a `Flatten` of an image: that the values themselves are put into Keras' order, because
    /// not every reader of them is a `Dense` layer that can read another order.
    pub reordered: bool,
    /// The call of the `Embedding` or `Masking` whose padding is left out of what this call gives.
    pub(crate) masked_by: Option<usize>,
}

impl PlannedLayer {
    /// The number of numbers in its weights (Keras: `layer.count_params()`).
    pub fn parameters(&self) -> usize {
        let counts = self.weights.iter().map(PlannedWeight::elements);
        counts.fold(0, usize::saturating_add)
    }
}

impl Plan {
    /// The shape of one example of the first input, which most models have alone.
    pub fn input(&self) -> Shape {
        self.inputs
            .first()
            .map_or(Shape::Flat(0), |input| input.shape)
    }

    /// The shape of the first output, which most models have alone.
    pub fn output(&self) -> Shape {
        let output = self.outputs.first();
        output.map_or(self.input(), |output| output.shape)
    }

    /// Whether padding is left out of a value, which is numbered as [`PlannedOutput::value`]:
    /// whether it has a mask in Keras (`get_keras_mask`), by an `Embedding` with `mask_zero` or a
    /// `Masking`. Of an output with a mask Keras' losses and metrics leave the padding out.
    pub fn is_masked(&self, value: usize) -> bool {
        self.mask(value).is_some()
    }

    /// The number of numbers in the weights that are trained (Keras:
    /// `model.trainable_weights`).
    pub fn trained_parameters(&self) -> usize {
        let layers = self.layers.iter().filter(|layer| layer.trainable);
        let trained = layers
            .flat_map(|layer| &layer.weights)
            .filter(|weight| weight.trained);
        trained
            .map(PlannedWeight::elements)
            .fold(0, usize::saturating_add)
    }

    /// The number of numbers in all weights (Keras: `model.count_params()`).
    pub fn parameters(&self) -> usize {
        let counts = self.layers.iter().map(PlannedLayer::parameters);
        counts.fold(0, usize::saturating_add)
    }

    /// All weights in the order of Keras' `model.get_weights()`, each with its layer.
    pub fn weights(&self) -> impl Iterator<Item = (&PlannedLayer, &PlannedWeight)> {
        let of = |layer: &'_ PlannedLayer| layer.weights.len();
        let layers = self.layers.iter().filter(move |layer| of(layer) > 0);
        layers.flat_map(|layer| layer.weights.iter().map(move |weight| (layer, weight)))
    }
}

impl ModelSpec {
    /// Works out every value's shape for examples of the shape `features`.
    ///
    /// An image without a channel axis has one channel if the model wants an axis more.
    ///
    /// # Errors
    /// [`ModelError::SeveralTensors`] if the model has several inputs or outputs, and the errors of
    /// [`plan_all`](Self::plan_all).
    pub fn plan(&self, features: &[usize]) -> Result<Plan, ModelError> {
        for (count, what) in [
            (self.inputs.len(), "inputs"),
            (self.outputs.len(), "outputs"),
        ] {
            if count > 1 {
                return Err(ModelError::SeveralTensors {
                    origin: self.name.clone(),
                    count,
                    what,
                });
            }
        }
        self.plan_all(&[features])
    }

    /// [`plan`](Self::plan) of a model with any number of inputs and outputs, for examples of
    /// these shapes, one for each of [`ModelSpec::inputs`].
    ///
    /// # Errors
    /// [`ModelError::Input`] if the model has another number of inputs, or names another shape for
    /// one, [`ModelError::Shape`] for the first layer that does not fit, [`ModelError::Graph`] for
    /// calls that do not fit the model.
    pub fn plan_all(&self, features: &[&[usize]]) -> Result<Plan, ModelError> {
        self.check_calls()?;
        let mut plan = Plan {
            name: self.name.clone(),
            inputs: self.planned_inputs(features)?,
            outputs: Vec::with_capacity(self.outputs.len()),
            layers: Vec::with_capacity(self.layers.len()),
            calls: Vec::with_capacity(self.calls.len()),
        };
        let unbuilt = self.layers.iter().map(|layer| PlannedLayer {
            name: layer.name.clone(),
            spec: layer.spec.clone(),
            weights: Vec::new(),
            trainable: layer.trainable,
            saved_as: layer.saved_as.clone(),
            rules: layer.rules.clone(),
            flattened: None,
        });
        plan.layers.extend(unbuilt);
        let mut built = vec![false; plan.layers.len()];
        for call in &self.calls {
            let layer = &plan.layers[call.layer];
            let error = |what| ModelError::Shape {
                model: self.name.clone(),
                layer: layer.name.clone(),
                class: layer.spec.class(),
                what,
            };
            let is_text = |input: &usize| self.inputs.get(*input).is_some_and(|it| it.is_text);
            let of_texts = call.inputs.iter().all(is_text);
            let planned = plan.planned(call, of_texts).map_err(error)?;
            let weights: Vec<_> = layer
                .spec
                .layer()
                .weights(&planned.shapes)
                .into_iter()
                .flatten()
                .collect();
            if std::mem::replace(&mut built[call.layer], true) && weights != layer.weights {
                return Err(error(format!(
                    "it is called on values of different widths, {} among them, and has its \
                     weights once; use a layer for each",
                    planned.shapes[0]
                )));
            }
            plan.layers[call.layer].weights = weights;
            plan.calls.push(planned);
        }
        for output in &self.outputs {
            plan.outputs.push(PlannedOutput {
                name: output.name.clone(),
                value: output.value,
                shape: plan.shape(output.value),
            });
        }
        plan.order_features();
        Ok(plan)
    }

    fn planned_inputs(&self, features: &[&[usize]]) -> Result<Vec<PlannedInput>, ModelError> {
        if features.len() != self.inputs.len() {
            let names = self.inputs.iter().map(|input| input.name.as_str());
            return Err(ModelError::Inputs {
                model: self.name.clone(),
                inputs: names.collect::<Vec<_>>().join(", "),
                found: features.len(),
            });
        }
        let inputs = self.inputs.iter().zip(features).enumerate();
        let planned = inputs.map(|(index, (input, features))| {
            let shape = match self.text_reader(index)? {
                Some((layer, texts)) => {
                    let dims = self.text_dims(layer, texts)?;
                    self.text_shape(input, dims, features)?
                }
                None => self.input(input, features)?,
            };
            Ok(PlannedInput {
                name: input.name.clone(),
                shape,
            })
        });
        planned.collect()
    }

    /// The shape of what the texts of an example become, of which the caller says the length where
    /// the texts determine it.
    fn text_shape(
        &self,
        input: &ModelInput,
        dims: Vec<Option<usize>>,
        features: &[usize],
    ) -> Result<Shape, ModelError> {
        let length = features
            .iter()
            .fold(1, |all: usize, n| all.saturating_mul(*n));
        let whole: Option<Vec<usize>> = dims.iter().copied().collect();
        let found = match whole {
            Some(dims) => Shape::of(&dims).filter(|shape| shape.elements() == length),
            None => Some(Shape::Flat(length)),
        };
        found.ok_or_else(|| {
            let dims = dims.iter().map(|dim| dim.unwrap_or(0)).collect::<Vec<_>>();
            self.wrong_input(input, tuple(&dims), features)
        })
    }

    fn wrong_input(&self, input: &ModelInput, expected: String, features: &[usize]) -> ModelError {
        ModelError::Input {
            model: match self.inputs.len() {
                1 => self.name.clone(),
                _ => format!("{}, input {},", self.name, input.name),
            },
            expected,
            found: tuple(features),
        }
    }

    /// The shape of one example as the first layers see it.
    fn input(&self, input: &ModelInput, features: &[usize]) -> Result<Shape, ModelError> {
        let mut with_channel = features.to_vec();
        with_channel.push(1);
        let wrong = |expected| self.wrong_input(input, expected, features);
        if let Some(declared) = &input.shape {
            let fits = |dims: &[usize]| {
                let pairs = declared.iter().zip(dims);
                declared.len() == dims.len()
                    && pairs.clone().all(|(d, x)| d.is_none_or(|d| d == *x))
            };
            let chosen = [features, &with_channel]
                .into_iter()
                .find(|dims| fits(dims));
            let expected = || {
                let dims: Vec<_> = declared
                    .iter()
                    .map(|d| d.map_or("any".to_string(), |d| d.to_string()))
                    .collect();
                format!("({})", dims.join(", "))
            };
            return chosen.and_then(Shape::of).ok_or_else(|| wrong(expected()));
        }
        let mut layers = self.layers.iter();
        let wants_image = layers.find_map(|layer| layer.spec.layer().wants_image());
        let dims = match features.len() {
            2 if wants_image == Some(true) => &with_channel[..],
            _ => features,
        };
        Shape::of(dims).ok_or_else(|| wrong(format!("at most {MOST_AXES} axes")))
    }
}

impl Plan {
    /// A call of values that are there, or why it cannot be made.
    fn planned(&self, call: &Call, of_texts: bool) -> Result<PlannedCall, String> {
        let layer = self.layers[call.layer].spec.layer();
        if layer.reads_texts().is_some() && !of_texts {
            return Err("reads texts; use it on an `Input` of dtype=\"string\"".to_string());
        }
        let mut shapes: Vec<Shape> = call.inputs.iter().map(|value| self.shape(*value)).collect();
        if let Some(mask) = shapes.pop_if(|_| call.arguments.with_mask) {
            layer.check_mask(&shapes, mask)?;
        }
        let masks: Vec<Option<usize>> = call.inputs.iter().map(|v| self.mask(*v)).collect();
        // Values beside the first may have no steps, such as the initial states of an LSTM.
        if call.arguments.masked && masks.iter().all(Option::is_none) {
            return Err(
                "its `mask` is not the padding of an Embedding or a Masking layer; use \
                 mask_zero=True there, or call it without a mask"
                    .to_string(),
            );
        }
        let part = call.arguments.part;
        let masked_by = match part {
            0 => layer.mask(&masks, self.calls.len())?,
            _ => None,
        };
        Ok(PlannedCall {
            layer: call.layer,
            inputs: call.inputs.clone(),
            output: layer.part_shape(part, &shapes)?,
            shapes,
            arguments: call.arguments,
            reordered: false,
            masked_by,
        })
    }

    /// The call that gives a value; `None` for an input.
    pub(crate) fn call_of(&self, value: usize) -> Option<usize> {
        value.checked_sub(self.inputs.len())
    }

    pub(crate) fn shape(&self, value: usize) -> Shape {
        let call = self.call_of(value).and_then(|call| self.calls.get(call));
        match (call, self.inputs.get(value)) {
            (Some(call), _) => call.output,
            (None, input) => input.map_or(self.input(), |input| input.shape),
        }
    }

    /// The call of the embedding whose padding is left out of this value.
    fn mask(&self, value: usize) -> Option<usize> {
        let call = self.call_of(value)?;
        self.calls.get(call)?.masked_by
    }
}
