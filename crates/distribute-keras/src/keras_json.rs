//! Reading what Keras' `Sequential.to_json()` writes, in the forms of Keras 3 and Keras 2.
//!
//! The two differ in the input layer's key (`batch_shape`, `batch_input_shape`), in how a dtype is
//! written, and in `module`/`registered_name`, which older files lack. Every option of a layer, and
//! of what stands inside it, is honoured or refused by name, since a model that silently computes
//! something else is worse than none; how, [`fields`](crate::fields) says. What a layer is called,
//! `build_config` and the model's `compile_config` change nothing here: optimizer and loss are the
//! program's.

use std::path::Path;

use serde_json::Value;

use crate::fields::{Fields, Named, Place};
use crate::init::Fan;
use crate::{Activation, Initializer, LayerSpec, ModelError, ModelSpec, Padding, Regularizer};

/// Reads a model file; the model is named after the file.
///
/// # Errors
/// [`ModelError::Io`], and those of [`parse_keras_json`].
pub fn read_keras_json(path: impl AsRef<Path>) -> Result<ModelSpec, ModelError> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).map_err(|source| ModelError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    let name = path.file_name().map(|name| name.to_string_lossy());
    parse_keras_json(&text, &name.unwrap_or_else(|| path.to_string_lossy()))
}

/// Reads a model from the text of a model file; `origin` names it in messages.
///
/// # Errors
/// [`ModelError::NotAModel`] if it is not such a file, [`ModelError::Unsupported`] with the layer
/// and the option that this program does not have.
pub fn parse_keras_json(text: &str, origin: &str) -> Result<ModelSpec, ModelError> {
    let not_a_model = |what: String| ModelError::NotAModel {
        origin: origin.to_string(),
        what,
    };
    let root: Value =
        serde_json::from_str(text).map_err(|error| not_a_model(format!("not JSON: {error}")))?;
    let class = root["class_name"].as_str().unwrap_or("no class_name");
    if class != "Sequential" {
        return Err(not_a_model(format!(
            "a Keras Sequential is needed, this is `{class}`"
        )));
    }
    // Keras 2.2 and older wrote the list of layers in place of the configuration.
    let layers = match &root["config"] {
        Value::Array(layers) => Some(layers),
        config => config["layers"].as_array(),
    };
    let layers =
        layers.ok_or_else(|| not_a_model("the configuration has no layers".to_string()))?;
    let mut model = ModelSpec {
        name: origin.to_string(),
        input_shape: None,
        layers: Vec::with_capacity(layers.len()),
    };
    let mut tokens = Ok(());
    for layer in layers {
        let index = model.layers.len();
        let parts = (layer.as_object(), layer["class_name"].as_str());
        let (Some(outer), Some(class), true) = (parts.0, parts.1, layer["config"].is_object())
        else {
            return Err(not_a_model(format!(
                "layer {index} has no class_name or config"
            )));
        };
        let place = Place {
            origin,
            index,
            class,
        };
        let Some(Named { mut fields, .. }) = Fields::named(place, String::new(), outer)? else {
            continue;
        };
        let shape = input_shape(&mut fields)?;
        // The first layer's counts: Keras 2 repeats the key in an Embedding, without sizes.
        model.input_shape = model.input_shape.or(shape);
        if class == "InputLayer" {
            tokens = input_layer(fields)?;
            continue;
        }
        model.layers.push(read_layer(class, fields)?);
    }
    if model.layers.is_empty() {
        return Err(not_a_model("the model has no layers".to_string()));
    }
    if !matches!(model.layers[0], LayerSpec::Embedding { .. }) {
        tokens?;
    }
    check_sequential(&root["config"], origin)?;
    Ok(model)
}

/// The options of the model itself.
fn check_sequential(config: &Value, origin: &str) -> Result<(), ModelError> {
    let place = Place {
        origin,
        index: 0,
        class: "Sequential",
    };
    let mut fields = Fields::new(place, String::new(), config.as_object());
    fields.neutral(&["name", "layers", "build_input_shape"]);
    let checked = fields.must_be("trainable", true, "set it to true");
    let checked = checked.and_then(|()| fields.float32());
    checked.and_then(|()| fields.finish()).map_err(|error| {
        let what = match error {
            ModelError::Unsupported { what, remedy, .. } => {
                format!("{what} of the Sequential is not supported ({remedy})")
            }
            other => other.to_string(),
        };
        ModelError::NotAModel {
            origin: origin.to_string(),
            what,
        }
    })
}

