//! The options that several layers have.

use serde_json::Value;

use crate::fields::Fields;
use crate::init::Fan;
use crate::{Initializer, ModelError};

/// Options that every layer has: whether it is trainable.
pub(crate) fn common(fields: &mut Fields<'_>) -> Result<bool, ModelError> {
    fields.neutral(&["name", "batch_shape", "batch_input_shape"]);
    fields.must_be("autocast", true, "set it to true")?;
    fields.float32()?;
    fields.flag("trainable", true)
}

pub(super) fn channels_last(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    fields.must_be("data_format", "channels_last", "use channels_last")
}

/// Layers' seeds change nothing: the one seed of the run decides.
pub(super) fn no_seed(fields: &mut Fields<'_>) {
    fields.neutral(&["seed", "seed_generator", "rng_type", "force_generator"]);
}

pub(super) fn count(fields: &mut Fields<'_>, key: &'static str) -> Result<usize, ModelError> {
    let size = fields.get(key).and_then(size);
    size.ok_or_else(|| fields.refuse(key, "use a whole number from 1 on"))
}

/// A count that may be left out.
pub(super) fn optional_count(
    fields: &mut Fields<'_>,
    key: &'static str,
) -> Result<Option<usize>, ModelError> {
    match fields.get(key) {
        Some(_) => count(fields, key).map(Some),
        None => Ok(None),
    }
}

pub(super) fn required_extents<const N: usize>(
    fields: &mut Fields<'_>,
    key: &'static str,
) -> Result<[usize; N], ModelError> {
    extents(fields, key)?.ok_or_else(|| {
        let remedy = match N {
            1 => "use one whole number",
            2 => "use one or two whole numbers",
            _ => "use one or three whole numbers",
        };
        fields.refuse(key, remedy)
    })
}

/// A size: one number for all axes, or a number for each, rows and columns.
pub(super) fn extents<const N: usize>(
    fields: &mut Fields<'_>,
    key: &'static str,
) -> Result<Option<[usize; N]>, ModelError> {
    let found = match fields.get(key) {
        None => return Ok(None),
        Some(Value::Array(list)) => {
            let sizes: Option<Vec<usize>> = list.iter().map(size).collect();
            sizes.and_then(|sizes| <[usize; N]>::try_from(sizes).ok())
        }
        Some(value) => size(value).map(|n| [n; N]),
    };
    let remedy = match N {
        1 => "use one whole number from 1 on",
        2 => "use one or two whole numbers from 1 on",
        _ => "use one or three whole numbers from 1 on",
    };
    found.map(Some).ok_or_else(|| fields.refuse(key, remedy))
}

/// A whole number from 1 on.
pub(super) fn size(value: &Value) -> Option<usize> {
    pad(value).filter(|size| *size > 0)
}

/// A number of rows or columns, which may be 0.
pub(super) fn pad(value: &Value) -> Option<usize> {
    let value = usize::try_from(value.as_u64()?).ok()?;
    (value <= MAX_SIZE).then_some(value)
}

/// What is added to, or taken from, the sides of an image, or along as many axes: one number; one
/// for each axis; or for each axis two, at its start and its end. A sequence's two numbers are its
/// start and its end.
pub(super) fn sides<const N: usize>(
    fields: &mut Fields<'_>,
    key: &'static str,
    default: usize,
) -> Result<[(usize, usize); N], ModelError> {
    channels_last(fields)?;
    let side = |value: &Value| match value {
        Value::Array(pair) => match pair.as_slice() {
            [before, after] => Some((pad(before)?, pad(after)?)),
            _ => None,
        },
        both => pad(both).map(|both| (both, both)),
    };
    let found = match fields.get(key) {
        None => Some([(default, default); N]),
        Some(pair @ Value::Array(_)) if N == 1 => side(pair).map(|pair| [pair; N]),
        Some(Value::Array(each)) => {
            let sides: Option<Vec<_>> = each.iter().map(side).collect();
            sides.and_then(|sides| <[(usize, usize); N]>::try_from(sides).ok())
        }
        Some(all) => pad(all).map(|all| [(all, all); N]),
    };
    let remedy = match N {
        1 => "use one whole number, or two",
        2 => "use one whole number, two, or two pairs",
        _ => "use one whole number, three, or three pairs",
    };
    found.ok_or_else(|| fields.refuse(key, remedy))
}

