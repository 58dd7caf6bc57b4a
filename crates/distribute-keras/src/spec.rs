//! What a model is: plain data, without a tensor.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Activation, Initializer, ModelError};

/// A model: a name, its inputs, the layers, how they are called, and its outputs.
///
/// A list of layers that feed each other is the simplest graph: [`ModelSpec::chain`].
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// What messages call it: the name of a built-in model, or the file's.
    pub name: String,
    /// What the model receives, in the order of Keras' `model.inputs`.
    pub inputs: Vec<ModelInput>,
    /// Every layer once, in the order of Keras' `model.layers`, which is that of its weights. The
    /// layers of a model inside the model stand where that model stands.
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
    /// Its name in the model; that of a layer inside of another model begins with `MODEL/`.
    pub name: String,
    /// The layer.
    pub spec: LayerSpec,
    /// Whether it is trained. The weights of a layer that is not (Keras: `trainable=False`, of the
    /// layer or of a model that it stands in) stay as they are, and a `BatchNormalization` infers
    /// even while the model trains.
    pub trainable: bool,
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

/// The arguments of a call beside its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arguments {
    /// Keras' `training=False`: the layer infers even while the model trains.
    pub inference: bool,
    /// `use_causal_mask=True` of an attention: no step sees a later one.
    pub causal: bool,
    /// Keras' `mask`, which must be the padding that an `Embedding` with `mask_zero` leaves out.
    pub masked: bool,
}

/// How a convolution or pool treats the borders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Padding {
    /// Only windows that lie inside.
    #[default]
    Valid,
    /// As many windows as the input has positions, divided by the stride, rounded up. The odd
    /// row or column of padding goes to the end.
    Same,
}

/// A loss on a kernel: `l1 * sum(|w|) + l2 * sum(w^2)` (Keras: `keras.regularizers.L1L2`).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Regularizer {
    /// The factor of the absolute values.
    pub l1: f64,
    /// The factor of the squares.
    pub l2: f64,
}

/// How several values become one, element by element with broadcasting, or side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Merge {
    /// `keras.layers.Add`.
    Add,
    /// `keras.layers.Subtract`, of two values.
    Subtract,
    /// `keras.layers.Multiply`.
    Multiply,
    /// `keras.layers.Average`.
    Average,
    /// `keras.layers.Maximum`.
    Maximum,
    /// `keras.layers.Minimum`.
    Minimum,
    /// `keras.layers.Concatenate`.
    Concatenate {
        /// The axis, as Keras counts them: 0 is the batch, -1 the last one.
        axis: i64,
    },
}

/// The windows of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Rows and columns of the kernel.
    pub kernel_size: [usize; 2],
    /// Steps between windows.
    pub strides: [usize; 2],
    /// What happens at the borders.
    pub padding: Padding,
    /// Steps between the kernel's elements.
    pub dilation_rate: [usize; 2],
}

