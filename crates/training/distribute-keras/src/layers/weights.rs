//! The weights of a layer: their names, shapes and how they start, and the tensors they become.

use std::borrow::Cow;
use std::ops::Range;

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};

use super::layout::row;
use crate::{Initializer, Weight};

/// One weight of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedWeight {
    /// Keras' name of it in its layer: `kernel`, or `query/kernel`.
    pub name: Cow<'static, str>,
    /// Its shape in Keras' layout.
    pub shape: Vec<usize>,
    /// How it starts.
    pub initializer: Initializer,
    /// The elements that start as 1 whatever the initializer says: the bias of an LSTM's forget
    /// gate.
    pub ones: Range<usize>,
    /// Whether a layer that is trained trains it; statistics are not.
    pub trained: bool,
}

impl PlannedWeight {
    /// The weight as it starts; `stream` is its number in the model.
    pub fn start(&self, seed: u64, stream: u64) -> Weight {
        let mut weight = self.initializer.draw(&self.shape, seed, stream);
        if let Some(ones) = weight.values.get_mut(self.ones.clone()) {
            ones.fill(1.0);
        }
        weight
    }

    /// The number of its values.
    pub fn elements(&self) -> usize {
        let sizes = self.shape.iter().copied();
        sizes.fold(1, usize::saturating_mul)
    }
}

/// A weight that is trained, if there is something that it starts with.
pub(super) fn weight(
    name: impl Into<Cow<'static, str>>,
    shape: &[usize],
    initializer: impl Into<Option<Initializer>>,
) -> Option<PlannedWeight> {
    Some(PlannedWeight {
        name: name.into(),
        shape: shape.to_vec(),
        initializer: initializer.into()?,
        ones: 0..0,
        trained: true,
    })
}

/// A weight that is not trained.
pub(super) fn fixed(
    name: &'static str,
    shape: &[usize],
    initializer: Initializer,
) -> Option<PlannedWeight> {
    let trained = false;
    weight(name, shape, initializer).map(|weight| PlannedWeight { trained, ..weight })
}

/// Numbers of an option, one for all features or one each.
pub(super) fn per_feature(values: &[f64], features: usize) -> Weight {
    row(match *values {
        [one] => vec![one as f32; features],
        _ => values.iter().map(|x| *x as f32).collect(),
    })
}

/// A tensor of these values.
pub(super) fn tensor<const D: usize>(weight: Weight, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(weight.values, weight.shape), device)
}

/// The values of one layer's weights that are still to be used, and the input that the layer is
/// built for.
pub(crate) struct Weights<'a> {
    pub(crate) left: std::vec::IntoIter<Weight>,
    pub(crate) device: &'a Device,
    /// The features of the layer's input.
    pub(crate) features: usize,
    /// For a `Dense` layer behind a flattened image: that image.
    pub(crate) flattened: Option<(usize, usize, usize)>,
}

impl Weights<'_> {
    pub(super) fn next(&mut self) -> Weight {
        // The number of weights has been checked; a plan and its layers have the same.
        self.left.next().unwrap_or(Weight {
            shape: vec![0],
            values: Vec::new(),
        })
    }

    /// The next weight, if there is one, in one row.
    pub(super) fn optional(&mut self, is: bool) -> Option<Param<Tensor<1>>> {
        is.then(|| {
            let bias = row(self.next().values);
            self.trained(bias)
        })
    }

    pub(super) fn trained<const D: usize>(&self, weight: Weight) -> Param<Tensor<D>> {
        Param::from_tensor(self.tensor(weight))
    }

    /// A weight per feature that is trained, or ones or zeros that are not.
    pub(super) fn or_constant(&mut self, is: bool, constant: f64) -> Param<Tensor<1>> {
        if is {
            let weight = self.next();
            self.trained(weight)
        } else {
            self.constants(&[constant])
        }
    }

    pub(super) fn constants(&self, values: &[f64]) -> Param<Tensor<1>> {
        self.fixed(per_feature(values, self.features))
    }

    pub(super) fn fixed(&self, weight: Weight) -> Param<Tensor<1>> {
        Param::initialized(ParamId::new(), self.tensor(weight))
    }

    pub(super) fn tensor<const D: usize>(&self, weight: Weight) -> Tensor<D> {
        tensor(weight, self.device)
    }
}
