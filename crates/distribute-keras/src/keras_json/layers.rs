//! The options of every layer.

use serde_json::Value;

use super::options::{
    GLOROT, activation, activation_class, channels_last, common, count, initializer, no_seed, pad,
    pool, rate, regularizer, sides, windows,
};
use crate::fields::Fields;
use crate::{Initializer, LayerSpec, Merge, ModelError};

/// The shape of one example, if this layer says it.
pub(super) fn input_shape(
    fields: &mut Fields<'_>,
) -> Result<Option<Vec<Option<usize>>>, ModelError> {
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
pub(super) fn input_layer(mut fields: Fields<'_>) -> Result<Result<(), ModelError>, ModelError> {
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

/// A layer with its options, and whether it is trained.
pub(super) fn read_layer(
    class: &str,
    mut fields: Fields<'_>,
) -> Result<(LayerSpec, bool), ModelError> {
    let trainable = common(&mut fields)?;
    let layer = match weighted(class, &mut fields)? {
        Some(layer) => Some(layer),
        None => match pooling(class, &mut fields)? {
            Some(layer) => Some(layer),
            None => plain(class, &mut fields)?,
        },
    };
    let Some(layer) = layer else {
        return Err(fields.place().unsupported(
            "this layer".to_string(),
            "use Dense, Conv2D, DepthwiseConv2D, SeparableConv2D, Embedding, MultiHeadAttention, \
             BatchNormalization, LayerNormalization, Normalization, Rescaling, Max- and \
             AveragePooling2D, GlobalMax- and GlobalAveragePooling2D, GlobalAveragePooling1D, \
             ZeroPadding2D, Cropping2D, Flatten, Reshape, Dropout, SpatialDropout2D, Activation, \
             ReLU, LeakyReLU, ELU, Softmax, Add, Subtract, Multiply, Average, Maximum, Minimum \
             and Concatenate",
        ));
    };
    fields.finish()?;
    Ok((layer, trainable))
}

/// Layers with weights.
fn weighted(class: &str, fields: &mut Fields<'_>) -> Result<Option<LayerSpec>, ModelError> {
    Ok(Some(match class {
        "Conv2D" | "Convolution2D" => conv(fields)?,
        "DepthwiseConv2D" => depthwise(fields)?,
        "SeparableConv2D" | "SeparableConvolution2D" => separable(fields)?,
        "Dense" => dense(fields)?,
        "Embedding" => embedding(fields)?,
        "MultiHeadAttention" => attention(fields)?,
        "BatchNormalization" => batch_normalization(fields)?,
        "LayerNormalization" => layer_normalization(fields)?,
        "Normalization" => normalization(fields)?,
        _ => return Ok(None),
    }))
}

/// Pools, and what changes the size of an image.
fn pooling(class: &str, fields: &mut Fields<'_>) -> Result<Option<LayerSpec>, ModelError> {
    let keepdims = |fields: &mut Fields<'_>| {
        channels_last(fields)?;
        fields.flag("keepdims", false)
    };
    Ok(Some(match class {
        "MaxPooling2D" | "MaxPool2D" => {
            let (pool_size, strides, padding) = pool(fields)?;
            LayerSpec::MaxPooling2D {
                pool_size,
                strides,
                padding,
            }
        }
        "AveragePooling2D" | "AvgPool2D" => {
            let (pool_size, strides, padding) = pool(fields)?;
            LayerSpec::AveragePooling2D {
                pool_size,
                strides,
                padding,
            }
        }
        "GlobalAveragePooling2D" | "GlobalAvgPool2D" => LayerSpec::GlobalAveragePooling2D {
            keepdims: keepdims(fields)?,
        },
        "GlobalMaxPooling2D" | "GlobalMaxPool2D" => LayerSpec::GlobalMaxPooling2D {
            keepdims: keepdims(fields)?,
        },
        "GlobalAveragePooling1D" | "GlobalAvgPool1D" => {
            channels_last(fields)?;
            fields.must_be("keepdims", false, "add Flatten in place of it")?;
            LayerSpec::GlobalAveragePooling1D
        }
        "ZeroPadding2D" => LayerSpec::ZeroPadding2D {
            padding: sides(fields, "padding", 1)?,
        },
        "Cropping2D" => LayerSpec::Cropping2D {
            cropping: sides(fields, "cropping", 0)?,
        },
        _ => return Ok(None),
    }))
}

/// Layers without weights that take all shapes.
fn plain(class: &str, fields: &mut Fields<'_>) -> Result<Option<LayerSpec>, ModelError> {
    Ok(Some(match class {
        "Flatten" => {
            channels_last(fields)?;
            LayerSpec::Flatten
        }
        "Reshape" => reshape(fields)?,
        "Dropout" => dropout(fields)?,
        "SpatialDropout2D" => {
            channels_last(fields)?;
            no_seed(fields)?;
            LayerSpec::Dropout {
                rate: rate(fields, "rate")?,
                shared: vec![false, true, true, false],
            }
        }
        "Rescaling" => LayerSpec::Rescaling {
            scale: numbers(fields, "scale", 1.0)?,
            offset: numbers(fields, "offset", 0.0)?,
        },
        "Add" => LayerSpec::Merge(Merge::Add),
        "Subtract" => LayerSpec::Merge(Merge::Subtract),
        "Multiply" => LayerSpec::Merge(Merge::Multiply),
        "Average" => LayerSpec::Merge(Merge::Average),
        "Maximum" => LayerSpec::Merge(Merge::Maximum),
        "Minimum" => LayerSpec::Merge(Merge::Minimum),
        "Concatenate" => LayerSpec::Merge(Merge::Concatenate {
            axis: axis(fields)?,
        }),
        _ => return Ok(activation_class(class, fields)?.map(LayerSpec::Activation)),
    }))
}

fn conv(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    channels_last(fields)?;
    let groups = match fields.get("groups") {
        Some(_) => count(fields, "groups")?,
        None => 1,
    };
    Ok(LayerSpec::Conv2D {
        filters: count(fields, "filters")?,
        windows: windows(fields)?,
        groups,
        activation: activation(fields)?,
        use_bias: fields.flag("use_bias", true)?,
        kernel_initializer: initializer(fields, "kernel_initializer", GLOROT)?,
        bias_initializer: initializer(fields, "bias_initializer", Initializer::ZEROS)?,
        kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
    })
}

/// The options of the first kernel that Keras 2 writes and does not use.
fn unused_groups(fields: &mut Fields<'_>) -> Result<(), ModelError> {
    channels_last(fields)?;
    fields.must_be("groups", 1, "leave it out: every channel is a group")
}

fn depthwise(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    unused_groups(fields)?;
    let depth_multiplier = match fields.get("depth_multiplier") {
        Some(_) => count(fields, "depth_multiplier")?,
        None => 1,
    };
    Ok(LayerSpec::DepthwiseConv2D {
        windows: windows(fields)?,
        depth_multiplier,
        activation: activation(fields)?,
        use_bias: fields.flag("use_bias", true)?,
        depthwise_initializer: initializer(fields, "depthwise_initializer", GLOROT)?,
        bias_initializer: initializer(fields, "bias_initializer", Initializer::ZEROS)?,
        depthwise_regularizer: regularizer(fields, "depthwise_regularizer")?,
    })
}

fn separable(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    unused_groups(fields)?;
    // Keras 2 writes those of a convolution too, and uses the two below.
    fields.neutral(&["kernel_initializer"]);
    let depth_multiplier = match fields.get("depth_multiplier") {
        Some(_) => count(fields, "depth_multiplier")?,
        None => 1,
    };
    Ok(LayerSpec::SeparableConv2D {
        filters: count(fields, "filters")?,
        windows: windows(fields)?,
        depth_multiplier,
        activation: activation(fields)?,
        use_bias: fields.flag("use_bias", true)?,
        depthwise_initializer: initializer(fields, "depthwise_initializer", GLOROT)?,
        pointwise_initializer: initializer(fields, "pointwise_initializer", GLOROT)?,
        bias_initializer: initializer(fields, "bias_initializer", Initializer::ZEROS)?,
        depthwise_regularizer: regularizer(fields, "depthwise_regularizer")?,
        pointwise_regularizer: regularizer(fields, "pointwise_regularizer")?,
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

fn attention(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    // Keras 2: the shapes of what it receives, which follow from the graph.
    fields.neutral(&["query_shape", "key_shape", "value_shape"]);
    no_seed(fields)?;
    let remedy = "set it to false";
    for key in ["use_gate", "softmax_robust_masking"] {
        fields.must_be(key, false, remedy)?;
    }
    // Another way to compute the same.
    fields.neutral(&["flash_attention"]);
    if let Some(axes) = fields.get("attention_axes")
        && *axes != serde_json::json!([1])
        && *axes != serde_json::json!(1)
    {
        return Err(fields.refuse("attention_axes", "use the steps alone, axis 1"));
    }
    let key_dim = count(fields, "key_dim")?;
    let value_dim = match fields.get("value_dim") {
        Some(_) => count(fields, "value_dim")?,
        None => key_dim,
    };
    let output_shape = match fields.get("output_shape") {
        Some(Value::Array(shape)) if shape.len() != 1 => {
            return Err(fields.refuse("output_shape", "use one number"));
        }
        Some(Value::Array(shape)) => {
            match shape[0].as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(outputs) if outputs > 0 => Some(outputs),
                _ => return Err(fields.refuse("output_shape", "use one number from 1 on")),
            }
        }
        Some(_) => Some(count(fields, "output_shape")?),
        None => None,
    };
    let dropout = match fields.get("dropout") {
        Some(_) => rate(fields, "dropout")?,
        None => 0.0,
    };
    Ok(LayerSpec::MultiHeadAttention {
        num_heads: count(fields, "num_heads")?,
        key_dim,
        value_dim,
        dropout,
        use_bias: fields.flag("use_bias", true)?,
        output_shape,
        kernel_initializer: initializer(fields, "kernel_initializer", GLOROT)?,
        bias_initializer: initializer(fields, "bias_initializer", Initializer::ZEROS)?,
        kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
    })
}

const ONES: Initializer = Initializer::Constant(1.0);

/// How the shifts and the factors of a normalization start, where it has them.
fn shift_and_factor(
    fields: &mut Fields<'_>,
) -> Result<(Option<Initializer>, Option<Initializer>), ModelError> {
    let beta = initializer(fields, "beta_initializer", Initializer::ZEROS)?;
    let gamma = initializer(fields, "gamma_initializer", ONES)?;
    let center = fields.flag("center", true)?;
    let scale = fields.flag("scale", true)?;
    Ok((center.then_some(beta), scale.then_some(gamma)))
}

fn batch_normalization(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    fields.must_be("renorm", false, "set it to false")?;
    fields.neutral(&["renorm_momentum"]);
    let synchronized = fields.flag("synchronized", false)?;
    // Keras 2: another kernel for the same.
    fields.neutral(&["fused"]);
    let (beta, gamma) = shift_and_factor(fields)?;
    let momentum = fields.number("momentum", 0.99)?;
    if !(0.0..=1.0).contains(&momentum) {
        return Err(fields.refuse("momentum", "use a number from 0 to 1"));
    }
    Ok(LayerSpec::BatchNormalization {
        axis: axis(fields)?,
        synchronized,
        momentum,
        epsilon: epsilon(fields)?,
        beta,
        gamma,
        moving_mean_initializer: initializer(
            fields,
            "moving_mean_initializer",
            Initializer::ZEROS,
        )?,
        moving_variance_initializer: initializer(fields, "moving_variance_initializer", ONES)?,
    })
}

fn layer_normalization(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    fields.must_be("rms_scaling", false, "set it to false")?;
    let (beta, gamma) = shift_and_factor(fields)?;
    Ok(LayerSpec::LayerNormalization {
        axis: axis(fields)?,
        epsilon: epsilon(fields)?,
        beta,
        gamma,
    })
}

fn normalization(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    fields.must_be("invert", false, "set it to false")?;
    let mean = optional_numbers(fields, "mean")?;
    let variance = optional_numbers(fields, "variance")?;
    let statistics = match (mean, variance) {
        (None, None) => None,
        (Some(mean), Some(variance)) => Some((mean, variance)),
        (Some(_), None) => return Err(fields.refuse("mean", "give the variance too")),
        (None, Some(_)) => return Err(fields.refuse("variance", "give the mean too")),
    };
    Ok(LayerSpec::Normalization {
        axis: axis(fields)?,
        statistics,
    })
}

fn epsilon(fields: &mut Fields<'_>) -> Result<f64, ModelError> {
    let epsilon = fields.number("epsilon", 1e-3)?;
    match epsilon > 0.0 {
        true => Ok(epsilon),
        false => Err(fields.refuse("epsilon", "use a number above 0")),
    }
}

/// One axis; a list of one stands for it.
fn axis(fields: &mut Fields<'_>) -> Result<i64, ModelError> {
    let axis = match fields.get("axis") {
        None => Some(-1),
        Some(Value::Array(axes)) if axes.len() == 1 => axes[0].as_i64(),
        Some(axis) => axis.as_i64(),
    };
    axis.ok_or_else(|| fields.refuse("axis", "use the last axis, -1"))
}

/// Numbers, one or a list; lists of lists of one are what Keras' broadcasting needs.
fn optional_numbers(
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

fn numbers(
    fields: &mut Fields<'_>,
    key: &'static str,
    default: f64,
) -> Result<Vec<f64>, ModelError> {
    Ok(optional_numbers(fields, key)?.unwrap_or_else(|| vec![default]))
}

fn dropout(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    no_seed(fields)?;
    let remedy = "use a list of null, and 1 for an axis along which the mask is the same";
    let shared = match fields.get("noise_shape") {
        None => Vec::new(),
        Some(shape) => {
            let axes = shape.as_array().into_iter().flatten();
            let shared = axes.map(|axis| match axis {
                Value::Null => Some(false),
                axis => (axis.as_u64() == Some(1)).then_some(true),
            });
            match shared.collect::<Option<Vec<bool>>>() {
                Some(shared) if shared.contains(&true) => shared,
                Some(shared) if !shared.is_empty() => Vec::new(),
                _ => return Err(fields.refuse("noise_shape", remedy)),
            }
        }
    };
    Ok(LayerSpec::Dropout {
        rate: rate(fields, "rate")?,
        shared,
    })
}

fn reshape(fields: &mut Fields<'_>) -> Result<LayerSpec, ModelError> {
    let extents = fields.get("target_shape").and_then(Value::as_array);
    let extent = |value: &Value| match value.as_i64() {
        Some(-1) => Some(None),
        _ => pad(value).filter(|extent| *extent > 0).map(Some),
    };
    let target: Option<Vec<_>> = extents.and_then(|all| all.iter().map(extent).collect());
    match target.filter(|target| target.iter().filter(|extent| extent.is_none()).count() < 2) {
        Some(target_shape) => Ok(LayerSpec::Reshape { target_shape }),
        None => Err(fields.refuse(
            "target_shape",
            "use a list of whole numbers from 1 on, and -1 for one of them",
        )),
    }
}
