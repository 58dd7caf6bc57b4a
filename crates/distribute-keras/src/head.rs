//! What a model ends with, and the loss that belongs to it.

use crate::plan::PlannedLayer;
use crate::{Activation, LayerSpec, ModelError, Plan, Shape};

/// What turns the last layer's numbers into what Keras' model returns.
///
/// A loss is computed from the numbers before it (the logits), which is exact where a
/// probability is rounded to 0 or 1. Keras does the same when it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Nothing: the model returns logits (or values).
    Linear,
    /// A softmax over the classes.
    Softmax,
    /// A sigmoid: each output is a probability of its own.
    Sigmoid,
}

/// How the outputs of a classifier are compared with the classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// One output: the cross-entropy of yes and no.
    Binary,
    /// A sigmoid per class: the mean cross-entropy of as many yes-no questions, of which the
    /// example's class is the one with the answer yes.
    BinaryPerClass,
    /// The cross-entropy of one choice among the classes.
    Categorical,
}

impl Head {
    /// The loss of a model with this head and so many outputs.
    pub fn loss(self, outputs: usize) -> Loss {
        match (self, outputs) {
            (_, 1) => Loss::Binary,
            (Self::Sigmoid, _) => Loss::BinaryPerClass,
            (Self::Linear | Self::Softmax, _) => Loss::Categorical,
        }
    }
}

impl Plan {
    /// Refuses a model whose outputs no loss can be computed from.
    ///
    /// # Errors
    /// [`ModelError::Head`] for probabilities that a later layer changes, for a softmax that is
    /// not over the outputs, and for one over a single output.
    pub fn check_head(&self) -> Result<(), ModelError> {
        self.ending().map(|_| ())
    }

    /// The head, and the layer that it is taken out of. Layers that change nothing may follow it.
    pub(crate) fn ending(&self) -> Result<(Head, Option<usize>), ModelError> {
        let mut changed_by: Option<&PlannedLayer> = None;
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let (head, name) = match activation(&layer.spec) {
                Activation::Softmax => (Head::Softmax, "a softmax"),
                Activation::Sigmoid => (Head::Sigmoid, "a sigmoid"),
                _ if layer.weights.is_empty() => {
                    if !changes_nothing(layer) {
                        changed_by.get_or_insert(layer);
                    }
                    continue;
                }
                _ => return Ok((Head::Linear, None)),
            };
            let what = match (changed_by, head) {
                (Some(later), _) => format!(
                    "{} follows {name}, so the outputs are neither logits nor the probabilities \
                     that the loss wants; make the {} the last layer",
                    later.spec.class(),
                    name.trim_start_matches("a ")
                ),
                (None, Head::Softmax) if layer.output.elements() == 1 => {
                    "a softmax of one output is always 1; use a sigmoid, or one output per class"
                        .to_string()
                }
                (None, Head::Softmax) if features(layer.output) != layer.output.elements() => {
                    format!(
                        "a softmax of {} at each of {} places is not one of all {} outputs; put \
                         Flatten or GlobalAveragePooling2D before it",
                        features(layer.output),
                        layer.output.elements() / features(layer.output).max(1),
                        layer.output.elements()
                    )
                }
                _ => return Ok((head, Some(index))),
            };
            return Err(ModelError::Head {
                model: self.name.clone(),
                index,
                class: layer.spec.class(),
                what,
            });
        }
        Ok((Head::Linear, None))
    }
}

fn activation(spec: &LayerSpec) -> Activation {
    match spec {
        LayerSpec::Dense { activation, .. }
        | LayerSpec::Conv2D { activation, .. }
        | LayerSpec::Activation(activation) => *activation,
        _ => Activation::Linear,
    }
}

/// The extent of the axis that a softmax is over.
fn features(shape: Shape) -> usize {
    shape.dims().last().copied().unwrap_or(1)
}

/// Whether a layer without weights hands on the numbers that it gets, in training too.
fn changes_nothing(layer: &PlannedLayer) -> bool {
    match &layer.spec {
        LayerSpec::Flatten => true,
        LayerSpec::Dropout { rate } => *rate == 0.0,
        LayerSpec::Activation(activation) => *activation == Activation::Linear,
        LayerSpec::MaxPooling2D {
            pool_size, strides, ..
        }
        | LayerSpec::AveragePooling2D {
            pool_size, strides, ..
        } => (*pool_size, *strides) == ([1, 1], [1, 1]),
        LayerSpec::GlobalAveragePooling2D => matches!(layer.input, Shape::Image(1, 1, _)),
        _ => false,
    }
}
