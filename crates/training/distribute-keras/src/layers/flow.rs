//! What flows between the layers.

use burn::tensor::{DType, Device, Tensor};

use super::nd::{Nd, each_rank, with_rank};
use crate::{Activation, Shape};

/// The values of a batch. Images are `[batch, channels, height, width]`, volumes
/// `[batch, channels, depth, height, width]`.
#[derive(Debug, Clone)]
pub(crate) enum Flow {
    Flat(Tensor<2>),
    Sequence(Tensor<3>),
    Image(Tensor<4>),
    Volume(Tensor<5>),
    /// Any other number of axes, features last.
    Other(Nd),
}

/// What a layer gives: values, and which of the steps are padding.
#[derive(Debug, Clone)]
pub(crate) struct Value {
    pub(crate) flow: Flow,
    /// 1 for tokens and 0 for padding, `[batch, steps]`, behind an embedding with `mask_zero`.
    pub(crate) mask: Option<Tensor<2>>,
}

impl Value {
    /// Values without padding.
    pub(crate) fn of(flow: Flow) -> Self {
        Self { flow, mask: None }
    }

    /// Gives the values another type, if they are of another one.
    pub(crate) fn cast(&mut self, dtype: DType) {
        self.flow =
            each!(self.flow.clone(), x => if x.dtype() == dtype { x } else { x.cast(dtype) });
    }

    /// What becomes of a volume; a plan never puts a layer of volumes on another shape.
    pub(super) fn map_volume(self, volume: impl FnOnce(Tensor<5>) -> Flow) -> Self {
        match self.flow {
            Flow::Volume(x) => Self::of(volume(x)),
            _ => self,
        }
    }

    /// What becomes of an image, or of a sequence, which is an image of one row to the layers that
    /// take it; a plan never puts them on another shape.
    pub(super) fn map_image(self, image: impl FnOnce(Tensor<4>) -> Flow) -> Self {
        match self.flow {
            Flow::Image(x) => Self::of(image(x)),
            Flow::Sequence(x) => {
                let row = x.swap_dims(1, 2).unsqueeze_dim(2);
                Self::of(match image(row) {
                    Flow::Image(row) => Flow::Sequence(row.squeeze_dim::<3>(2).swap_dims(1, 2)),
                    other => other,
                })
            }
            _ => self,
        }
    }
}

/// Applies an expression to the tensor of whatever rank.
macro_rules! each {
    ($flow:expr, $x:ident => $y:expr) => {
        match $flow {
            Flow::Flat($x) => Flow::Flat($y),
            Flow::Sequence($x) => Flow::Sequence($y),
            Flow::Image($x) => Flow::Image($y),
            Flow::Volume($x) => Flow::Volume($y),
            Flow::Other(nd) => Flow::Other($crate::layers::nd::each_rank!(nd, $x => $y)),
        }
    };
}
pub(crate) use each;

impl Flow {
    /// Applies an activation over the axis that Keras calls the last one.
    pub(crate) fn activate(self, activation: Activation) -> Self {
        let features = self.feature_axis();
        each!(self, x => activation.apply(x, features))
    }

