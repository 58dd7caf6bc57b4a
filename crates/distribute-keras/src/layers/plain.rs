//! Layers without parameters.

use burn::module::Module;
use burn::tensor::module::avg_pool2d;
use burn::tensor::ops::{AvgPoolOptions, MaxPoolOptions, PadMode};
use burn::tensor::{Device, Tensor};
use distribute_core::dropout;
use distribute_kernels::max_pool2d;
use rand::Rng;

use super::flow::{Flow, Value, constants, each};
use super::{Pass, WindowOptions};
use crate::{Activation, Merge, Shape};

/// A layer without parameters.
#[derive(Module, Debug)]
pub(crate) struct Plain {
    #[module(skip)]
    pub(crate) kind: PlainKind,
}

/// The layers without parameters.
#[derive(Debug, Clone)]
pub(crate) enum PlainKind {
    MaxPooling2D(WindowOptions),
    AveragePooling2D(WindowOptions),
    GlobalAveragePooling2D { keepdims: bool },
    GlobalMaxPooling2D { keepdims: bool },
    GlobalAveragePooling1D,
    ZeroPadding2D([(usize, usize); 2]),
    Cropping2D([(usize, usize); 2]),
    Flatten,
    Reshape,
    Dropout { rate: f64, shared: Vec<bool> },
    Rescaling { scale: Vec<f64>, offset: Vec<f64> },
    Activation(Activation),
    Merge(Merge),
}

impl PlainKind {
    pub(super) fn forward(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        let Value { flow, mask } = x;
        // Layers that do not know sequences let go of their padding.
        match (self, flow) {
            (Self::GlobalAveragePooling1D, Flow::Sequence(x)) => {
                Value::of(Flow::Flat(masked_mean(x, mask)))
            }
            (Self::Flatten, x) => Value::of(Flow::Flat(x.flatten(pass.reordered))),
            (Self::Reshape, x) => Value::of(reshape(x, pass.output)),
            (Self::Rescaling { scale, offset }, x) => Value::of(rescale(x, scale, offset)),
            (Self::Dropout { rate, shared }, x) => {
                let flow = match pass.training() {
                    Some(rng) if *rate > 0.0 => drop_out(x, *rate, shared, rng),
                    _ => x,
                };
                Value { flow, mask }
            }
            (Self::Activation(activation), x) => {
                let flow = match pass.without_activation {
                    true => x,
                    false => x.activate(*activation),
                };
                Value { flow, mask }
            }
            (_, Flow::Image(x)) => Value::of(self.of_image(x)),
            // A plan never puts the others on another shape.
            (_, flow) => Value { flow, mask },
        }
    }

    fn of_image(&self, x: Tensor<4>) -> Flow {
        match self {
            Self::MaxPooling2D(window) => {
                let options = MaxPoolOptions::new(window.size)
                    .with_stride(window.strides)
                    .with_padding_pairs(window.pairs(&x));
                Flow::Image(max_pool2d(x, options))
            }
            Self::AveragePooling2D(window) => {
                let options = AvgPoolOptions::new(window.size)
                    .with_stride(window.strides)
                    .with_padding_pairs(window.pairs(&x))
                    .with_count_include_pad(false);
                Flow::Image(avg_pool2d(x, options))
            }
            Self::GlobalAveragePooling2D { keepdims } => {
                global_pool(x, *keepdims, |places| places.mean_dim(2))
            }
            Self::GlobalMaxPooling2D { keepdims } => {
                global_pool(x, *keepdims, |places| places.max_dim(2))
            }
            Self::ZeroPadding2D(sides) => Flow::Image(x.pad(*sides, PadMode::Constant(0.0))),
            Self::Cropping2D([rows, columns]) => {
                let [batch, channels, height, width] = x.dims();
                Flow::Image(x.slice([
                    0..batch,
                    0..channels,
                    rows.0..height - rows.1,
                    columns.0..width - columns.1,
                ]))
            }
            _ => Flow::Image(x),
        }
    }
}

/// What `pool` makes of all places of a channel: `[batch, channels, places]`.
fn global_pool(x: Tensor<4>, keepdims: bool, pool: impl Fn(Tensor<3>) -> Tensor<3>) -> Flow {
    let [batch, channels, height, width] = x.dims();
    let pooled = pool(x.reshape([batch, channels, height * width]));
    match keepdims {
        true => Flow::Image(pooled.reshape([batch, channels, 1, 1])),
        false => Flow::Flat(pooled.reshape([batch, channels])),
    }
}

/// The values in Keras' order, as examples of another shape.
fn reshape(x: Flow, shape: Shape) -> Flow {
    Flow::from_examples(x.flatten(true), shape)
}

fn rescale(x: Flow, scale: &[f64], offset: &[f64]) -> Flow {
    if let (&[scale], &[offset]) = (scale, offset) {
        return each!(x, x => match offset == 0.0 {
            true => x.mul_scalar(scale),
            false => x.mul_scalar(scale).add_scalar(offset),
        });
    }
    let features = scale.len().max(offset.len());
    let device: Device = x.device().without_autodiff();
    let per_feature = |values: &[f64]| match *values {
        [one] => constants(&vec![one; features], &device),
        _ => constants(values, &device),
    };
    x.scale_features(per_feature(scale), per_feature(offset))
}

/// With a mask of `rng`; in a compiled step the program draws it.
fn drop_out(x: Flow, rate: f64, shared: &[bool], rng: &mut dyn Rng) -> Flow {
    if shared.is_empty() {
        return each!(x, x => dropout(x, rate, rng));
    }
    // Of Keras' axes, to those of the tensor.
    let shared = match (&x, shared) {
        (Flow::Image(_), &[batch, height, width, channels]) => {
            vec![batch, channels, height, width]
        }
        _ => shared.to_vec(),
    };
    each!(x, x => {
        let mut dims = x.dims();
        for (dim, shared) in dims.iter_mut().zip(shared) {
            if shared {
                *dim = 1;
            }
        }
        let device = x.device().without_autodiff();
        let ones = Tensor::ones(dims, (&device, x.dtype()));
        x * dropout(ones, rate, rng)
    })
}

/// The mean over the steps that are not padding. A text of padding alone has the mean 0.
fn masked_mean(x: Tensor<3>, mask: Option<Tensor<2>>) -> Tensor<2> {
    let [batch, _, features] = x.dims();
    let Some(mask) = mask else {
        return x.mean_dim(1).reshape([batch, features]);
    };
    let count = mask.clone().sum_dim(1).clamp_min(1.0);
    let sum = (x * mask.unsqueeze_dim::<3>(2)).sum_dim(1);
    sum.reshape([batch, features]) / count
}
