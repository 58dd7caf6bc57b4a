//! Reading what Keras' `Sequential.to_json()` writes, in the forms of Keras 3 and Keras 2.
//!
//! The two differ in the input layer's key (`batch_shape`, `batch_input_shape`), in how a dtype is
//! written, and in `module`/`registered_name`, which older files lack. Options at their default
//! pass; any other option of a layer that this program does not have is an error, since a model
//! that silently computes something else is worse than none.

use std::path::Path;

use serde_json::{Map, Value};

use super::init::Fan;
use super::{Activation, Initializer, LayerSpec, ModelError, ModelSpec, Padding, Regularizer};

type Object = Map<String, Value>;

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
    for layer in layers {
        let class = layer["class_name"].as_str();
        let (Some(class), Some(config)) = (class, layer["config"].as_object()) else {
            let index = model.layers.len();
            return Err(not_a_model(format!(
                "layer {index} has no class_name or config"
            )));
        };
        for key in ["batch_shape", "batch_input_shape"] {
            // The first layer's counts: Keras 2 repeats the key in an Embedding, without sizes.
            let (Some(Value::Array(dims)), None) = (config.get(key), &model.input_shape) else {
                continue;
            };
            let dims = dims
                .iter()
                .skip(1)
                .map(|dim| dim.as_u64().and_then(|dim| usize::try_from(dim).ok()));
            model.input_shape = Some(dims.collect());
        }
        if class == "InputLayer" {
            continue;
        }
        let reader = Reader {
            origin,
            index: model.layers.len(),
            class,
            config,
        };
        model.layers.push(reader.layer()?);
    }
    if model.layers.is_empty() {
        return Err(not_a_model("the model has no layers".to_string()));
    }
    Ok(model)
}

/// One layer of the file.
struct Reader<'a> {
    origin: &'a str,
    index: usize,
    class: &'a str,
    config: &'a Object,
}

/// Keys that say nothing about the arithmetic.
const NEUTRAL: [&str; 8] = [
    "name",
    "trainable",
    "dtype",
    "batch_shape",
    "batch_input_shape",
    "data_format",
    "seed",
    "noise_shape",
];

