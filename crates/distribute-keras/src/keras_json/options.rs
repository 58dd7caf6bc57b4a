//! The options that several layers have.

use serde_json::Value;

use crate::fields::{Fields, Named};
use crate::init::Fan;
use crate::{Activation, Initializer, ModelError, Padding, Regularizer, Windows};

/// Options that every layer has: whether it is trainable.
pub(super) fn common(fields: &mut Fields<'_>) -> Result<bool, ModelError> {
    fields.neutral(&["name", "batch_shape", "batch_input_shape"]);
    fields.must_be("autocast", true, "set it to true")?;
    fields.float32()?;
    fields.flag("trainable", true)
}

pub(super) fn channels_last(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    fields.must_be("data_format", "channels_last", "use channels_last")
}

/// What a seed decides is decided by the one seed of the run.
pub(super) fn no_seed(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    match fields.get("seed") {
        None => Ok(()),
        Some(_) => Err(fields.refuse("seed", "leave it out: the seed of the run decides")),
    }
}

pub(super) fn count(fields: &mut Fields<'_>, key: &'static str) -> Result<usize, ModelError> {
    let value = fields.get(key).and_then(Value::as_u64);
    value
        .and_then(|value| usize::try_from(value).ok())
        .filter(|value| (1..=MAX_SIZE).contains(value))
        .ok_or_else(|| fields.refuse(key, "use a whole number from 1 on"))
}

fn required_pair(fields: &mut Fields<'_>, key: &'static str) -> Result<[usize; 2], ModelError> {
    pair(fields, key)?.ok_or_else(|| fields.refuse(key, "use one or two whole numbers"))
}

/// A size: one number, or rows and columns.
fn pair(fields: &mut Fields<'_>, key: &'static str) -> Result<Option<[usize; 2]>, ModelError> {
    let number = |value: &Value| {
        let value = usize::try_from(value.as_u64()?).ok()?;
        (1..=MAX_SIZE).contains(&value).then_some(value)
    };
    let pair = match fields.get(key) {
        None => return Ok(None),
        Some(Value::Array(pair)) => match pair.as_slice() {
            [rows, columns] => number(rows).zip(number(columns)),
            _ => None,
        },
        Some(value) => number(value).map(|n| (n, n)),
    };
    match pair {
        Some((rows, columns)) => Ok(Some([rows, columns])),
        None => Err(fields.refuse(key, "use one or two whole numbers from 1 on")),
    }
}

/// The windows of a convolution.
pub(super) fn windows(fields: &mut Fields<'_>) -> Result<Windows, ModelError> {
    Ok(Windows {
        kernel_size: required_pair(fields, "kernel_size")?,
        strides: pair(fields, "strides")?.unwrap_or([1, 1]),
        padding: padding(fields)?,
        dilation_rate: pair(fields, "dilation_rate")?.unwrap_or([1, 1]),
    })
}

/// Size, strides and borders of a pool.
pub(super) fn pool(
    fields: &mut Fields<'_>,
) -> Result<([usize; 2], [usize; 2], Padding), ModelError> {
    channels_last(fields)?;
    let pool_size = required_pair(fields, "pool_size")?;
    let strides = pair(fields, "strides")?.unwrap_or(pool_size);
    Ok((pool_size, strides, padding(fields)?))
}

/// A number of rows or columns, which may be 0.
pub(super) fn pad(value: &Value) -> Option<usize> {
    let value = usize::try_from(value.as_u64()?).ok()?;
    (value <= MAX_SIZE).then_some(value)
}