/// The shape of one example, if this layer says it.
fn input_shape(fields: &mut Fields<'_>) -> Result<Option<Vec<Option<usize>>>, ModelError> {
    for key in ["batch_shape", "batch_input_shape"] {
        let Some(Value::Array(dims)) = fields.get(key) else {
            continue;
        };
        if dims.first().is_some_and(|batch| !batch.is_null()) {
            return Err(fields.refuse(key, "leave the size of a batch open"));
        }
        let dims = dims
            .iter()
            .skip(1)
            .map(|dim| dim.as_u64().and_then(|dim| usize::try_from(dim).ok()));
        return Ok(Some(dims.collect()));
    }
    Ok(None)
}

/// The input layer's own options. The inner result is of a type that only tokens can have.
fn input_layer(mut fields: Fields<'_>) -> Result<Result<(), ModelError>, ModelError> {
    fields.neutral(&["name"]);
    for key in ["sparse", "ragged", "optional"] {
        fields.must_be(key, false, "set it to false")?;
    }
    let integers = match fields.get("dtype").and_then(Value::as_str) {
        Some("int32" | "int64" | "uint32" | "int16") => {
            Err(fields.refuse("dtype", "use float32, or begin with an Embedding"))
        }
        _ => {
            fields.float32()?;
            Ok(())
        }
    };
    fields.finish()?;
    Ok(integers)
}

fn read_layer(class: &str, mut fields: Fields<'_>) -> Result<LayerSpec, ModelError> {
    common(&mut fields)?;
    let layer = match class {
        "Conv2D" | "Convolution2D" => conv(&mut fields)?,
        "Dense" => dense(&mut fields)?,
        "Embedding" => embedding(&mut fields)?,
        "MaxPooling2D" | "MaxPool2D" => {
            let (pool_size, strides, padding) = pool(&mut fields)?;
            LayerSpec::MaxPooling2D {
                pool_size,
                strides,
                padding,
            }
        }
        "AveragePooling2D" | "AvgPool2D" => {
            let (pool_size, strides, padding) = pool(&mut fields)?;
            LayerSpec::AveragePooling2D {
                pool_size,
                strides,
                padding,
            }
        }
        "GlobalAveragePooling2D" | "GlobalAvgPool2D" => {
            global_pool(&mut fields)?;
            LayerSpec::GlobalAveragePooling2D
        }
        "GlobalAveragePooling1D" | "GlobalAvgPool1D" => {
            global_pool(&mut fields)?;
            LayerSpec::GlobalAveragePooling1D
        }
        "Flatten" => {
            channels_last(&mut fields)?;
            LayerSpec::Flatten
        }
        "Dropout" => dropout(&mut fields)?,
        _ => match activation_class(class, &mut fields)? {
            Some(activation) => LayerSpec::Activation(activation),
            None => {
                return Err(fields.place().unsupported(
                    "this layer".to_string(),
                    "use Conv2D, MaxPooling2D, AveragePooling2D, GlobalAveragePooling2D, Flatten, \
                     Dense, Dropout, Embedding, GlobalAveragePooling1D, Activation, ReLU, \
                     LeakyReLU, ELU and Softmax",
                ));
            }
        },
    };
    fields.finish()?;
    Ok(layer)
}

/// Options that every layer has.
fn common(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    fields.neutral(&["name", "batch_shape", "batch_input_shape"]);
    fields.must_be("trainable", true, "set it to true")?;
    fields.must_be("autocast", true, "set it to true")?;
    fields.float32()
}

fn channels_last(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    fields.must_be("data_format", "channels_last", "use channels_last")
}

/// What a seed decides is decided by the one seed of the run.
fn no_seed(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    match fields.get("seed") {
        None => Ok(()),
        Some(_) => Err(fields.refuse("seed", "leave it out: the seed of the run decides")),
    }
}