impl Reader<'_> {
    fn layer(&self) -> Result<LayerSpec, ModelError> {
        self.check_common()?;
        match self.class {
            "Conv2D" | "Convolution2D" => self.conv(),
            "Dense" => self.dense(),
            "Embedding" => self.embedding(),
            "MaxPooling2D" | "MaxPool2D" => {
                let (pool_size, strides, padding) = self.pool()?;
                Ok(LayerSpec::MaxPooling2D {
                    pool_size,
                    strides,
                    padding,
                })
            }
            "AveragePooling2D" | "AvgPool2D" => {
                let (pool_size, strides, padding) = self.pool()?;
                Ok(LayerSpec::AveragePooling2D {
                    pool_size,
                    strides,
                    padding,
                })
            }
            "GlobalAveragePooling2D" | "GlobalAvgPool2D" => {
                self.only(&["keepdims"])?;
                self.must_be(
                    "keepdims",
                    &Value::Bool(false),
                    "add Flatten in place of it",
                )?;
                Ok(LayerSpec::GlobalAveragePooling2D)
            }
            "GlobalAveragePooling1D" | "GlobalAvgPool1D" => {
                self.only(&["keepdims"])?;
                self.must_be(
                    "keepdims",
                    &Value::Bool(false),
                    "add Flatten in place of it",
                )?;
                Ok(LayerSpec::GlobalAveragePooling1D)
            }
            "Flatten" => self.only(&[]).map(|()| LayerSpec::Flatten),
            "Dropout" => self.dropout(),
            "Activation" => {
                self.only(&["activation"])?;
                self.activation().map(LayerSpec::Activation)
            }
            "ReLU" | "Softmax" => self.named_activation(),
            _ => Err(self.unsupported(
                "this layer".to_string(),
                "use Conv2D, MaxPooling2D, AveragePooling2D, GlobalAveragePooling2D, Flatten, \
                 Dense, Dropout, Embedding, GlobalAveragePooling1D and Activation",
            )),
        }
    }

    fn unsupported(&self, what: String, remedy: &'static str) -> ModelError {
        ModelError::Unsupported {
            origin: self.origin.to_string(),
            index: self.index,
            class: self.class.to_string(),
            what,
            remedy,
        }
    }

    fn option(&self, key: &str, remedy: &'static str) -> ModelError {
        let value = self.config.get(key).unwrap_or(&Value::Null);
        // Of an object its class says enough; a dtype policy's name does.
        let value = match (&value["config"]["name"], &value["class_name"]) {
            (name @ Value::String(_), _) | (_, name @ Value::String(_)) => name,
            _ => value,
        };
        self.unsupported(format!("option `{key}` = {value}"), remedy)
    }

    fn must_be(&self, key: &str, value: &Value, remedy: &'static str) -> Result<(), ModelError> {
        match self.config.get(key) {
            None => Ok(()),
            Some(found) if found == value || found.is_null() => Ok(()),
            Some(_) => Err(self.option(key, remedy)),
        }
    }

    /// Options that every layer has.
    fn check_common(&self) -> Result<(), ModelError> {
        self.must_be("trainable", &Value::Bool(true), "set it to true")?;
        let last = Value::from("channels_last");
        self.must_be("data_format", &last, "use channels_last")?;
        let dtype = match self.config.get("dtype") {
            Some(Value::Object(policy)) => policy["config"]["name"].as_str(),
            Some(dtype) => dtype.as_str(),
            None => None,
        };
        if dtype.is_some_and(|dtype| dtype != "float32") {
            return Err(self.option("dtype", "use float32"));
        }
        self.must_be("noise_shape", &Value::Null, "leave it out")
    }

    /// Refuses options beside the known ones that are set to something.
    fn only(&self, known: &[&str]) -> Result<(), ModelError> {
        let set = |value: &Value| !(value.is_null() || *value == Value::Bool(false));
        let unknown = self.config.iter().find(|(key, value)| {
            !known.contains(&key.as_str()) && !NEUTRAL.contains(&key.as_str()) && set(value)
        });
        match unknown {
            Some((key, _)) => Err(self.option(key, "remove the option")),
            None => Ok(()),
        }
    }

    fn conv(&self) -> Result<LayerSpec, ModelError> {
        self.only(&[
            "filters",
            "kernel_size",
            "strides",
            "padding",
            "dilation_rate",
            "groups",
            "activation",
            "use_bias",
            "kernel_initializer",
            "bias_initializer",
            "kernel_regularizer",
        ])?;
        let (strides, dilation_rate) = (self.pair("strides")?, self.pair("dilation_rate")?);
        Ok(LayerSpec::Conv2D {
            filters: self.count("filters")?,
            kernel_size: self.required_pair("kernel_size")?,
            strides: strides.unwrap_or([1, 1]),
            padding: self.padding()?,
            dilation_rate: dilation_rate.unwrap_or([1, 1]),
            groups: match self.config.contains_key("groups") {
                true => self.count("groups")?,
                false => 1,
            },
            activation: self.activation()?,
            use_bias: self.flag("use_bias", true)?,
            kernel_initializer: self.initializer("kernel_initializer")?,
            bias_initializer: self.initializer("bias_initializer")?,
            kernel_regularizer: self.regularizer("kernel_regularizer")?,
        })
    }

    fn dense(&self) -> Result<LayerSpec, ModelError> {
        self.only(&[
            "units",
            "activation",
            "use_bias",
            "kernel_initializer",
            "bias_initializer",
            "kernel_regularizer",
        ])?;
        Ok(LayerSpec::Dense {
            units: self.count("units")?,
            activation: self.activation()?,
            use_bias: self.flag("use_bias", true)?,
            kernel_initializer: self.initializer("kernel_initializer")?,
            bias_initializer: self.initializer("bias_initializer")?,
            kernel_regularizer: self.regularizer("kernel_regularizer")?,
        })
    }

    fn embedding(&self) -> Result<LayerSpec, ModelError> {
        self.only(&[
            "input_dim",
            "output_dim",
            "embeddings_initializer",
            "embeddings_regularizer",
            "mask_zero",
            // Keras 2: only a promise about the length of the inputs.
            "input_length",
        ])?;
        Ok(LayerSpec::Embedding {
            input_dim: self.count("input_dim")?,
            output_dim: self.count("output_dim")?,
            mask_zero: self.flag("mask_zero", false)?,
            embeddings_initializer: self.initializer("embeddings_initializer")?,
            embeddings_regularizer: self.regularizer("embeddings_regularizer")?,
        })
    }

    fn dropout(&self) -> Result<LayerSpec, ModelError> {
        self.only(&["rate"])?;
        let rate = self.config.get("rate").and_then(Value::as_f64);
        match rate.filter(|rate| (0.0..1.0).contains(rate)) {
            Some(rate) => Ok(LayerSpec::Dropout { rate }),
            None => Err(self.option("rate", "use a rate from 0 up to, but not, 1")),
        }
    }

    fn pool(&self) -> Result<([usize; 2], [usize; 2], Padding), ModelError> {
        self.only(&["pool_size", "strides", "padding"])?;
        let pool_size = self.required_pair("pool_size")?;
        let strides = self.pair("strides")?.unwrap_or(pool_size);
        Ok((pool_size, strides, self.padding()?))
    }

    /// `ReLU` and `Softmax` without options.
    fn named_activation(&self) -> Result<LayerSpec, ModelError> {
        let is_default = |key: &str, value: &Value| match key {
            "negative_slope" | "threshold" => value.as_f64() == Some(0.0),
            "axis" => value.as_i64() == Some(-1),
            _ => NEUTRAL.contains(&key),
        };
        let changed = self
            .config
            .iter()
            .find(|(key, value)| !value.is_null() && !is_default(key, value));
        if let Some((key, _)) = changed {
            return Err(self.option(key, "use the layer without options"));
        }
        Ok(LayerSpec::Activation(match self.class {
            "ReLU" => Activation::Relu,
            _ => Activation::Softmax,
        }))
    }

    fn count(&self, key: &str) -> Result<usize, ModelError> {
        let value = self.config.get(key).and_then(Value::as_u64);
        value
            .and_then(|value| usize::try_from(value).ok())
            .filter(|value| (1..=MAX_SIZE).contains(value))
            .ok_or_else(|| self.option(key, "use a whole number from 1 on"))
    }

    fn required_pair(&self, key: &str) -> Result<[usize; 2], ModelError> {
        self.pair(key)?
            .ok_or_else(|| self.option(key, "use one or two whole numbers"))
    }

    /// A size: one number, or rows and columns.
    fn pair(&self, key: &str) -> Result<Option<[usize; 2]>, ModelError> {
        let number = |value: &Value| {
            let value = usize::try_from(value.as_u64()?).ok()?;
            (1..=MAX_SIZE).contains(&value).then_some(value)
        };
        let pair = match self.config.get(key) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Array(pair)) => match pair.as_slice() {
                [rows, columns] => number(rows).zip(number(columns)),
                _ => None,
            },
            Some(value) => number(value).map(|n| (n, n)),
        };
        match pair {
            Some((rows, columns)) => Ok(Some([rows, columns])),
            None => Err(self.option(key, "use one or two whole numbers from 1 on")),
        }
    }

    fn padding(&self) -> Result<Padding, ModelError> {
        match self.config.get("padding").and_then(Value::as_str) {
            None | Some("valid") => Ok(Padding::Valid),
            Some("same") => Ok(Padding::Same),
            Some(_) => Err(self.option("padding", "use valid or same")),
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        match self.config.get(key) {
            None => Ok(default),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.option(key, "use true or false")),
        }
    }

    fn activation(&self) -> Result<Activation, ModelError> {
        // A function object is written as a name, or as an object that holds the name.
        let name = match self.config.get("activation") {
            None | Some(Value::Null) => return Ok(Activation::Linear),
            Some(Value::Object(object)) => object
                .get("config")
                .and_then(|config| config.as_str().or_else(|| config["name"].as_str())),
            Some(name) => name.as_str(),
        };
        name.and_then(Activation::from_name).ok_or_else(|| {
            let remedy = "use linear, relu, relu6, sigmoid, tanh, softmax, softplus, softsign, \
                          gelu, silu, elu or exponential";
            self.option("activation", remedy)
        })
    }

    /// A class name and its configuration; a plain string is a class without one.
    fn object(&self, key: &str) -> Option<(String, Object)> {
        match self.config.get(key)? {
            Value::String(name) => Some((name.clone(), Object::new())),
            Value::Object(object) => {
                let config = object.get("config").and_then(Value::as_object);
                let name = object.get("class_name")?.as_str()?.to_string();
                Some((name, config.cloned().unwrap_or_default()))
            }
            _ => None,
        }
    }

    fn regularizer(&self, key: &str) -> Result<Option<Regularizer>, ModelError> {
        if self.config.get(key).is_none_or(Value::is_null) {
            return Ok(None);
        }
        let refuse = || self.option(key, "use L1, L2 or L1L2");
        let (class, config) = self.object(key).ok_or_else(refuse)?;
        let number = |name: &str, default: f64| match config.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => {
                let factor = value.as_f64().ok_or_else(refuse)?;
                let is_factor = factor.is_finite() && factor >= 0.0;
                is_factor.then_some(factor).ok_or_else(|| {
                    let what = format!("option `{key}` with {name} = {factor}");
                    self.unsupported(what, "use a factor from 0 on")
                })
            }
        };
        let regularizer = match class.to_ascii_lowercase().as_str() {
            "l1" => Regularizer {
                l1: number("l1", 0.01)?,
                l2: 0.0,
            },
            "l2" => Regularizer {
                l1: 0.0,
                l2: number("l2", 0.01)?,
            },
            "l1l2" | "l1_l2" => Regularizer {
                l1: number("l1", 0.0)?,
                l2: number("l2", 0.0)?,
            },
            _ => return Err(refuse()),
        };
        Ok((regularizer != Regularizer::default()).then_some(regularizer))
    }

    fn initializer(&self, key: &str) -> Result<Initializer, ModelError> {
        if !self.config.contains_key(key) {
            return Ok(match key {
                "bias_initializer" => Initializer::ZEROS,
                "embeddings_initializer" => Initializer::EMBEDDING_DEFAULT,
                _ => Initializer::GLOROT_UNIFORM,
            });
        }
        let refuse = || self.option(key, "use one of Keras' Glorot, He, LeCun, Random, Constant");
        let (class, config) = self.object(key).ok_or_else(refuse)?;
        let name: String = class.chars().filter(|c| *c != '_').collect();
        known_initializer(&name.to_ascii_lowercase(), &config).ok_or_else(refuse)
    }
}

