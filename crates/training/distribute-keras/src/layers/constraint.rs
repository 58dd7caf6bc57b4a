//! Constraints on weights.

use serde_json::Value;

use crate::ModelError;
use crate::fields::{Fields, Named};

/// What a weight is made to fulfil behind every update (Keras: `keras.constraints`).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Constraint {
    /// No number is below zero (`NonNeg`).
    NonNegative,
    /// The norms along axes are within bounds (`MaxNorm`, `UnitNorm`, `MinMaxNorm`).
    Norm {
        /// The axes of the weight in Keras' layout, negative ones from the end.
        axes: Vec<i64>,
        /// The least norm.
        at_least: f64,
        /// The largest norm.
        at_most: f64,
        /// How much of the way to the bounds one update goes.
        rate: f64,
    },
}

/// The options that are constraints, and the names of their weights.
pub(crate) const CONSTRAINTS: [(&str, &str); 10] = [
    ("kernel_constraint", "kernel"),
    ("recurrent_constraint", "recurrent_kernel"),
    ("bias_constraint", "bias"),
    ("embeddings_constraint", "embeddings"),
    ("depthwise_constraint", "depthwise_kernel"),
    ("depthwise_constraint", "kernel"),
    ("pointwise_constraint", "pointwise_kernel"),
    ("gamma_constraint", "gamma"),
    ("beta_constraint", "beta"),
    ("alpha_constraint", "alpha"),
];

const REMEDY: &str = "use MaxNorm, MinMaxNorm, NonNeg or UnitNorm";

/// The constraint in an option.
pub(crate) fn constraint(
    fields: &mut Fields<'_>,
    key: &'static str,
) -> Result<Option<Constraint>, ModelError> {
    if fields.get(key).is_none() {
        return Ok(None);
    }
    let named = fields.object(key)?;
    let refuse = || fields.refuse(key, REMEDY);
    let Named {
        class,
        fields: mut options,
        ..
    } = named.ok_or_else(refuse)?;
    let name: String = class.chars().filter(|letter| *letter != '_').collect();
    let found = match name.to_ascii_lowercase().as_str() {
        "nonneg" => Constraint::NonNegative,
        "unitnorm" => bounded(&mut options, 1.0, 1.0, 1.0)?,
        "maxnorm" => {
            let at_most = options.factor("max_value", 2.0)?;
            bounded(&mut options, 0.0, at_most, 1.0)?
        }
        "minmaxnorm" => {
            let at_least = options.factor("min_value", 0.0)?;
            let at_most = options.factor("max_value", 1.0)?;
            let rate = options.factor("rate", 1.0)?;
            bounded(&mut options, at_least, at_most, rate)?
        }
        _ => return Err(refuse()),
    };
    options.finish()?;
    Ok(Some(found))
}

/// Norms within bounds, the first of which is not above the second.
fn bounded(
    options: &mut Fields<'_>,
    at_least: f64,
    at_most: f64,
    rate: f64,
) -> Result<Constraint, ModelError> {
    if at_least > at_most {
        return Err(options.refuse("min_value", "use a number that is not above max_value"));
    }
    Ok(Constraint::Norm {
        axes: axes(options)?,
        at_least,
        at_most,
        rate,
    })
}

/// One axis or several.
fn axes(options: &mut Fields<'_>) -> Result<Vec<i64>, ModelError> {
    let found = match options.get("axis") {
        None => Some(vec![0]),
        Some(Value::Array(axes)) => axes.iter().map(Value::as_i64).collect(),
        Some(axis) => axis.as_i64().map(|axis| vec![axis]),
    };
    found.ok_or_else(|| options.refuse("axis", "use an axis, or a list of them"))
}
