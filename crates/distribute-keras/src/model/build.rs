//! From planned layers and their weights to burn modules.

use burn::module::{Module, Param, ParamId, RunningState};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{LocalBatchNorm, SyncBatchNorm};

use super::layout::{channels_first_rows, depthwise, filters_first, matrix, row};
use crate::layers::{
    Attention, Conv2d, Dense, Embedding, Layer, LayerNorm, Normalization, Plain, PlainKind,
    SeparableConv2d, WindowOptions,
};
use crate::plan::PlannedLayer;
use crate::{Activation, LayerSpec, Padding, Regularizer, Weight, Windows};

/// The weights of one layer that are still to be used, and where they go.
struct Weights<'a> {
    left: std::vec::IntoIter<Weight>,
    device: &'a Device,
}

impl Weights<'_> {
    fn next(&mut self) -> Weight {
        // The number of weights has been checked; a plan and its layers have the same.
        self.left.next().unwrap_or(Weight {
            shape: vec![0],
            values: Vec::new(),
        })
    }

    fn optional(&mut self, is: bool) -> Option<Param<Tensor<1>>> {
        is.then(|| {
            let bias = row(self.next());
            self.trained(bias)
        })
    }

    fn trained<const D: usize>(&self, weight: Weight) -> Param<Tensor<D>> {
        Param::from_tensor(self.tensor(weight))
    }

    /// A weight that is trained, or ones or zeros that are not.
    fn or_constant(&mut self, is: bool, features: usize, constant: f32) -> Param<Tensor<1>> {
        match is {
            true => {
                let weight = self.next();
                self.trained(weight)
            }
            false => self.fixed(Weight {
                shape: vec![features],
                values: vec![constant; features],
            }),
        }
    }

    fn fixed(&self, weight: Weight) -> Param<Tensor<1>> {
        Param::initialized(ParamId::new(), self.tensor(weight))
    }

    fn tensor<const D: usize>(&self, weight: Weight) -> Tensor<D> {
        Tensor::from_data(TensorData::new(weight.values, weight.shape), self.device)
    }

    /// A convolution with these weights.
    fn convolution(
        &mut self,
        kernel: Weight,
        windows: WindowOptions,
        (groups, use_bias): (usize, bool),
        (activation, regularizer): (Activation, Option<Regularizer>),
    ) -> Conv2d {
        Conv2d {
            kernel: self.trained(kernel),
            bias: self.optional(use_bias),
            options: windows,
            groups,
            activation,
            regularizer,
        }
    }
}

/// The module of a layer that receives values of so many features, frozen if it is not trained.
pub(super) fn layer(
    planned: &PlannedLayer,
    features: usize,
    weights: Vec<Weight>,
    device: &Device,
) -> Layer {
    let layer = trained_layer(planned, features, weights, device);
    match planned.trainable {
        true => layer,
        false => layer.freeze(),
    }
}

fn trained_layer(
    planned: &PlannedLayer,
    features: usize,
    weights: Vec<Weight>,
    device: &Device,
) -> Layer {
    let mut weights = Weights {
        left: weights.into_iter(),
        device,
    };
    match &planned.spec {
        LayerSpec::Conv2D { .. } | LayerSpec::DepthwiseConv2D { .. } => {
            Layer::Conv2d(convolution(&planned.spec, features, &mut weights))
        }
        LayerSpec::SeparableConv2D { .. } => {
            Layer::SeparableConv2d(separable(&planned.spec, features, &mut weights))
        }
        LayerSpec::Dense {
            use_bias,
            activation,
            kernel_regularizer,
            ..
        } => {
            let kernel = channels_first_rows(weights.next(), planned.flattened);
            Layer::Dense(Dense {
                kernel: weights.trained(kernel),
                bias: weights.optional(*use_bias),
                activation: *activation,
                regularizer: *kernel_regularizer,
            })
        }
        LayerSpec::Embedding {
            mask_zero,
            embeddings_regularizer,
            ..
        } => {
            let embeddings = weights.next();
            Layer::Embedding(Embedding {
                embeddings: weights.trained(embeddings),
                mask_zero: *mask_zero,
                regularizer: *embeddings_regularizer,
            })
        }
        LayerSpec::MultiHeadAttention { .. } => {
            Layer::Attention(attention(&planned.spec, &mut weights))
        }
        LayerSpec::BatchNormalization { .. }
        | LayerSpec::LayerNormalization { .. }
        | LayerSpec::Normalization { .. } => normalization(&planned.spec, features, &mut weights),
        spec => Layer::Plain(Plain { kind: plain(spec) }),
    }
}