/// No axis of a layer may be larger: a damaged file must not make us allocate without bound.
const MAX_SIZE: usize = 1 << 24;

fn known_initializer(name: &str, config: &Object) -> Option<Initializer> {
    let number = |key: &str, default: f64| match config.get(key) {
        None | Some(Value::Null) => Some(default),
        Some(value) => value.as_f64(),
    };
    let scaling = |scale, fan, uniform| {
        Some(Initializer::VarianceScaling {
            scale,
            fan,
            uniform,
        })
    };
    let normal = |truncated| {
        Some(Initializer::Normal {
            mean: number("mean", 0.0)?,
            stddev: number("stddev", 0.05)?,
            truncated,
        })
    };
    match name {
        "zeros" => Some(Initializer::Constant(0.0)),
        "ones" => Some(Initializer::Constant(1.0)),
        "constant" => number("value", 0.0).map(Initializer::Constant),
        "randomuniform" => Some(Initializer::Uniform {
            low: number("minval", -0.05)?,
            high: number("maxval", 0.05)?,
        }),
        "randomnormal" => normal(false),
        "truncatednormal" => normal(true),
        "glorotuniform" => scaling(1.0, Fan::Average, true),
        "glorotnormal" => scaling(1.0, Fan::Average, false),
        "heuniform" => scaling(2.0, Fan::In, true),
        "henormal" => scaling(2.0, Fan::In, false),
        "lecununiform" => scaling(1.0, Fan::In, true),
        "lecunnormal" => scaling(1.0, Fan::In, false),
        "variancescaling" => {
            let fan = match config.get("mode").and_then(Value::as_str) {
                None | Some("fan_in") => Fan::In,
                Some("fan_out") => Fan::Out,
                Some("fan_avg") => Fan::Average,
                Some(_) => return None,
            };
            let uniform = match config.get("distribution").and_then(Value::as_str) {
                None | Some("truncated_normal") => false,
                Some("uniform") => true,
                Some(_) => return None,
            };
            scaling(number("scale", 1.0)?, fan, uniform)
        }
        _ => None,
    }
}
