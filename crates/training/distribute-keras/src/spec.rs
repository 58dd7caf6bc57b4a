//! What a model is: plain data, without a tensor.

use std::collections::BTreeSet;

use crate::names::Names;
use crate::{Arguments, Constraint, LayerSpec, ModelError, Regularizer};

/// The group in which a file of Keras has the layers of a model.
pub(crate) const SAVED_LAYERS: &str = "layers";

/// A model: a name, its inputs, the layers, how they are called, and its outputs.
///
/// A list of layers that feed each other is the simplest graph: [`ModelSpec::chain`].
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// What messages call it: the name of a built-in model, or the file's.
    pub name: String,
    /// What the model receives, in the order of Keras' `model.inputs`.
    pub inputs: Vec<ModelInput>,
    /// Every layer once, in the order of Keras' `model.layers`, which is the order of its weights.
    /// The layers of a model inside the model stand where that model stands.
    pub layers: Vec<NamedLayer>,
    /// The calls of the layers; each receives values that are there before it.
    pub calls: Vec<Call>,
    /// What the model returns, in the order of Keras' `model.outputs`.
    pub outputs: Vec<ModelOutput>,
}

/// An input of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInput {
    /// The name of its `InputLayer`.
    pub name: String,
    /// The shape of one example, channels last; `None` for an axis of any size. A model that was
    /// written before it was built has none at all.
    pub shape: Option<Vec<Option<usize>>>,
    /// Whether it is texts: see [`ModelSpec::text_input`].
    pub is_text: bool,
}

/// An output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelOutput {
    /// Its key, if the model returns a dictionary, else the name of the layer that gives it.
    pub name: String,
    /// Which value it is, as in [`Call::inputs`].
    pub value: usize,
}

/// A layer and its name.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedLayer {
    /// Its name in the model; the name of a layer inside of another model begins with `MODEL/`.
    pub name: String,
    /// The layer.
    pub spec: LayerSpec,
    /// Whether it is trained. The weights of a layer that is not (Keras: `trainable=False`, of the
    /// layer or of a model that it stands in) stay as they are, and a `BatchNormalization` infers
    /// even while the model trains.
    pub trainable: bool,
    /// The group of its weights in a `.weights.h5` file of Keras: `layers/dense_1` is the second
    /// `Dense` layer of the model, whatever its name is, and `layers/functional/layers/dense` one
    /// of a model inside.
    pub saved_as: String,
    /// The options that any layer may have.
    pub rules: LayerRules,
}

/// Losses and constraints that a layer may have beside its own options.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LayerRules {
    /// Losses on weights: the weight's name, such as `bias`, and the loss.
    pub regularizers: Vec<(&'static str, Regularizer)>,
    /// The loss on what the layer gives, for each example (Keras: `activity_regularizer`).
    pub activity: Option<Regularizer>,
    /// Constraints on weights, each with the weight's name: they hold behind every update of an
    /// optimizer that [`Model::constrained`](crate::Model::constrained) gives.
    pub constraints: Vec<(&'static str, Constraint)>,
}

/// One call of a layer. A layer that is called several times has its weights once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The layer's position in [`ModelSpec::layers`].
    pub layer: usize,
    /// What it receives: the first values are the model's inputs, then come the outputs of the
    /// calls. In a model of one input, value 0 is the input and value `n` the output of call
    /// `n - 1`.
    pub inputs: Vec<usize>,
    /// The arguments of the call.
    pub arguments: Arguments,
}