    /// The axis that Keras calls the last one.
    pub(crate) fn feature_axis(&self) -> usize {
        match self {
            Self::Flat(_) | Self::Image(_) | Self::Volume(_) => 1,
            Self::Sequence(_) => 2,
            Self::Other(nd) => nd.dims().len().saturating_sub(1),
        }
    }

    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Flat(x) => x.device(),
            Self::Sequence(x) => x.device(),
            Self::Image(x) => x.device(),
            Self::Volume(x) => x.device(),
            Self::Other(nd) => with_rank!(nd, x => x.device()),
        }
    }

    /// The values in the rows of a matrix, their features last: what a layer on the last axis
    /// takes. [`like`](Self::like) is the way back.
    pub(crate) fn into_rows(self) -> Tensor<2> {
        match self {
            Self::Flat(x) => x,
            Self::Sequence(x) => x.flatten(0, 1),
            Self::Image(x) => x.permute([0, 2, 3, 1]).flatten(0, 2),
            Self::Volume(x) => x.permute([0, 2, 3, 4, 1]).flatten(0, 3),
            Self::Other(nd) => {
                let features = nd.features();
                with_rank!(nd, x => rows(x, features))
            }
        }
    }

    /// The extents, as Keras has them: features last.
    pub(crate) fn keras_dims(&self) -> Vec<usize> {
        match self {
            Self::Flat(x) => x.dims().to_vec(),
            Self::Sequence(x) => x.dims().to_vec(),
            Self::Image(x) => {
                let [batch, channels, height, width] = x.dims();
                vec![batch, height, width, channels]
            }
            Self::Volume(x) => {
                let [batch, channels, depth, height, width] = x.dims();
                vec![batch, depth, height, width, channels]
            }
            Self::Other(nd) => nd.dims(),
        }
    }

    /// Rows in the places of `dims`, of which the features may be others.
    pub(crate) fn like(dims: &[usize], rows: Tensor<2>) -> Self {
        let features = rows.dims()[1];
        match *dims {
            [batch, steps, _] => Self::Sequence(rows.reshape([batch, steps, features])),
            [batch, height, width, _] => {
                let images = rows.reshape([batch, height, width, features]);
                Self::Image(images.permute([0, 3, 1, 2]))
            }
            [batch, depth, height, width, _] => {
                let volumes = rows.reshape([batch, depth, height, width, features]);
                Self::Volume(volumes.permute([0, 4, 1, 2, 3]))
            }
            [_, _] => Self::Flat(rows),
            _ => {
                let mut dims = dims.to_vec();
                if let Some(last) = dims.get_mut(1..).and_then(<[usize]>::last_mut) {
                    *last = features;
                }
                Nd::R2(rows).reshape(&dims).into_flow()
            }
        }
    }

    /// All values of an example in one row, in Keras' order if it is asked for.
    pub(crate) fn flatten(self, keras_order: bool) -> Tensor<2> {
        match self {
            Self::Flat(x) => x,
            Self::Sequence(x) => x.flatten(1, 2),
            Self::Image(x) if keras_order => x.permute([0, 2, 3, 1]).flatten(1, 3),
            Self::Image(x) => x.flatten(1, 3),
            Self::Volume(x) if keras_order => x.permute([0, 2, 3, 4, 1]).flatten(1, 4),
            Self::Volume(x) => x.flatten(1, 4),
            Self::Other(nd) => {
                let values: usize = nd.dims().iter().skip(1).product();
                with_rank!(nd, x => rows(x, values))
            }
        }
    }

    /// Examples of this shape from rows in Keras' order. For one channel or one place that is
    /// another view.
    pub(crate) fn from_examples<const D: usize>(x: Tensor<D>, shape: Shape) -> Self {
        let batch = x.dims()[0];
        match shape {
            Shape::Flat(n) => Self::Flat(x.reshape([batch, n])),
            Shape::Sequence(steps, features) => Self::Sequence(x.reshape([batch, steps, features])),
            Shape::Image(height, width, channels) if channels == 1 || height * width == 1 => {
                Self::Image(x.reshape([batch, channels, height, width]))
            }
            Shape::Image(height, width, channels) => {
                let images = x.reshape([batch, height, width, channels]);
                Self::Image(images.permute([0, 3, 1, 2]))
            }
            Shape::Volume(depth, height, width, channels) => {
                let volumes = x.reshape([batch, depth, height, width, channels]);
                Self::Volume(volumes.permute([0, 4, 1, 2, 3]))
            }
            Shape::Other(_) => {
                let all: usize = x.dims().iter().product();
                let dims = [vec![batch], shape.dims()].concat();
                Nd::R1(x.reshape([all])).reshape(&dims).into_flow()
            }
        }
    }

    /// `x * scale + offset`, with one number per feature.
    pub(crate) fn scale_features(self, scale: Tensor<1>, offset: Tensor<1>) -> Self {
        match self {
            Self::Flat(x) => Self::Flat(scaled(x, scale.unsqueeze(), offset.unsqueeze())),
            Self::Sequence(x) => Self::Sequence(scaled(x, scale.unsqueeze(), offset.unsqueeze())),
            Self::Image(x) => {
                let column = |v: Tensor<1>| {
                    let n = v.dims()[0];
                    v.reshape([1, n, 1, 1])
                };
                Self::Image(scaled(x, column(scale), column(offset)))
            }
            Self::Volume(x) => {
                let column = |v: Tensor<1>| {
                    let n = v.dims()[0];
                    v.reshape([1, n, 1, 1, 1])
                };
                Self::Volume(scaled(x, column(scale), column(offset)))
            }
            Self::Other(nd) => {
                Self::Other(each_rank!(nd, x => scaled(x, last(&scale), last(&offset))))
            }
        }
    }
}

impl Nd {
    /// Images and volumes get their channels last.
    pub(crate) fn of(flow: Flow) -> Self {
        match flow {
            Flow::Flat(x) => Self::R2(x),
            Flow::Sequence(x) => Self::R3(x),
            Flow::Image(x) => Self::R4(x.permute([0, 2, 3, 1])),
            Flow::Volume(x) => Self::R5(x.permute([0, 2, 3, 4, 1])),
            Flow::Other(nd) => nd,
        }
    }

    /// The way back.
    pub(crate) fn into_flow(self) -> Flow {
        match self {
            Self::R2(x) => Flow::Flat(x),
            Self::R3(x) => Flow::Sequence(x),
            Self::R4(x) => Flow::Image(x.permute([0, 3, 1, 2])),
            Self::R5(x) => Flow::Volume(x.permute([0, 4, 1, 2, 3])),
            other => Flow::Other(other),
        }
    }
}

/// All values in rows of this length.
fn rows<const D: usize>(x: Tensor<D>, features: usize) -> Tensor<2> {
    let all: usize = x.dims().iter().product();
    x.reshape([all / features.max(1), features])
}

/// Values per feature, for a tensor whose last axis is the features.
fn last<const D: usize>(values: &Tensor<1>) -> Tensor<D> {
    let mut dims = [1; D];
    dims[D - 1] = values.dims()[0];
    values.clone().reshape(dims)
}

/// In the type of `x`.
fn scaled<const D: usize>(x: Tensor<D>, scale: Tensor<D>, offset: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    x * scale.cast(dtype) + offset.cast(dtype)
}