/// What is added to, or taken from, the sides of an image: one number; rows and columns; or the
/// rows before and after, and the columns before and after.
pub(super) fn sides(
    fields: &mut Fields<'_>,
    key: &'static str,
    default: usize,
) -> Result<[(usize, usize); 2], ModelError> {
    channels_last(fields)?;
    let side = |value: &Value| match value {
        Value::Array(pair) => match pair.as_slice() {
            [before, after] => Some((pad(before)?, pad(after)?)),
            _ => None,
        },
        both => pad(both).map(|both| (both, both)),
    };
    let found = match fields.get(key) {
        None => Some([(default, default); 2]),
        Some(Value::Array(two)) => match two.as_slice() {
            [rows, columns] => side(rows).zip(side(columns)).map(|(r, c)| [r, c]),
            _ => None,
        },
        Some(all) => pad(all).map(|all| [(all, all); 2]),
    };
    let remedy = "use one whole number, two, or two pairs";
    found.ok_or_else(|| fields.refuse(key, remedy))
}

/// The fraction of what a dropout sets to zero.
pub(super) fn rate(fields: &mut Fields<'_>, key: &'static str) -> Result<f64, ModelError> {
    let rate = fields.get(key).and_then(Value::as_f64);
    rate.filter(|rate| (0.0..1.0).contains(rate))
        .ok_or_else(|| fields.refuse(key, "use a rate from 0 up to, but not, 1"))
}

fn padding(fields: &mut Fields<'_>) -> Result<Padding, ModelError> {
    match fields.get("padding").map(Value::as_str) {
        None | Some(Some("valid")) => Ok(Padding::Valid),
        Some(Some("same")) => Ok(Padding::Same),
        Some(_) => Err(fields.refuse("padding", "use valid or same")),
    }
}

const ACTIVATIONS: &str = "use a function of keras.activations other than glu, sparsemax and \
                           threshold, or a layer ReLU, LeakyReLU, ELU or Softmax";

/// The option `activation`: a function's name, a function, or a layer with options.
pub(super) fn activation(fields: &mut Fields<'_>) -> Result<Activation, ModelError> {
    let key = "activation";
    let named = match fields.get(key) {
        None => return Ok(Activation::Linear),
        Some(Value::String(name)) => {
            let found = function(fields, name);
            return found.ok_or_else(|| fields.refuse(key, ACTIVATIONS));
        }
        Some(_) => fields.object(key)?,
    };
    let refuse = || fields.refuse(key, ACTIVATIONS);
    let found = match named.ok_or_else(refuse)? {
        Named {
            class: "function",
            function: Some(name),
            ..
        } => function(fields, name),
        Named {
            class,
            function: None,
            fields: mut options,
        } => {
            // A layer without weights: whether it is trained changes nothing.
            common(&mut options)?;
            let found = activation_class(class, &mut options)?;
            options.finish()?;
            found
        }
        Named { .. } => None,
    };
    found.ok_or_else(refuse)
}

/// The function with this name in the version of Keras that wrote the file.
fn function(fields: &Fields<'_>, name: &str) -> Option<Activation> {
    match fields.place().keras2 {
        true => Activation::from_keras2_name(name),
        false => Activation::from_name(name),
    }
}

/// A layer that is one function; nothing if it is another layer.
pub(super) fn activation_class(
    class: &str,
    fields: &mut Fields<'_>,
) -> Result<Option<Activation>, ModelError> {
    Ok(Some(match class {
        "Activation" => activation(fields)?,
        "ReLU" => {
            let max_value = match fields.get("max_value") {
                Some(_) => Some(fields.factor("max_value", 0.0)?),
                None => None,
            };
            let negative_slope = fields.factor("negative_slope", 0.0)?;
            let threshold = fields.factor("threshold", 0.0)?;
            Activation::relu(max_value, negative_slope, threshold)
        }
        "LeakyReLU" => {
            // Keras 2 calls it alpha.
            let alpha = fields.factor("alpha", 0.3)?;
            Activation::relu(None, fields.factor("negative_slope", alpha)?, 0.0)
        }
        "ELU" => Activation::Elu {
            alpha: fields.number("alpha", 1.0)?,
        },
        "Softmax" => {
            fields.must_be("axis", -1, "use the last axis, -1")?;
            Activation::Softmax
        }
        _ => return Ok(None),
    }))
}

