//! The options that any layer may have: losses on weights and outputs, and constraints.

use crate::fields::Fields;
use crate::layers::constraint::{CONSTRAINTS, constraint};
use crate::layers::regularizer::regularizer;
use crate::{LayerRules, ModelError};

/// The options that are losses on weights of one name, whatever the layer.
const REGULARIZERS: [(&str, &str); 3] = [
    ("bias_regularizer", "bias"),
    ("gamma_regularizer", "gamma"),
    ("beta_regularizer", "beta"),
];

/// The classes whose parts add the loss on outputs, each for itself.
const OF_PARTS: [&str; 3] = [
    "MultiHeadAttention",
    "GroupQueryAttention",
    "GroupedQueryAttention",
];

/// The cells of these layers have the losses on their weights themselves.
const RECURRENT: [&str; 4] = ["SimpleRNN", "LSTM", "GRU", "RNN"];

/// Reads them for a layer of this class.
pub(super) fn read(class: &str, fields: &mut Fields<'_>) -> Result<LayerRules, ModelError> {
    let mut rules = LayerRules::default();
    if !RECURRENT.contains(&class) {
        for (key, weight) in REGULARIZERS {
            let loss = regularizer(fields, key)?;
            rules.regularizers.extend(loss.map(|loss| (weight, loss)));
        }
    }
    if !OF_PARTS.contains(&class) {
        rules.activity = regularizer(fields, "activity_regularizer")?;
    }
    for (key, weight) in CONSTRAINTS {
        let rule = constraint(fields, key)?;
        rules.constraints.extend(rule.map(|rule| (weight, rule)));
    }
    Ok(rules)
}