/// The fraction of elements that a dropout sets to zero.
pub(super) fn rate(fields: &mut Fields<'_>, key: &'static str) -> Result<f64, ModelError> {
    let rate = fields.get(key).and_then(Value::as_f64);
    rate.filter(|rate| (0.0..1.0).contains(rate))
        .ok_or_else(|| fields.refuse(key, "use a rate from 0 up to, but not, 1"))
}

/// A rate that is 0 if it is left out.
pub(super) fn optional_rate(fields: &mut Fields<'_>, key: &'static str) -> Result<f64, ModelError> {
    match fields.get(key) {
        Some(_) => rate(fields, key),
        None => Ok(0.0),
    }
}

pub(super) fn epsilon(fields: &mut Fields<'_>) -> Result<f64, ModelError> {
    let epsilon = fields.number("epsilon", 1e-3)?;
    if epsilon > 0.0 {
        Ok(epsilon)
    } else {
        Err(fields.refuse("epsilon", "use a number above 0"))
    }
}

/// One axis; a list of one stands for it.
pub(super) fn axis(fields: &mut Fields<'_>) -> Result<i64, ModelError> {
    let axis = match fields.get("axis") {
        None => Some(-1),
        Some(Value::Array(axes)) if axes.len() == 1 => axes[0].as_i64(),
        Some(axis) => axis.as_i64(),
    };
    axis.ok_or_else(|| fields.refuse("axis", "use the last axis, -1"))
}

/// Numbers, one or a list; lists of lists of one are what Keras' broadcasting needs.
pub(super) fn optional_numbers(
    fields: &mut Fields<'_>,
    key: &'static str,
) -> Result<Option<Vec<f64>>, ModelError> {
    fn flat(value: &Value) -> Option<Vec<f64>> {
        match value {
            Value::Array(list) if list.len() == 1 && list[0].is_array() => flat(&list[0]),
            Value::Array(list) if !list.is_empty() => list.iter().map(Value::as_f64).collect(),
            number => number.as_f64().map(|number| vec![number]),
        }
    }
    match fields.get(key) {
        None => Ok(None),
        Some(value) => match flat(value) {
            Some(numbers) => Ok(Some(numbers)),
            None => Err(fields.refuse(key, "use a number, or one per feature")),
        },
    }
}

/// How the shifts and the factors of a normalization start, where it has them.
pub(super) fn shift_and_factor(
    fields: &mut Fields<'_>,
) -> Result<(Option<Initializer>, Option<Initializer>), ModelError> {
    let beta = initializer(fields, "beta_initializer", Initializer::ZEROS)?;
    let gamma = initializer(fields, "gamma_initializer", Initializer::ONES)?;
    let center = fields.flag("center", true)?;
    let scale = fields.flag("scale", true)?;
    Ok((center.then_some(beta), scale.then_some(gamma)))
}

/// How a kernel starts.
pub(super) fn kernel_initializer(
    fields: &mut Fields<'_>,
    key: &'static str,
) -> Result<Initializer, ModelError> {
    initializer(fields, key, Initializer::GLOROT_UNIFORM)
}

/// How the bias starts.
pub(super) fn bias_initializer(fields: &mut Fields<'_>) -> Result<Initializer, ModelError> {
    initializer(fields, "bias_initializer", Initializer::ZEROS)
}

pub(super) fn initializer(
    fields: &mut Fields<'_>,
    key: &'static str,
    default: Initializer,
) -> Result<Initializer, ModelError> {
    if fields.get(key).is_none() {
        return Ok(default);
    }
    let named = fields.object(key)?;
    let refuse = || {
        fields.refuse(
            key,
            "use one of Keras' Glorot, He, LeCun, Random, Orthogonal, Constant",
        )
    };
    let named = named.ok_or_else(refuse)?;
    let mut options = named.fields;
    let name: String = named.class.chars().filter(|c| *c != '_').collect();
    let found = known_initializer(&name.to_ascii_lowercase(), &mut options)?.ok_or_else(refuse)?;
    options.float32()?;
    no_seed(&mut options);
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
        "orthogonal" => Initializer::Orthogonal {
            gain: options.number("gain", 1.0)?,
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