pub(super) fn regularizer(
    fields: &mut Fields<'_>,
    key: &'static str,
) -> Result<Option<Regularizer>, ModelError> {
    if fields.get(key).is_none() {
        return Ok(None);
    }
    let named = fields.object(key)?;
    let refuse = || fields.refuse(key, "use L1, L2 or L1L2");
    let Named {
        class,
        fields: mut options,
        ..
    } = named.ok_or_else(refuse)?;
    let regularizer = match class.to_ascii_lowercase().as_str() {
        "l1" => Regularizer {
            l1: options.factor("l1", 0.01)?,
            l2: 0.0,
        },
        "l2" => Regularizer {
            l1: 0.0,
            l2: options.factor("l2", 0.01)?,
        },
        "l1l2" | "l1_l2" => Regularizer {
            l1: options.factor("l1", 0.0)?,
            l2: options.factor("l2", 0.0)?,
        },
        _ => return Err(refuse()),
    };
    options.finish()?;
    Ok((regularizer != Regularizer::default()).then_some(regularizer))
}

pub(super) const GLOROT: Initializer = Initializer::GLOROT_UNIFORM;

pub(super) fn initializer(
    fields: &mut Fields<'_>,
    key: &'static str,
    default: Initializer,
) -> Result<Initializer, ModelError> {
    if fields.get(key).is_none() {
        return Ok(default);
    }
    let named = fields.object(key)?;
    let refuse = || fields.refuse(key, "use one of Keras' Glorot, He, LeCun, Random, Constant");
    let Named {
        class,
        fields: mut options,
        ..
    } = named.ok_or_else(refuse)?;
    let name: String = class.chars().filter(|c| *c != '_').collect();
    let found = known_initializer(&name.to_ascii_lowercase(), &mut options)?;
    let found = found.ok_or_else(refuse)?;
    options.float32()?;
    no_seed(&mut options)?;
    options.finish()?;
    Ok(found)
}

/// No axis of a layer may be larger: a damaged file must not make us allocate without bound.
const MAX_SIZE: usize = 1 << 24;

fn known_initializer(
    name: &str,
    options: &mut Fields<'_>,
) -> Result<Option<Initializer>, ModelError> {
    let scaling = |scale, fan, uniform| Initializer::VarianceScaling {
        scale,
        fan,
        uniform,
    };
    Ok(Some(match name {
        "zeros" => Initializer::Constant(0.0),
        "ones" => Initializer::Constant(1.0),
        "constant" => Initializer::Constant(options.number("value", 0.0)?),
        "randomuniform" => Initializer::Uniform {
            low: options.number("minval", -0.05)?,
            high: options.number("maxval", 0.05)?,
        },
        "randomnormal" | "truncatednormal" => Initializer::Normal {
            mean: options.number("mean", 0.0)?,
            stddev: options.number("stddev", 0.05)?,
            truncated: name == "truncatednormal",
        },
        "glorotuniform" => scaling(1.0, Fan::Average, true),
        "glorotnormal" => scaling(1.0, Fan::Average, false),
        "heuniform" => scaling(2.0, Fan::In, true),
        "henormal" => scaling(2.0, Fan::In, false),
        "lecununiform" => scaling(1.0, Fan::In, true),
        "lecunnormal" => scaling(1.0, Fan::In, false),
        "variancescaling" => {
            let fan = match options.get("mode").map(Value::as_str) {
                None | Some(Some("fan_in")) => Fan::In,
                Some(Some("fan_out")) => Fan::Out,
                Some(Some("fan_avg")) => Fan::Average,
                Some(_) => return Err(options.refuse("mode", "use fan_in, fan_out or fan_avg")),
            };
            let remedy = "use truncated_normal or uniform";
            let uniform = match options.get("distribution").map(Value::as_str) {
                None | Some(Some("truncated_normal")) => false,
                Some(Some("uniform")) => true,
                Some(_) => return Err(options.refuse("distribution", remedy)),
            };
            let scale = options.factor("scale", 1.0)?;
            scaling(scale, fan, uniform)
        }
        _ => return Ok(None),
    }))
}
