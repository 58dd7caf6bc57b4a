//! What a file has for each weight of a model, and what does not fit.

use crate::shape::tuple;
use crate::{ModelError, Plan, PlannedLayer, PlannedWeight, Weight};

/// Layers that are named in one message.
const NAMED: usize = 8;

/// What a file has for a model.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// For each of the plan's weights, what the file has.
    pub(super) weights: Vec<Option<Weight>>,
    /// Why not, for the layers of the plan, by their positions.
    pub(super) missing: Vec<(usize, String)>,
    /// What the file has and the model has not.
    pub(super) unused: Vec<String>,
    /// Why nothing can be taken of the file.
    pub(super) refused: Option<String>,
}

/// Weights of a file for some layers of a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FoundWeights {
    /// For each weight of [`Plan::weights`], what the file has; `None` for a skipped layer.
    pub weights: Vec<Option<Weight>>,
    /// The layers that the file has not, or in another shape.
    pub skipped: Vec<SkippedLayer>,
    /// What only the file has.
    pub unused: Vec<String>,
}

/// A layer whose weights were not taken from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedLayer {
    /// Its name in the model.
    pub name: String,
    /// Why, with both shapes.
    pub why: String,
}

/// All weights of a model, in order.
impl From<Vec<Weight>> for FoundWeights {
    fn from(weights: Vec<Weight>) -> Self {
        Self {
            weights: weights.into_iter().map(Some).collect(),
            skipped: Vec::new(),
            unused: Vec::new(),
        }
    }
}

impl FoundWeights {
    /// The weights for [`Model::new`](crate::Model::new): of the file, and for skipped layers the
    /// initial ones of `seed`.
    pub fn or_initial(self, plan: &Plan, seed: u64) -> Vec<Weight> {
        let planned = plan.weights().zip(self.weights).zip(0..);
        let weights = planned.map(|(((_, planned), found), stream)| {
            found.unwrap_or_else(|| planned.initializer.draw(&planned.shape, seed, stream))
        });
        weights.collect()
    }
}

impl Found {
    /// All weights of the model.
    pub(super) fn all(mut self, plan: &Plan) -> Result<Vec<Weight>, ModelError> {
        self.check_shapes(plan);
        let mut wrong: Vec<String> = self.refused.take().into_iter().collect();
        wrong.extend(self.missing.into_iter().map(|(_, what)| what));
        // All layers of a model inside are missing for one reason.
        wrong.dedup();
        if wrong.is_empty() {
            let unused = self.unused.iter();
            wrong
                .extend(unused.map(|name| format!("the file has {name}, which the model has not")));
        }
        let what = match &wrong[..] {
            [] => None,
            all if all.len() <= NAMED => Some(all.join("; ")),
            all => Some(format!(
                "{}; and {} more",
                all[..NAMED].join("; "),
                all.len() - NAMED
            )),
        };
        if let Some(what) = what {
            return Err(refused(plan, what));
        }
        let weights: Vec<Weight> = self.weights.into_iter().flatten().collect();
        for ((layer, planned), weight) in plan.weights().zip(&weights) {
            check_values(plan, layer, planned, weight)?;
        }
        Ok(weights)
    }

    /// The weights of the layers that fit.
    pub(super) fn fitting(mut self, plan: &Plan) -> Result<FoundWeights, ModelError> {
        if let Some(what) = self.refused.take() {
            return Err(refused(plan, what));
        }
        self.check_shapes(plan);
        let mut skipped: Vec<(usize, SkippedLayer)> = Vec::new();
        for (layer, why) in self.missing {
            match skipped.last_mut().filter(|(last, _)| *last == layer) {
                Some((_, known)) => known.why = format!("{}; {why}", known.why),
                None => {
                    let name = plan.layers[layer].name.clone();
                    skipped.push((layer, SkippedLayer { name, why }));
                }
            }
        }
        for (index, weight) in positions(plan).zip(&mut self.weights) {
            // A layer is taken as a whole.
            if skipped.iter().any(|(layer, _)| *layer == index) {
                *weight = None;
            }
        }
        if self.weights.iter().all(Option::is_none) {
            let what = "no layer of the file has the weights of a layer of the model".to_string();
            return Err(refused(plan, what));
        }
        for ((layer, planned), weight) in plan.weights().zip(&self.weights) {
            if let Some(weight) = weight {
                check_values(plan, layer, planned, weight)?;
            }
        }
        Ok(FoundWeights {
            weights: self.weights,
            skipped: skipped.into_iter().map(|(_, layer)| layer).collect(),
            unused: self.unused,
        })
    }

    /// Refuses weights of other shapes.
    fn check_shapes(&mut self, plan: &Plan) {
        let planned = positions(plan).zip(plan.weights());
        for ((index, (layer, planned)), weight) in planned.zip(&self.weights) {
            let other = weight.as_ref().filter(|weight| {
                weight.shape != planned.shape || weight.values.len() != planned.elements()
            });
            if let Some(weight) = other {
                let what = format!(
                    "{}/{} has the shape {} in the file and {} in the model",
                    layer.name,
                    planned.name,
                    tuple(&weight.shape),
                    tuple(&planned.shape)
                );
                self.missing.push((index, what));
            }
        }
        self.missing.sort_by_key(|(layer, _)| *layer);
    }
}

/// For each weight the position of its layer.
pub(super) fn positions(plan: &Plan) -> impl Iterator<Item = usize> {
    let layers = plan.layers.iter().enumerate();
    layers.flat_map(|(index, layer)| std::iter::repeat_n(index, layer.weights.len()))
}

fn refused(plan: &Plan, what: String) -> ModelError {
    ModelError::Weights {
        model: plan.name.clone(),
        what,
    }
}

/// Refuses numbers that no training goes on from.
fn check_values(
    plan: &Plan,
    layer: &PlannedLayer,
    planned: &PlannedWeight,
    weight: &Weight,
) -> Result<(), ModelError> {
    let is_variance = matches!(planned.name.as_ref(), "variance" | "moving_variance");
    let wrong = |x: &f32| !x.is_finite() || (is_variance && *x < 0.0);
    let Some(at) = weight.values.iter().position(wrong) else {
        return Ok(());
    };
    let what = format!(
        "{}/{} has the value {} at position {at}: the training that wrote it had failed",
        layer.name, planned.name, weight.values[at]
    );
    Err(refused(plan, what))
}