/// One layer, with the options of the Keras class of the same name.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum LayerSpec {
    /// `keras.layers.Conv2D`.
    Conv2D {
        /// The number of output channels.
        filters: usize,
        /// The windows.
        windows: Windows,
        /// Into how many groups the channels are split.
        groups: usize,
        /// Applied to the result.
        activation: Activation,
        /// Whether a bias per channel is added.
        use_bias: bool,
        /// How the kernel starts.
        kernel_initializer: Initializer,
        /// How the bias starts.
        bias_initializer: Initializer,
        /// The loss on the kernel.
        kernel_regularizer: Option<Regularizer>,
    },
    /// `keras.layers.DepthwiseConv2D`: a convolution of every channel by itself.
    DepthwiseConv2D {
        /// The windows.
        windows: Windows,
        /// How many channels every channel becomes.
        depth_multiplier: usize,
        /// Applied to the result.
        activation: Activation,
        /// Whether a bias per channel is added.
        use_bias: bool,
        /// How the kernel starts.
        depthwise_initializer: Initializer,
        /// How the bias starts.
        bias_initializer: Initializer,
        /// The loss on the kernel.
        depthwise_regularizer: Option<Regularizer>,
    },
    /// `keras.layers.SeparableConv2D`: a convolution of every channel by itself, then one of 1 x 1
    /// that mixes them.
    SeparableConv2D {
        /// The number of output channels.
        filters: usize,
        /// The windows of the first convolution.
        windows: Windows,
        /// How many channels every channel becomes between the two.
        depth_multiplier: usize,
        /// Applied to the result.
        activation: Activation,
        /// Whether a bias per channel is added at the end.
        use_bias: bool,
        /// How the first kernel starts.
        depthwise_initializer: Initializer,
        /// How the second kernel starts.
        pointwise_initializer: Initializer,
        /// How the bias starts.
        bias_initializer: Initializer,
        /// The loss on the first kernel.
        depthwise_regularizer: Option<Regularizer>,
        /// The loss on the second kernel.
        pointwise_regularizer: Option<Regularizer>,
    },
    /// `keras.layers.Dense`, on the last axis.
    Dense {
        /// The number of outputs.
        units: usize,
        /// Applied to the result.
        activation: Activation,
        /// Whether a bias per output is added.
        use_bias: bool,
        /// How the kernel starts.
        kernel_initializer: Initializer,
        /// How the bias starts.
        bias_initializer: Initializer,
        /// The loss on the kernel.
        kernel_regularizer: Option<Regularizer>,
    },
    /// `keras.layers.Embedding`: one vector per token.
    Embedding {
        /// The number of tokens, the padding included.
        input_dim: usize,
        /// The length of a vector.
        output_dim: usize,
        /// Whether token 0 is padding that a mean leaves out.
        mask_zero: bool,
        /// How the vectors start.
        embeddings_initializer: Initializer,
        /// The loss on the vectors.
        embeddings_regularizer: Option<Regularizer>,
    },
    /// `keras.layers.MultiHeadAttention`, of a query and a value, or a query, a value and a key.
    MultiHeadAttention {
        /// The number of heads.
        num_heads: usize,
        /// The length of a head's queries and keys.
        key_dim: usize,
        /// The length of a head's values.
        value_dim: usize,
        /// The fraction of the attention that is set to zero in training.
        dropout: f64,
        /// Whether the four projections have biases.
        use_bias: bool,
        /// The length of the outputs; that of the queries by default.
        output_shape: Option<usize>,
        /// How the kernels start.
        kernel_initializer: Initializer,
        /// How the biases start.
        bias_initializer: Initializer,
        /// The loss on the four kernels.
        kernel_regularizer: Option<Regularizer>,
    },
    /// `keras.layers.BatchNormalization`.
    BatchNormalization {
        /// The axis of the features, as Keras counts them. It must be the last one.
        axis: i64,
        /// Whether its statistics are those of the batches of all replicas
        /// ([`SyncBatchNorm`](distribute_core::SyncBatchNorm)).
        synchronized: bool,
        /// What the moving statistics keep of themselves at every step.
        momentum: f64,
        /// Added to the variance.
        epsilon: f64,
        /// How the shifts start; `None` without `center`.
        beta: Option<Initializer>,
        /// How the factors start; `None` without `scale`.
        gamma: Option<Initializer>,
        /// How the moving mean starts.
        moving_mean_initializer: Initializer,
        /// How the moving variance starts.
        moving_variance_initializer: Initializer,
    },
    /// `keras.layers.LayerNormalization`.
    LayerNormalization {
        /// The axis that is normalized, as Keras counts them. It must be the last one.
        axis: i64,
        /// Added to the variance.
        epsilon: f64,
        /// How the shifts start; `None` without `center`.
        beta: Option<Initializer>,
        /// How the factors start; `None` without `scale`.
        gamma: Option<Initializer>,
    },
    /// `keras.layers.Normalization`: `(x - mean) / sqrt(variance)` per feature.
    Normalization {
        /// The axis of the features, as Keras counts them. It must be the last one.
        axis: i64,
        /// Mean and variance; without them they are weights, which `adapt` computed.
        statistics: Option<(Vec<f64>, Vec<f64>)>,
    },
    /// `keras.layers.Rescaling`: `x * scale + offset`.
    Rescaling {
        /// The factor: one, or one per feature.
        scale: Vec<f64>,
        /// What is added: one number, or one per feature.
        offset: Vec<f64>,
    },
    /// `keras.layers.MaxPooling2D`.
    MaxPooling2D {
        /// Rows and columns of a window.
        pool_size: [usize; 2],
        /// Steps between windows.
        strides: [usize; 2],
        /// What happens at the borders; padding is never the largest value.
        padding: Padding,
    },
    /// `keras.layers.AveragePooling2D`.
    AveragePooling2D {
        /// Rows and columns of a window.
        pool_size: [usize; 2],
        /// Steps between windows.
        strides: [usize; 2],
        /// What happens at the borders; padding does not count in the average.
        padding: Padding,
    },
    /// `keras.layers.GlobalAveragePooling2D`: the mean of every channel.
    GlobalAveragePooling2D {
        /// Whether the result is an image of one place.
        keepdims: bool,
    },
    /// `keras.layers.GlobalMaxPooling2D`: the largest value of every channel.
    GlobalMaxPooling2D {
        /// Whether the result is an image of one place.
        keepdims: bool,
    },
    /// `keras.layers.GlobalAveragePooling1D`: the mean over the sequence, without its padding.
    GlobalAveragePooling1D,
    /// `keras.layers.ZeroPadding2D`.
    ZeroPadding2D {
        /// Rows before and after, columns before and after.
        padding: [(usize, usize); 2],
    },
    /// `keras.layers.Cropping2D`.
    Cropping2D {
        /// Rows at the start and the end, columns at the start and the end.
        cropping: [(usize, usize); 2],
    },
    /// `keras.layers.Flatten`.
    Flatten,
    /// `keras.layers.Reshape`.
    Reshape {
        /// The extents; `None` for the one that follows from the others.
        target_shape: Vec<Option<usize>>,
    },
    /// `keras.layers.Dropout` and `SpatialDropout2D`.
    Dropout {
        /// The fraction of the inputs that are set to zero in training, in `[0, 1)`.
        rate: f64,
        /// Whether the mask is the same along an axis, the batch first (Keras: `noise_shape`).
        /// Empty: along none.
        shared: Vec<bool>,
    },
    /// `keras.layers.Activation` and the layers named after one function.
    Activation(Activation),
    /// `keras.layers.Add`, `Concatenate` and the like.
    Merge(Merge),
}

