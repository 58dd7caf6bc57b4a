//! What a model ends with, and the loss that belongs to it.

use crate::layers::TimeAxis;
use crate::plan::{PlannedCall, PlannedLayer};
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
    /// The loss of a model with this head and this many outputs.
    pub fn loss(self, outputs: usize) -> Loss {
        match (self, outputs) {
            (_, 1) => Loss::Binary,
            (Self::Sigmoid, _) => Loss::BinaryPerClass,
            (Self::Linear | Self::Softmax, _) => Loss::Categorical,
        }
    }
}

impl Plan {
    /// Refuses a model with outputs that no loss can be computed from.
    ///
    /// # Errors
    /// [`ModelError::Head`] for probabilities that a later layer changes, for a softmax that is
    /// not over the last axis of the output, and for one over a single output.
    pub fn check_head(&self) -> Result<(), ModelError> {
        let mut outputs = self.outputs.iter();
        outputs.try_for_each(|output| self.ending(output.value).map(|_| ()))
    }

    /// The head of the first output.
    #[must_use]
    pub fn head(&self) -> Head {
        let first = self.outputs.first();
        let ending = first.and_then(|output| self.ending(output.value).ok());
        ending.map_or(Head::Linear, |(head, _)| head)
    }

    /// The head of each output, in the order of [`Plan::outputs`].
    pub fn heads(&self) -> impl Iterator<Item = Head> {
        self.outputs.iter().map(|output| {
            let ending = self.ending(output.value);
            ending.map_or(Head::Linear, |(head, _)| head)
        })
    }

    /// The head of an output, and the calls from the one that it is taken out of to the output;
    /// those behind the first change nothing.
    ///
    /// The graph is followed from the output to the inputs, as long as a layer has neither weights
    /// nor several inputs.
    pub(crate) fn ending(&self, output: usize) -> Result<(Head, Vec<usize>), ModelError> {
        let mut changed_by: Option<&PlannedLayer> = None;
        let mut value = output;
        let mut path = Vec::new();
        // What a `TimeDistributed` gives whose layer is the end.
        let mut joined = None;
        while let Some((index, call, layer)) = self.call(value) {
            path.insert(0, index);
            if layer.spec == LayerSpec::TimeAxis(TimeAxis::Join) {
                joined.get_or_insert(call.output);
                value = call.inputs[0];
                continue;
            }
            let (head, name) = match layer.spec.layer().activation() {
                Activation::Softmax => (Head::Softmax, "a softmax"),
                Activation::Sigmoid => (Head::Sigmoid, "a sigmoid"),
                _ if !layer.weights.is_empty() => break,
                _ if call.inputs.len() > 1 => {
                    return self
                        .check_merged(call, layer)
                        .map(|()| (Head::Linear, Vec::new()));
                }
                _ => {
                    if !changes_nothing(layer, call) {
                        changed_by.get_or_insert(layer);
                    }
                    value = call.inputs[0];
                    continue;
                }
            };
            let made = joined.unwrap_or(call.output);
            return match wrong_head(changed_by, head, name, made, self.shape(output)) {
                None => Ok((head, path)),
                Some(what) => Err(self.no_loss(layer, what)),
            };
        }
        Ok((Head::Linear, Vec::new()))
    }

    /// The call that gives a value, which is no input, with its position and its layer.
    fn call(&self, value: usize) -> Option<(usize, &PlannedCall, &PlannedLayer)> {
        let index = self.call_of(value)?;
        let call = self.calls.get(index)?;
        Some((index, call, self.layers.get(call.layer)?))
    }

    fn no_loss(&self, layer: &PlannedLayer, what: String) -> ModelError {
        ModelError::Head {
            model: self.name.clone(),
            layer: layer.name.clone(),
            class: layer.spec.class(),
            what,
        }
    }

    /// What several values become has no head of its own. If all of them are probabilities, which
    /// an ensemble's mean is made of, the numbers before them are unknown.
    fn check_merged(&self, call: &PlannedCall, layer: &PlannedLayer) -> Result<(), ModelError> {
        let probabilities = |value: &usize| {
            let mut value = *value;
            while let Some((_, call, layer)) = self.call(value) {
                match layer.spec.layer().activation() {
                    Activation::Softmax | Activation::Sigmoid => return true,
                    _ if call.inputs.len() == 1 && changes_nothing(layer, call) => {
                        value = call.inputs[0];
                    }
                    _ => return false,
                }
            }
            false
        };
        if !call.inputs.iter().all(probabilities) {
            return Ok(());
        }
        Err(self.no_loss(
            layer,
            "it makes one value of several probabilities, and the loss wants the numbers before \
             a softmax or sigmoid; put the softmax or sigmoid behind it"
                .to_string(),
        ))
    }
}

/// Why no loss belongs to a softmax or sigmoid with this output, if none does.
fn wrong_head(
    changed_by: Option<&PlannedLayer>,
    head: Head,
    name: &str,
    made: Shape,
    output: Shape,
) -> Option<String> {
    let (features, elements) = (made.features(), made.elements());
    match (changed_by, head) {
        (Some(later), _) => Some(format!(
            "{} follows {name}, so the outputs are neither logits nor the probabilities that the \
             loss wants; make the {} the last layer",
            later.spec.class(),
            name.trim_start_matches("a ")
        )),
        (None, Head::Softmax) if features == 1 => Some(
            "a softmax of one output is always 1; use a sigmoid, or one output per class"
                .to_string(),
        ),
        (None, Head::Softmax) if features != output.features() => Some(format!(
            "a softmax of {features} at each of {} places is not one of all {elements} outputs; \
             put Flatten or GlobalAveragePooling2D before it, or leave out what joins the places \
             behind it",
            elements / features.max(1),
        )),
        _ => None,
    }
}

fn changes_nothing(layer: &PlannedLayer, call: &PlannedCall) -> bool {
    let layer = layer.spec.layer();
    layer.changes_nothing(call.shapes[0], call.arguments.inference)
}
