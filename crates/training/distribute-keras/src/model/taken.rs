//! A model's weights in Keras' order and layout, as they went in.
//!
//! Where a weight's numbers end up is what [`LayerSpec::build`](crate::LayerSpec) does with them.
//! So it is not written down a second time, backwards, for every layer: the layer is built of
//! numbers that say which ones they are, and the model's numbers are put where these came from.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

use super::{Model, built};
use crate::layers::BuiltLayer;
use crate::{ModelError, Plan, PlannedLayer, Weight};

/// A 32-bit float tells whole numbers apart up to 2^24, so that a position is two of them.
const PART: usize = 1 << 20;

impl Model {
    /// The weights in the order and layout of Keras' `model.get_weights()`: a model that
    /// [`Model::new`] makes of them is this one. `plan` is what the model was built from.
    ///
    /// # Errors
    /// [`ModelError::Weights`] for the plan of another model, or for a layer that does not keep
    /// every number that it trains.
    pub fn weights(&self, plan: &Plan) -> Result<Vec<Weight>, ModelError> {
        let mut all = Vec::with_capacity(plan.weights().count());
        for (index, layer) in plan.layers.iter().enumerate() {
            if layer.weights.is_empty() {
                continue;
            }
            let actual = self.layers.get(index).map(values).unwrap_or_default();
            let taken = taken(plan, index, &actual);
            all.extend(taken.ok_or_else(|| ModelError::Weights {
                model: plan.name.clone(),
                what: format!(
                    "the weights of the layer {} ({}) cannot be taken out of the model",
                    layer.name,
                    layer.spec.class()
                ),
            })?);
        }
        Ok(all)
    }
}

/// The weights of a layer, of the numbers in it.
fn taken(plan: &Plan, index: usize, actual: &[Vec<f32>]) -> Option<Vec<Weight>> {
    let layer = &plan.layers[index];
    let device = Device::flex();
    // A weight is positive in the one and negative in the other; constants are equal in both.
    let low = values(&built(
        plan,
        index,
        counted(layer, |k| (k % PART) as f32 + 1.0),
        &device,
    ));
    let high = values(&built(
        plan,
        index,
        counted(layer, |k| -((k / PART) as f32) - 1.0),
        &device,
    ));
    let mut found: Vec<Option<f32>> = vec![None; layer.parameters()];
    if [low.len(), high.len()] != [actual.len(); 2] {
        return None;
    }
    for ((low, high), actual) in low.iter().zip(&high).zip(actual) {
        if [low.len(), high.len()] != [actual.len(); 2] {
            return None;
        }
        for ((low, high), value) in low.iter().zip(high).zip(actual) {
            if low == high {
                continue;
            }
            let whole = low.fract() == 0.0 && high.fract() == 0.0 && *low >= 1.0 && *high <= -1.0;
            let position = whole.then(|| (low - 1.0) as usize + (-high - 1.0) as usize * PART);
            *found.get_mut(position?)? = Some(*value);
        }
    }
    let weights = planned(layer, &found)?;
    // What a layer makes of its weights may be more than an order.
    let again = values(&built(plan, index, weights.clone(), &device));
    let bits = |values: &[Vec<f32>]| -> Vec<u32> {
        values
            .iter()
            .flatten()
            .map(|value| value.to_bits())
            .collect()
    };
    (bits(&again) == bits(actual)).then_some(weights)
}

/// The layer's weights of the numbers that were found. A weight that nothing computes with, such
/// as the count of a `Normalization`, is as at the start.
fn planned(layer: &PlannedLayer, found: &[Option<f32>]) -> Option<Vec<Weight>> {
    let mut rest = found;
    let weights = layer.weights.iter().map(|planned| {
        let (mine, later) = rest.split_at_checked(planned.elements())?;
        rest = later;
        let values: Option<Vec<f32>> = mine.iter().copied().collect();
        let unused = !planned.trained && mine.iter().all(Option::is_none);
        let start = || planned.initializer.draw(&planned.shape, 0, 0);
        match values {
            Some(values) => Some(Weight {
                shape: planned.shape.clone(),
                values,
            }),
            None => unused.then(start),
        }
    });
    weights.collect()
}

/// Weights whose numbers say which ones they are.
fn counted(layer: &PlannedLayer, number: fn(usize) -> f32) -> Vec<Weight> {
    let mut next = 0;
    let weights = layer.weights.iter().map(|planned| {
        let start = next;
        next += planned.elements();
        Weight {
            shape: planned.shape.clone(),
            values: (start..next).map(number).collect(),
        }
    });
    weights.collect()
}

/// A tensor of a layer: its path below the layer, its extents, and for each of its numbers the
/// position among all numbers of the layer's weights in Keras' layout; of a constant `usize::MAX`.
pub(super) struct Place {
    pub(super) path: String,
    pub(super) dims: Vec<usize>,
    pub(super) positions: Vec<usize>,
}

/// Where the numbers of a layer's weights are.
pub(super) fn places(plan: &Plan, index: usize) -> Vec<Place> {
    let layer = &plan.layers[index];
    let device = Device::flex();
    let numbers = |number| {
        let mut values = Values::default();
        built(plan, index, counted(layer, number), &device).visit(&mut values);
        values
    };
    let low = numbers(|k| (k % PART) as f32 + 1.0);
    let high = numbers(|k| -((k / PART) as f32) - 1.0);
    let tensors = low
        .paths
        .into_iter()
        .zip(low.dims)
        .zip(low.all)
        .zip(high.all);
    let places = tensors.map(|(((path, dims), low), high)| {
        let positions = low.iter().zip(&high);
        let positions = positions.map(|(low, high)| {
            if low == high {
                return usize::MAX;
            }
            (low - 1.0) as usize + (-high - 1.0) as usize * PART
        });
        Place {
            path,
            dims,
            positions: positions.collect(),
        }
    });
    places.collect()
}

/// The numbers of a layer, tensor by tensor.
fn values(layer: &BuiltLayer) -> Vec<Vec<f32>> {
    let mut values = Values::default();
    layer.visit(&mut values);
    values.all
}

#[derive(Default)]
struct Values {
    all: Vec<Vec<f32>>,
    dims: Vec<Vec<usize>>,
    paths: Vec<String>,
    /// The modules that were entered and not yet left.
    entered: Vec<String>,
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.entered.push(name.to_string());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.entered.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.val().into_data().convert::<f32>();
        self.dims.push(param.val().dims().to_vec());
        self.paths.push(self.entered.join("."));
        self.all.push(data.try_into_vec().unwrap_or_default());
    }
}