impl LayerSpec {
    /// Keras' name of the class.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Conv2D { .. } => "Conv2D",
            Self::DepthwiseConv2D { .. } => "DepthwiseConv2D",
            Self::SeparableConv2D { .. } => "SeparableConv2D",
            Self::Dense { .. } => "Dense",
            Self::Embedding { .. } => "Embedding",
            Self::MultiHeadAttention { .. } => "MultiHeadAttention",
            Self::BatchNormalization { .. } => "BatchNormalization",
            Self::LayerNormalization { .. } => "LayerNormalization",
            Self::Normalization { .. } => "Normalization",
            Self::Rescaling { .. } => "Rescaling",
            Self::MaxPooling2D { .. } => "MaxPooling2D",
            Self::AveragePooling2D { .. } => "AveragePooling2D",
            Self::GlobalAveragePooling2D { .. } => "GlobalAveragePooling2D",
            Self::GlobalMaxPooling2D { .. } => "GlobalMaxPooling2D",
            Self::GlobalAveragePooling1D => "GlobalAveragePooling1D",
            Self::ZeroPadding2D { .. } => "ZeroPadding2D",
            Self::Cropping2D { .. } => "Cropping2D",
            Self::Flatten => "Flatten",
            Self::Reshape { .. } => "Reshape",
            Self::Dropout { .. } => "Dropout",
            Self::Activation(_) => "Activation",
            Self::Merge(merge) => merge.class(),
        }
    }

    /// The function that the layer applies last.
    pub(crate) fn activation(&self) -> Activation {
        match self {
            Self::Conv2D { activation, .. }
            | Self::DepthwiseConv2D { activation, .. }
            | Self::SeparableConv2D { activation, .. }
            | Self::Dense { activation, .. }
            | Self::Activation(activation) => *activation,
            _ => Activation::Linear,
        }
    }
}

impl Merge {
    fn class(self) -> &'static str {
        match self {
            Self::Add => "Add",
            Self::Subtract => "Subtract",
            Self::Multiply => "Multiply",
            Self::Average => "Average",
            Self::Maximum => "Maximum",
            Self::Minimum => "Minimum",
            Self::Concatenate { .. } => "Concatenate",
        }
    }
}

impl ModelSpec {
    /// A list of layers that feed each other (`keras.Sequential`).
    ///
    /// They get the names that Keras gives to layers without one: `conv2d`, `conv2d_1` and so on.
    pub fn chain(name: impl Into<String>, layers: Vec<LayerSpec>) -> Self {
        let mut names = Names::default();
        let named = layers.into_iter().map(|spec| NamedLayer {
            name: names.next(spec.class()),
            spec,
            trainable: true,
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
            match &mut layer.spec {
                LayerSpec::Conv2D {
                    kernel_regularizer: kernel,
                    ..
                }
                | LayerSpec::DepthwiseConv2D {
                    depthwise_regularizer: kernel,
                    ..
                }
                | LayerSpec::Dense {
                    kernel_regularizer: kernel,
                    ..
                } => *kernel = regularizer,
                LayerSpec::SeparableConv2D {
                    depthwise_regularizer,
                    pointwise_regularizer,
                    ..
                } => {
                    *depthwise_regularizer = regularizer;
                    *pointwise_regularizer = regularizer;
                }
                _ => {}
            }
        }
        self
    }

    /// The number of tokens, if the model's first input is tokens: numbers from 0 up to, but not,
    /// this.
    pub fn tokens(&self) -> Option<usize> {
        let readers = self.calls.iter().filter(|call| call.inputs.contains(&0));
        let tokens = readers.filter_map(|call| match &self.layers.get(call.layer)?.spec {
            LayerSpec::Embedding { input_dim, .. } => Some(*input_dim),
            _ => None,
        });
        tokens.min()
    }

    /// Refuses a model without inputs or outputs, calls of layers that are not there, or of values
    /// that come later, and layers that nobody calls.
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

/// The names that Keras gives to layers without one.
#[derive(Default)]
pub(crate) struct Names(BTreeMap<String, usize>);

impl Names {
    /// The next name for a layer of this class: `MaxPooling2D` is `max_pooling2d`, then
    /// `max_pooling2d_1`.
    pub(crate) fn next(&mut self, class: &str) -> String {
        let mut name = String::new();
        let mut before = '_';
        for (index, letter) in class.char_indices() {
            let next = class[index + letter.len_utf8()..].chars().next();
            let starts = letter.is_uppercase()
                && (before.is_lowercase()
                    || (before != '_' && next.is_some_and(char::is_lowercase)));
            if starts && index > 0 {
                name.push('_');
            }
            name.extend(letter.to_lowercase());
            before = letter;
        }
        let count = self.0.entry(name.clone()).or_default();
        *count += 1;
        match *count {
            1 => name,
            n => format!("{name}_{}", n - 1),
        }
    }
}
