//! `Activation`, and the layers that are one function: `ReLU`, `LeakyReLU`, `ELU` and `Softmax`.

use super::*;
pub use crate::activation::Activation;

/// The layers that are one function.
const CLASSES: [&str; 5] = ["Activation", "ReLU", "LeakyReLU", "ELU", "Softmax"];

impl KerasLayer for Activation {
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(match class {
            "ReLU" => {
                let max_value = match fields.get("max_value") {
                    Some(_) => Some(fields.factor("max_value", 0.0)?),
                    None => None,
                };
                let negative_slope = fields.factor("negative_slope", 0.0)?;
                let threshold = fields.factor("threshold", 0.0)?;
                Self::relu(max_value, negative_slope, threshold)
            }
            "LeakyReLU" => {
                // Keras 2 calls it alpha.
                let alpha = fields.factor("alpha", 0.3)?;
                Self::relu(None, fields.factor("negative_slope", alpha)?, 0.0)
            }
            "ELU" => Self::Elu {
                alpha: fields.number("alpha", 1.0)?,
            },
            "Softmax" => {
                fields.must_be("axis", -1, "use the last axis, -1")?;
                Self::Softmax
            }
            _ => activation(fields)?,
        })
    }

    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        Value {
            flow: pass.activate(x.flow, *self),
            mask: x.mask,
        }
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }

    fn activation(&self) -> Activation {
        *self
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        *self == Self::Linear
    }

    fn treats_features_alike(&self) -> bool {
        true
    }
}

const ACTIVATIONS: &str = "use a function of keras.activations other than glu, sparsemax and \
                           threshold, or a layer ReLU, LeakyReLU, ELU or Softmax";

/// The option `activation`: a function's name, a function, or a layer with options.
pub(super) fn activation(fields: &mut Fields<'_>) -> Result<Activation, ModelError> {
    activation_of(fields, "activation", Activation::Linear)
}

/// An option that is an activation.
pub(super) fn activation_of(
    fields: &mut Fields<'_>,
    key: &'static str,
    default: Activation,
) -> Result<Activation, ModelError> {
    let named = match fields.get(key) {
        None => return Ok(default),
        Some(Json::String(name)) => {
            let found = function(fields, name);
            return found.ok_or_else(|| fields.refuse(key, ACTIVATIONS));
        }
        Some(_) => fields.object(key)?,
    };
    let refuse = || fields.refuse(key, ACTIVATIONS);
    let named = named.ok_or_else(refuse)?;
    let found = match (named.class, named.function) {
        ("function", Some(name)) => function(fields, name),
        (class, None) => {
            let mut options = named.fields;
            // A layer without weights: whether it is trained changes nothing.
            common(&mut options)?;
            let is_known = CLASSES.contains(&class);
            let found = is_known
                .then(|| Activation::parse(class, &mut options))
                .transpose()?;
            options.finish()?;
            found
        }
        _ => None,
    };
    found.ok_or_else(refuse)
}

/// The function with this name in the version of Keras that wrote the file.
fn function(fields: &Fields<'_>, name: &str) -> Option<Activation> {
    if fields.place().keras2 {
        Activation::from_keras2_name(name)
    } else {
        Activation::from_name(name)
    }
}
