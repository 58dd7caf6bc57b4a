//! What a layer is: everything about one of Keras' classes, in one place.

use std::fmt;

use burn::tensor::Tensor;
use serde_json::Value as Json;

use super::BuiltLayer;
use super::flow::Value;
use super::pass::{Arguments, Pass};
use super::weights::{PlannedWeight, Weights};
use crate::fields::Fields;
use crate::texts::ReadsTexts;
use crate::{Activation, ModelError, Regularizer, Shape};

/// A layer with its options.
///
/// A shape is the shape of one example, without the batch. A mask is named by a call: the call of
/// the `Embedding` whose padding is left out of a value.
pub(crate) trait KerasLayer: fmt::Debug {
    /// Reads its options. Options that are not read are refused afterwards.
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError>
    where
        Self: Sized;

    /// Keras' name of the class, if the table names several.
    fn class(&self) -> Option<&'static str> {
        None
    }

    /// The arguments of a call that are tensors, in the order of Keras' signature.
    fn inputs(&self) -> &'static [&'static str] {
        &["inputs"]
    }

    /// Takes an argument of a call that other layers do not have; whether it is one.
    fn argument(&self, _key: &str, _value: &Json, _arguments: &mut Arguments) -> bool {
        false
    }

    /// What it makes of a value of this shape, or why it cannot.
    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        Ok(input)
    }

    /// What it makes of all values that it receives, or why it cannot.
    fn output_shape_of_all(&self, inputs: &[Shape]) -> Result<Shape, String> {
        match inputs {
            [input] => self.output_shape(*input),
            _ => Err(format!("needs one value, gets {}", inputs.len())),
        }
    }

    /// Refuses a mask of this shape for inputs of these shapes, see [`Arguments::with_mask`].
    fn check_mask(&self, _inputs: &[Shape], mask: Shape) -> Result<(), String> {
        Err(format!("takes no mask of the shape {mask}"))
    }

    /// How many values a call gives.
    fn outputs(&self) -> usize {
        1
    }

    /// The shape of one of the values that a call gives, counted from 0, or why there is none.
    fn part_shape(&self, _part: usize, inputs: &[Shape]) -> Result<Shape, String> {
        self.output_shape_of_all(inputs)
    }

    /// Whether Keras 3 writes `training=False` for a call that does not say it.
    fn writes_training(&self) -> bool {
        false
    }

    /// Its weights in the order of `layer.get_weights()`; `None` stands for one that the options
    /// leave out.
    fn weights(&self, _inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        Vec::new()
    }

    /// The name of a weight in files of an older Keras, if it was another one.
    fn old_name(&self, _weight: &str) -> Option<&'static str> {
        None
    }

    /// The part of it in which files of Keras 3 have the weight of this position and name, as the
    /// path of Python's attributes (`query_dense`, `cell`); empty for its own.
    fn sublayer(&self, _position: usize, _weight: &str) -> &str {
        ""
    }

    /// Whether files of Keras 3 name its weights without the layer, which builds them late.
    fn builds_late(&self) -> bool {
        false
    }

    /// The layer with its weights; `None` for a layer without weights, which is called directly.
    fn build(&self, _weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        None
    }

    /// The output of a layer without weights for one value.
    fn call(&self, x: Value, _pass: &mut Pass<'_, '_>) -> Value {
        x
    }

    /// The output of a layer without weights for all of its inputs.
    fn call_all(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        inputs.into_iter().next().map(|x| self.call(x, pass))
    }

    /// Whose padding is left out of what it gives in this call, of whose is left out of what it
    /// receives.
    fn mask(&self, _masks: &[Option<usize>], _call: usize) -> Result<Option<usize>, String> {
        Ok(None)
    }

    /// The function that it applies last.
    fn activation(&self) -> Activation {
        Activation::Linear
    }

    /// Whether a layer without weights hands on the numbers that it gets, in training too.
    fn changes_nothing(&self, _input: Shape, _inference: bool) -> bool {
        false
    }

    /// Whether it does the same to every feature, wherever it stands.
    fn treats_features_alike(&self) -> bool {
        false
    }

    /// Whether data without an axis of channels are images to it; nothing if both will do.
    fn wants_image(&self) -> Option<bool> {
        None
    }

    /// The same as a reader of texts, if it is one.
    fn reads_texts(&self) -> Option<&dyn ReadsTexts> {
        None
    }

    /// The number of tokens, if it reads tokens.
    fn tokens(&self) -> Option<usize> {
        None
    }

    /// Whether the numbers that it receives are names of words or classes, which a type of 16 bits
    /// would make others of.
    fn reads_numbers(&self) -> bool {
        self.tokens().is_some() || self.reads_texts().is_some()
    }

    /// The weights of the numbers of its vocabulary, which are no weights of a model, but stand
    /// among them in a file (Keras: `output_mode="tf_idf"`).
    fn idf_weights(&self) -> Option<&[f64]> {
        None
    }

    /// Whether all replicas must call it together in training.
    fn is_synchronized(&self) -> bool {
        false
    }

    /// The loss on what it gives, if that is what the layer is for.
    fn activity_regularizer(&self) -> Option<Regularizer> {
        None
    }

    /// Sets the loss on the kernels, if it is a convolution or a `Dense` layer.
    fn set_regularizer(&mut self, _regularizer: Option<Regularizer>) {}
}

/// A layer with its weights.
pub(crate) trait Built {
    /// The output for one value.
    ///
    /// # Errors
    /// As of the statistics that replicas share: a replica that was lost or does not come.
    fn call(&self, x: Value, _pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        Ok(x)
    }

    /// The output for all of its inputs.
    ///
    /// # Errors
    /// The errors of [`call`](Self::call).
    fn call_all(
        &self,
        inputs: Vec<Value>,
        pass: &mut Pass<'_, '_>,
    ) -> distribute_core::Result<Option<Value>> {
        let x = inputs.into_iter().next();
        x.map(|x| self.call(x, pass)).transpose()
    }

    /// The losses on its kernels, on the autodiff graph; `None` for a kernel without.
    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        Vec::new()
    }
}

/// The mask of the first value. Layers that treat every step alike pass it on.
pub(super) fn first_mask(masks: &[Option<usize>]) -> Option<usize> {
    masks.first().copied().flatten()
}

/// The features of the first value.
pub(super) fn features(inputs: &[Shape]) -> usize {
    inputs.first().map_or(1, |shape| shape.features())
}
