//! The models that come with the program.

use crate::layers::{Conv2D, Dense, Embedding, Flatten, GlobalAveragePooling1D, MaxPooling2D};
use crate::{Activation, Initializer, LayerSpec, ModelSpec, Padding, Regularizer, Windows};

/// Names and descriptions of the built-in models.
pub const BUILT_IN: [(&str, &str); 4] = [
    ("digits-cnn", "a small CNN for 8x8 images"),
    (
        "mnist-cnn",
        "the CNN of TensorFlow's custom training tutorial, for 28x28 images",
    ),
    ("mlp", "two hidden layers, for tables and images"),
    (
        "text",
        "mean of word embeddings, Dense 256, Dense 64, one output: two classes of text",
    ),
];

/// The L2 factor of `mnist-cnn`, from the tutorial.
const TUTORIAL_L2: f64 = 1e-5;
/// The size of a word's vector in `text`.
const WORD_DIMENSIONS: usize = 64;

/// The built-in model of this name.
///
/// `outputs` is the number of classes; `vocabulary` is the number of tokens of the `text` model,
/// which always has one output.
pub fn built_in(name: &str, outputs: usize, vocabulary: usize) -> Option<ModelSpec> {
    let layers = match name {
        "digits-cnn" => cnn([32, 64], Padding::Same, None, outputs),
        "mnist-cnn" => {
            let l2 = Regularizer {
                l1: 0.0,
                l2: TUTORIAL_L2,
            };
            cnn([32, 64], Padding::Valid, Some(l2), outputs)
        }
        "mlp" => vec![
            Flatten.into(),
            dense(64, Activation::Relu, None),
            dense(64, Activation::Relu, None),
            dense(outputs, Activation::Linear, None),
        ],
        "text" => vec![
            LayerSpec::Embedding(Embedding {
                input_dim: vocabulary,
                output_dim: WORD_DIMENSIONS,
                mask_zero: true,
                embeddings_initializer: Initializer::EMBEDDING_DEFAULT,
                embeddings_regularizer: None,
            }),
            GlobalAveragePooling1D { keepdims: false }.into(),
            dense(256, Activation::Relu, None),
            dense(64, Activation::Relu, None),
            dense(1, Activation::Sigmoid, None),
        ],
        _ => return None,
    };
    Some(ModelSpec::chain(name, layers))
}

/// Two convolutions with pools, one hidden layer.
fn cnn(
    filters: [usize; 2],
    padding: Padding,
    regularizer: Option<Regularizer>,
    outputs: usize,
) -> Vec<LayerSpec> {
    let conv = |filters| {
        LayerSpec::Conv2D(Conv2D {
            filters,
            windows: Windows {
                kernel_size: [3, 3],
                strides: [1, 1],
                padding,
                dilation_rate: [1, 1],
            },
            groups: 1,
            activation: Activation::Relu,
            use_bias: true,
            kernel_initializer: Initializer::GLOROT_UNIFORM,
            bias_initializer: Initializer::ZEROS,
            kernel_regularizer: regularizer,
        })
    };
    let pool = LayerSpec::MaxPooling2D(MaxPooling2D {
        pool_size: [2, 2],
        strides: [2, 2],
        padding: Padding::Valid,
    });
    vec![
        conv(filters[0]),
        pool.clone(),
        conv(filters[1]),
        pool,
        Flatten.into(),
        dense(64, Activation::Relu, regularizer),
        dense(outputs, Activation::Linear, regularizer),
    ]
}

fn dense(units: usize, activation: Activation, regularizer: Option<Regularizer>) -> LayerSpec {
    LayerSpec::Dense(Dense {
        units,
        activation,
        use_bias: true,
        kernel_initializer: Initializer::GLOROT_UNIFORM,
        bias_initializer: Initializer::ZEROS,
        kernel_regularizer: regularizer,
    })
}