fn options(windows: &Windows) -> WindowOptions {
    WindowOptions {
        size: windows.kernel_size,
        strides: windows.strides,
        dilation: windows.dilation_rate,
        padding: windows.padding,
    }
}

/// A `DepthwiseConv2D` is a convolution with a group per channel.
fn convolution(spec: &LayerSpec, channels: usize, weights: &mut Weights<'_>) -> Conv2d {
    let kernel = weights.next();
    match spec {
        LayerSpec::DepthwiseConv2D {
            windows,
            use_bias,
            activation,
            depthwise_regularizer,
            ..
        } => weights.convolution(
            depthwise(kernel),
            options(windows),
            (channels, *use_bias),
            (*activation, *depthwise_regularizer),
        ),
        LayerSpec::Conv2D {
            windows,
            groups,
            use_bias,
            activation,
            kernel_regularizer,
            ..
        } => weights.convolution(
            filters_first(kernel),
            options(windows),
            (*groups, *use_bias),
            (*activation, *kernel_regularizer),
        ),
        _ => weights.convolution(kernel, POINT, (1, false), (Activation::Linear, None)),
    }
}

/// Windows of one place.
const POINT: WindowOptions = WindowOptions {
    size: [1, 1],
    strides: [1, 1],
    dilation: [1, 1],
    padding: Padding::Valid,
};

fn separable(spec: &LayerSpec, channels: usize, weights: &mut Weights<'_>) -> SeparableConv2d {
    let (first, second) = (weights.next(), weights.next());
    let (windows, use_bias, activation, regularizers) = match spec {
        LayerSpec::SeparableConv2D {
            windows,
            use_bias,
            activation,
            depthwise_regularizer,
            pointwise_regularizer,
            ..
        } => (
            options(windows),
            *use_bias,
            *activation,
            [*depthwise_regularizer, *pointwise_regularizer],
        ),
        _ => (POINT, false, Activation::Linear, [None, None]),
    };
    SeparableConv2d {
        depthwise: weights.convolution(
            depthwise(first),
            windows,
            (channels, false),
            (Activation::Linear, regularizers[0]),
        ),
        pointwise: weights.convolution(
            filters_first(second),
            POINT,
            (1, use_bias),
            (activation, regularizers[1]),
        ),
    }
}

fn attention(spec: &LayerSpec, weights: &mut Weights<'_>) -> Attention {
    let (heads, dropout, use_bias, regularizer) = match spec {
        LayerSpec::MultiHeadAttention {
            num_heads,
            dropout,
            use_bias,
            kernel_regularizer,
            ..
        } => (*num_heads, *dropout, *use_bias, *kernel_regularizer),
        _ => (1, 0.0, false, None),
    };
    // The kernel of the output has two axes of inputs, the others one.
    let mut projection = |inputs| {
        let kernel = matrix(weights.next(), inputs);
        Dense {
            kernel: weights.trained(kernel),
            bias: weights.optional(use_bias),
            activation: Activation::Linear,
            regularizer,
        }
    };
    Attention {
        query: projection(1),
        key: projection(1),
        value: projection(1),
        output: projection(2),
        heads,
        dropout,
    }
}