impl ModelSpec {
    /// A list of layers that feed each other (`keras.Sequential`).
    ///
    /// They get the names that Keras gives to layers without one: `conv2d`, `conv2d_1` and so on.
    pub fn chain(name: impl Into<String>, layers: Vec<LayerSpec>) -> Self {
        let mut names = Names::default();
        let named = layers.into_iter().map(|spec| {
            let name = names.next(spec.class());
            NamedLayer {
                saved_as: format!("{SAVED_LAYERS}/{name}"),
                name,
                spec,
                trainable: true,
                rules: LayerRules::default(),
            }
        });
        let layers: Vec<_> = named.collect();
        let output = ModelOutput {
            name: layers
                .last()
                .map_or("input", |layer| &layer.name)
                .to_string(),
            value: layers.len(),
        };
        let calls = 0..layers.len();
        let calls = calls.map(|layer| Call {
            layer,
            inputs: vec![layer],
            arguments: Arguments::default(),
        });
        Self {
            name: name.into(),
            inputs: vec![ModelInput {
                name: "input".to_string(),
                shape: None,
                is_text: false,
            }],
            calls: calls.collect(),
            layers,
            outputs: vec![output],
        }
    }

    /// Puts this L2 factor on every kernel of a convolution and a `Dense` layer, in place of what
    /// it has. 0 takes the loss away.
    #[must_use]
    pub fn with_l2(mut self, l2: f64) -> Self {
        let regularizer = (l2 != 0.0).then_some(Regularizer { l1: 0.0, l2 });
        for layer in &mut self.layers {
            layer.spec.layer_mut().set_regularizer(regularizer);
        }
        self
    }

    /// The number of tokens, if the model's first input is tokens: numbers from 0 up to, but not,
    /// this.
    pub fn tokens(&self) -> Option<usize> {
        self.tokens_of(0)
    }

    /// The number of tokens, if the input of this position is tokens, see
    /// [`tokens`](Self::tokens).
    pub fn tokens_of(&self, input: usize) -> Option<usize> {
        // What a layer makes of texts is what the model receives.
        let is_text = self.inputs.get(input).is_some_and(|input| input.is_text);
        let first = self
            .calls
            .iter()
            .position(|call| call.inputs.contains(&input));
        let received = match first.filter(|_| is_text) {
            Some(reader) => self.inputs.len() + reader,
            None => input,
        };
        let reads = |call: &&Call| call.inputs.contains(&received);
        let readers = self.calls.iter().filter(reads);
        let tokens = readers.filter_map(|call| self.layers.get(call.layer)?.spec.layer().tokens());
        tokens.min()
    }

    /// Refuses a model without inputs or outputs, calls of layers that are not there, or of values
    /// that come later, and layers that are never called.
    pub(crate) fn check_calls(&self) -> Result<(), ModelError> {
        let called: BTreeSet<usize> = self.calls.iter().map(|call| call.layer).collect();
        let mut layers = (0..).zip(&self.layers);
        if let Some((_, unused)) = layers.find(|(index, _)| !called.contains(index)) {
            return Err(ModelError::Graph {
                origin: self.name.clone(),
                layer: unused.name.clone(),
                what: "nothing that the model returns depends on it; leave it out".to_string(),
            });
        }
        for (index, call) in self.calls.iter().enumerate() {
            let name = self.layers.get(call.layer).map(|layer| layer.name.clone());
            let there = self.inputs.len() + index;
            let late = call.inputs.iter().find(|input| **input >= there);
            let what = match (&name, late) {
                (None, _) => format!(
                    "call {index} is of layer {}, which is not there",
                    call.layer
                ),
                (_, Some(late)) => format!("call {index} receives value {late} before it is there"),
                _ if call.inputs.is_empty() => format!("call {index} receives nothing"),
                _ => continue,
            };
            return Err(ModelError::Graph {
                origin: self.name.clone(),
                layer: name.unwrap_or_default(),
                what,
            });
        }
        self.check_ends()
    }

    fn check_ends(&self) -> Result<(), ModelError> {
        let values = self.inputs.len() + self.calls.len();
        let late = self.outputs.iter().find(|output| output.value >= values);
        let (end, what) = match late {
            Some(late) => (
                late.name.as_str(),
                format!(
                    "the output is value {} of {values}, which is not there",
                    late.value
                ),
            ),
            None if self.inputs.is_empty() => ("", "the model has no input".to_string()),
            None if self.outputs.is_empty() => ("", "the model has no output".to_string()),
            None => return Ok(()),
        };
        Err(ModelError::Graph {
            origin: self.name.clone(),
            layer: end.to_string(),
            what,
        })
    }
}