fn conv(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    channels_last(fields)?;
    let (strides, dilation_rate) = (pair(fields, "strides")?, pair(fields, "dilation_rate")?);
    let groups = match fields.get("groups") {
        Some(_) => count(fields, "groups")?,
        None => 1,
    };
    Ok(LayerSpec::Conv2D {
        filters: count(fields, "filters")?,
        kernel_size: required_pair(fields, "kernel_size")?,
        strides: strides.unwrap_or([1, 1]),
        padding: padding(fields)?,
        dilation_rate: dilation_rate.unwrap_or([1, 1]),
        groups,
        activation: activation(fields)?,
        use_bias: fields.flag("use_bias", true)?,
        kernel_initializer: initializer(fields, "kernel_initializer", GLOROT)?,
        bias_initializer: initializer(fields, "bias_initializer", Initializer::ZEROS)?,
        kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
    })
}

fn dense(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    Ok(LayerSpec::Dense {
        units: count(fields, "units")?,
        activation: activation(fields)?,
        use_bias: fields.flag("use_bias", true)?,
        kernel_initializer: initializer(fields, "kernel_initializer", GLOROT)?,
        bias_initializer: initializer(fields, "bias_initializer", Initializer::ZEROS)?,
        kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
    })
}

fn embedding(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    // Keras 2: only a promise about the length of the inputs.
    fields.neutral(&["input_length"]);
    fields.must_be("sparse", false, "set it to false")?;
    let default = Initializer::EMBEDDING_DEFAULT;
    Ok(LayerSpec::Embedding {
        input_dim: count(fields, "input_dim")?,
        output_dim: count(fields, "output_dim")?,
        mask_zero: fields.flag("mask_zero", false)?,
        embeddings_initializer: initializer(fields, "embeddings_initializer", default)?,
        embeddings_regularizer: regularizer(fields, "embeddings_regularizer")?,
    })
}

fn dropout(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    no_seed(fields)?;
    let rate = fields.get("rate").and_then(Value::as_f64);
    match rate.filter(|rate| (0.0..1.0).contains(rate)) {
        Some(rate) => Ok(LayerSpec::Dropout { rate }),
        None => Err(fields.refuse("rate", "use a rate from 0 up to, but not, 1")),
    }
}

fn pool(fields: &mut Fields<'_>) -> Result<([usize; 2], [usize; 2], Padding), ModelError> {
    channels_last(fields)?;
    let pool_size = required_pair(fields, "pool_size")?;
    let strides = pair(fields, "strides")?.unwrap_or(pool_size);
    Ok((pool_size, strides, padding(fields)?))
}

fn global_pool(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    channels_last(fields)?;
    fields.must_be("keepdims", false, "add Flatten in place of it")
}

fn count(fields: &mut Fields<'_>, key: &'static str) -> Result<usize, ModelError> {
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

fn padding(fields: &mut Fields<'_>) -> Result<Padding, ModelError> {
    match fields.get("padding").map(Value::as_str) {
        None | Some(Some("valid")) => Ok(Padding::Valid),
        Some(Some("same")) => Ok(Padding::Same),
        Some(_) => Err(fields.refuse("padding", "use valid or same")),
    }
}

const ACTIVATIONS: &str = "use linear, relu, relu6, leaky_relu, sigmoid, tanh, softmax, softplus, \
                           softsign, gelu, silu, elu or exponential, or a layer ReLU, LeakyReLU, \
                           ELU or Softmax";

/// The option `activation`: a function's name, a function, or a layer with options.
fn activation(fields: &mut Fields<'_>) -> Result<Activation, ModelError> {
    let key = "activation";
    let named = match fields.get(key) {
        None => return Ok(Activation::Linear),
        Some(Value::String(name)) => {
            let found = Activation::from_name(name);
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
        } => Activation::from_name(name),
        Named {
            class,
            function: None,
            fields: mut options,
        } => {
            common(&mut options)?;
            let found = activation_class(class, &mut options)?;
            options.finish()?;
            found
        }
        Named { .. } => None,
    };
    found.ok_or_else(refuse)
}

/// A layer that is one function; nothing if it is another layer.
fn activation_class(
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

fn regularizer(
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

const GLOROT: Initializer = Initializer::GLOROT_UNIFORM;

fn initializer(
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