fn normalization(spec: &LayerSpec, features: usize, weights: &mut Weights<'_>) -> Layer {
    match spec {
        LayerSpec::BatchNormalization {
            synchronized: true, ..
        } => sync_batch_norm(spec, weights),
        LayerSpec::BatchNormalization {
            momentum,
            epsilon,
            beta,
            gamma,
            ..
        } => {
            let gamma = weights.or_constant(gamma.is_some(), features, 1.0);
            let beta = weights.or_constant(beta.is_some(), features, 0.0);
            let (mean, variance) = (weights.next(), weights.next());
            Layer::BatchNorm(LocalBatchNorm {
                gamma,
                beta,
                training: Param::from_bool(true),
                running_mean: RunningState::new(weights.tensor(mean)),
                running_var: RunningState::new(weights.tensor(variance)),
                // The part of the new statistics; Keras' is that of the old ones.
                momentum: 1.0 - momentum,
                epsilon: *epsilon,
            })
        }
        LayerSpec::LayerNormalization {
            epsilon,
            beta,
            gamma,
            ..
        } => Layer::LayerNorm(LayerNorm {
            gamma: weights.or_constant(gamma.is_some(), features, 1.0),
            beta: weights.or_constant(beta.is_some(), features, 0.0),
            epsilon: *epsilon,
        }),
        LayerSpec::Normalization {
            statistics: Some((mean, variance)),
            ..
        } => Layer::Normalization(Normalization {
            mean: weights.fixed(per_feature(mean, features)),
            variance: weights.fixed(per_feature(variance, features)),
        }),
        // The third weight counts what `adapt` has seen.
        _ => {
            let (mean, variance) = (weights.next(), weights.next());
            Layer::Normalization(Normalization {
                mean: weights.fixed(mean),
                variance: weights.fixed(variance),
            })
        }
    }
}

fn sync_batch_norm(spec: &LayerSpec, weights: &mut Weights<'_>) -> Layer {
    let (momentum, epsilon, scale, center) = match spec {
        LayerSpec::BatchNormalization {
            momentum,
            epsilon,
            beta,
            gamma,
            ..
        } => (*momentum, *epsilon, gamma.is_some(), beta.is_some()),
        _ => (0.99, 1e-3, false, false),
    };
    let (gamma, beta) = (weights.optional(scale), weights.optional(center));
    let (mean, variance) = (weights.next(), weights.next());
    Layer::SyncBatchNorm(SyncBatchNorm {
        gamma,
        beta,
        training: Param::from_bool(true),
        moving_mean: RunningState::new(weights.tensor(mean)),
        moving_variance: RunningState::new(weights.tensor(variance)),
        momentum,
        epsilon,
    })
}

/// Numbers of an option, one for all features or one each.
fn per_feature(values: &[f64], features: usize) -> Weight {
    let values = match *values {
        [one] => vec![one as f32; features],
        _ => values.iter().map(|x| *x as f32).collect(),
    };
    Weight {
        shape: vec![values.len()],
        values,
    }
}

fn plain(spec: &LayerSpec) -> PlainKind {
    let window = |size: &[usize; 2], strides: &[usize; 2], padding| WindowOptions {
        size: *size,
        strides: *strides,
        dilation: [1, 1],
        padding,
    };
    match spec {
        LayerSpec::MaxPooling2D {
            pool_size,
            strides,
            padding,
        } => PlainKind::MaxPooling2D(window(pool_size, strides, *padding)),
        LayerSpec::AveragePooling2D {
            pool_size,
            strides,
            padding,
        } => PlainKind::AveragePooling2D(window(pool_size, strides, *padding)),
        LayerSpec::GlobalAveragePooling2D { keepdims } => PlainKind::GlobalAveragePooling2D {
            keepdims: *keepdims,
        },
        LayerSpec::GlobalMaxPooling2D { keepdims } => PlainKind::GlobalMaxPooling2D {
            keepdims: *keepdims,
        },
        LayerSpec::GlobalAveragePooling1D => PlainKind::GlobalAveragePooling1D,
        LayerSpec::ZeroPadding2D { padding } => PlainKind::ZeroPadding2D(*padding),
        LayerSpec::Cropping2D { cropping } => PlainKind::Cropping2D(*cropping),
        LayerSpec::Flatten => PlainKind::Flatten,
        LayerSpec::Reshape { .. } => PlainKind::Reshape,
        LayerSpec::Dropout { rate, shared } => PlainKind::Dropout {
            rate: *rate,
            shared: shared.clone(),
        },
        LayerSpec::Rescaling { scale, offset } => PlainKind::Rescaling {
            scale: scale.clone(),
            offset: offset.clone(),
        },
        LayerSpec::Merge(merge) => PlainKind::Merge(*merge),
        LayerSpec::Activation(activation) => PlainKind::Activation(*activation),
        // Layers with weights are built elsewhere.
        _ => PlainKind::Activation(Activation::Linear),
    }
}
