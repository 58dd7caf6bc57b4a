//! Constraints on weights: where in the model's tensors they are, which have a layout of their own.

use std::collections::BTreeSet;
use std::sync::Arc;

use distribute_core::optim::{self, Constrained, ConstraintRule, Optimizer};

use super::Model;
use super::taken::{Place, places};
use crate::layers::constraint::Constraint;
use crate::shape::MOST_AXES;
use crate::{ModelError, Plan, PlannedLayer};

impl Model {
    /// This optimizer, behind whose updates the weights fulfil the constraints of the layers
    /// (Keras: `kernel_constraint` and others), for a training state of the model. `plan` is what
    /// the model was built from. Without constraints it is the optimizer itself.
    ///
    /// # Errors
    /// [`ModelError::Graph`] for a constraint along an axis that the weight does not have, or
    /// that the layer keeps together with others.
    pub fn constrained(
        &self,
        plan: &Plan,
        optimizer: Arc<dyn Optimizer>,
    ) -> Result<Arc<dyn Optimizer>, ModelError> {
        let mut all = Vec::new();
        for (index, layer) in plan.layers.iter().enumerate() {
            if layer.trainable && !layer.rules.constraints.is_empty() {
                all.extend(of_layer(plan, index)?);
            }
        }
        if all.is_empty() {
            return Ok(optimizer);
        }
        Ok(Arc::new(Constrained::of(optimizer, all)))
    }
}

/// The constraints of a layer, for its tensors.
fn of_layer(plan: &Plan, index: usize) -> Result<Vec<optim::Constraint>, ModelError> {
    let layer = &plan.layers[index];
    let places = places(plan, index);
    let mut all = Vec::new();
    let mut start = 0;
    for weight in &layer.weights {
        let mine = start..start + weight.elements();
        start = mine.end;
        let name = weight.name.rsplit('/').next();
        let of_weight = layer.rules.constraints.iter();
        for (_, constraint) in of_weight.filter(|(of, _)| Some(*of) == name && weight.trained) {
            let error = || refused(plan, layer, name.unwrap_or_default());
            let is_here = |place: &&Place| place.positions.iter().any(|at| mine.contains(at));
            let mut found = places.iter().filter(is_here).peekable();
            if found.peek().is_none() {
                return Err(error());
            }
            for place in found {
                let here = Here::of(place, &mine, &weight.shape).ok_or_else(error)?;
                let (shape, rule) = here.rule(constraint).ok_or_else(error)?;
                all.push(optim::Constraint {
                    path: format!("layers.{index}.{}", place.path),
                    shape,
                    rule,
                });
            }
        }
    }
    Ok(all)
}

fn refused(plan: &Plan, layer: &PlannedLayer, weight: &str) -> ModelError {
    ModelError::Graph {
        origin: plan.name.clone(),
        layer: layer.name.clone(),
        what: format!(
            "the constraint on its `{weight}` is along axes that the weight does not have, or \
             that are stored together with others; use other axes, or leave it out"
        ),
    }
}

/// A tensor that holds numbers of one weight alone.
struct Here<'a> {
    dims: &'a [usize],
    /// Whether all numbers of the weight are in it.
    is_whole: bool,
    /// The position of each number in the weight, in Keras' layout.
    positions: Vec<usize>,
    /// The extents of the weight in Keras' layout.
    keras: &'a [usize],
}

impl<'a> Here<'a> {
    fn of(place: &'a Place, mine: &std::ops::Range<usize>, keras: &'a [usize]) -> Option<Self> {
        let positions = place.positions.iter();
        let positions = positions.map(|at| mine.contains(at).then(|| at - mine.start));
        let positions: Vec<usize> = positions.collect::<Option<_>>()?;
        Some(Self {
            dims: &place.dims,
            is_whole: positions.len() == mine.len(),
            positions,
            keras,
        })
    }

    /// The extents that the tensor is seen in, and the rule in these.
    fn rule(&self, constraint: &Constraint) -> Option<(Vec<usize>, ConstraintRule)> {
        let Constraint::Norm {
            axes,
            at_least,
            at_most,
            rate,
        } = constraint
        else {
            return Some((self.dims.to_vec(), ConstraintRule::NonNegative));
        };
        let rank = i64::try_from(self.keras.len()).ok()?;
        let axes = axes.iter().map(|axis| {
            let axis = if *axis < 0 { axis + rank } else { *axis };
            usize::try_from(axis).ok().filter(|_| axis < rank)
        });
        let wanted: BTreeSet<usize> = axes.collect::<Option<_>>()?;
        let (shape, axes) = self.along(&wanted).filter(|_| self.is_whole)?;
        Some((
            shape,
            ConstraintRule::Norm {
                axes,
                at_least: *at_least,
                at_most: *at_most,
                rate: *rate,
            },
        ))
    }

    /// Extents of the tensor, and the axes of it along which the position changes in these axes
    /// of Keras' layout alone, while it does not along the others.
    fn along(&self, wanted: &BTreeSet<usize>) -> Option<(Vec<usize>, Vec<usize>)> {
        let own = self.dims.to_vec();
        let forms = [own.clone(), self.split(&own), self.keras.to_vec()];
        forms.into_iter().find_map(|dims| {
            let mut axes = Vec::new();
            if dims.len() > MOST_AXES || dims.iter().product::<usize>() != self.positions.len() {
                return None;
            }
            for (axis, changed) in self.changed(&dims).into_iter().enumerate() {
                if changed.is_disjoint(wanted) {
                    continue;
                }
                if !changed.is_subset(wanted) {
                    return None;
                }
                axes.push(axis);
            }
            Some((dims, axes))
        })
    }

    /// The extents with an axis that stands for several of Keras' axes as these.
    fn split(&self, dims: &[usize]) -> Vec<usize> {
        let all = self.changed(dims).into_iter().zip(dims);
        let parts = all.flat_map(|(changed, extent)| {
            let of_keras: Vec<usize> = changed.iter().map(|axis| self.keras[*axis]).collect();
            if of_keras.iter().product::<usize>() == *extent {
                of_keras
            } else {
                vec![*extent]
            }
        });
        parts.collect()
    }

    /// For each axis of a tensor of these extents the axes of Keras' layout in which the position
    /// changes along it.
    fn changed(&self, dims: &[usize]) -> Vec<BTreeSet<usize>> {
        let mut all = Vec::with_capacity(dims.len());
        let mut stride: usize = dims.iter().product();
        for extent in dims {
            stride /= (*extent).max(1);
            let mut axes = BTreeSet::new();
            for (index, position) in self.positions.iter().enumerate() {
                if stride > 0 && !(index / stride).is_multiple_of(*extent) {
                    axes.extend(self.differing(self.positions[index - stride], *position));
                }
            }
            all.push(axes);
        }
        all
    }

    /// The axes of Keras' layout in which two positions differ.
    fn differing(&self, mut one: usize, mut other: usize) -> Vec<usize> {
        let mut axes = Vec::new();
        for (axis, extent) in self.keras.iter().enumerate().rev() {
            let extent = (*extent).max(1);
            if one % extent != other % extent {
                axes.push(axis);
            }
            (one, other) = (one / extent, other / extent);
        }
        axes
    }
}
