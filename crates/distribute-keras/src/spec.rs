//! What a model is: plain data, without a tensor.

use crate::{Activation, Initializer};

/// A model: a name, the shape of one example if it is known, and the layers in order.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// What messages call it: the name of a built-in model, or the file's.
    pub name: String,
    /// The shape of one example, channels last; `None` for an axis of any size. A model that was
    /// written before it was built has none at all.
    pub input_shape: Option<Vec<Option<usize>>>,
    /// The layers.
    pub layers: Vec<LayerSpec>,
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

/// One layer, with the options of the Keras class of the same name.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum LayerSpec {
    /// `keras.layers.Conv2D`.
    Conv2D {
        /// The number of output channels.
        filters: usize,
        /// Rows and columns of the kernel.
        kernel_size: [usize; 2],
        /// Steps between windows.
        strides: [usize; 2],
        /// What happens at the borders.
        padding: Padding,
        /// Steps between the kernel's elements.
        dilation_rate: [usize; 2],
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
    GlobalAveragePooling2D,
    /// `keras.layers.GlobalAveragePooling1D`: the mean over the sequence, without its padding.
    GlobalAveragePooling1D,
    /// `keras.layers.Flatten`.
    Flatten,
    /// `keras.layers.Dropout`.
    Dropout {
        /// The fraction of the inputs that are set to zero in training, in `[0, 1)`.
        rate: f64,
    },
    /// `keras.layers.Activation` and the layers named after one function.
    Activation(Activation),
}

impl LayerSpec {
    /// Keras' name of the class.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Conv2D { .. } => "Conv2D",
            Self::Dense { .. } => "Dense",
            Self::Embedding { .. } => "Embedding",
            Self::MaxPooling2D { .. } => "MaxPooling2D",
            Self::AveragePooling2D { .. } => "AveragePooling2D",
            Self::GlobalAveragePooling2D => "GlobalAveragePooling2D",
            Self::GlobalAveragePooling1D => "GlobalAveragePooling1D",
            Self::Flatten => "Flatten",
            Self::Dropout { .. } => "Dropout",
            Self::Activation(_) => "Activation",
        }
    }

    /// The loss on this layer's kernel or vectors.
    pub fn regularizer(&self) -> Option<Regularizer> {
        match self {
            Self::Conv2D {
                kernel_regularizer, ..
            }
            | Self::Dense {
                kernel_regularizer, ..
            } => *kernel_regularizer,
            Self::Embedding {
                embeddings_regularizer,
                ..
            } => *embeddings_regularizer,
            _ => None,
        }
    }
}

impl ModelSpec {
    /// Puts this L2 factor on every kernel of a `Conv2D` and `Dense` layer, in place of what it
    /// has. 0 takes the loss away.
    #[must_use]
    pub fn with_l2(mut self, l2: f64) -> Self {
        let regularizer = (l2 != 0.0).then_some(Regularizer { l1: 0.0, l2 });
        for layer in &mut self.layers {
            if let LayerSpec::Conv2D {
                kernel_regularizer, ..
            }
            | LayerSpec::Dense {
                kernel_regularizer, ..
            } = layer
            {
                *kernel_regularizer = regularizer;
            }
        }
        self
    }
}
