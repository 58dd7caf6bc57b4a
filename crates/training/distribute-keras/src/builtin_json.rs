//! Built-in models in the form of `model.to_json()` of Keras 3, for files that Keras loads.

use serde_json::{Value, json};

use crate::{Activation, LayerSpec, Padding, Plan, Regularizer};

impl Plan {
    /// What `model.to_json()` of Keras 3 would write of a built-in model; nothing for a model with
    /// other layers, whose file says it.
    pub(crate) fn built_in_json(&self) -> Option<String> {
        let mut shape = vec![Value::Null];
        shape.extend(self.input().dims().into_iter().map(Value::from));
        let name = self.inputs.first().map(|input| input.name.as_str())?;
        let config = json!({"batch_shape": shape, "dtype": "float32", "name": name});
        let mut layers = vec![layer("InputLayer", config)];
        for (value, call) in self.calls.iter().enumerate() {
            // A chain.
            if call.inputs != [value] {
                return None;
            }
            let planned = self.layers.get(call.layer)?;
            let mut config = config_of(&planned.spec)?;
            config["name"] = planned.name.as_str().into();
            layers.push(layer(planned.spec.class(), config));
        }
        let root = json!({
            "module": "keras",
            "class_name": "Sequential",
            "config": {"name": self.name.replace('-', "_"), "trainable": true, "layers": layers},
            "registered_name": null,
            "build_config": {"input_shape": shape},
        });
        Some(root.to_string())
    }
}

fn layer(class: &str, config: Value) -> Value {
    json!({
        "module": "keras.layers",
        "class_name": class,
        "config": config,
        "registered_name": null,
    })
}

/// The options of the layers of which built-in models are made.
fn config_of(spec: &LayerSpec) -> Option<Value> {
    Some(match spec {
        LayerSpec::Dense(dense) => json!({
            "units": dense.units,
            "activation": activation(dense.activation)?,
            "use_bias": dense.use_bias,
            "kernel_regularizer": regularizer(dense.kernel_regularizer),
        }),
        LayerSpec::Conv2D(conv) => json!({
            "filters": conv.filters,
            "kernel_size": conv.windows.kernel_size,
            "strides": conv.windows.strides,
            "padding": padding(conv.windows.padding),
            "dilation_rate": conv.windows.dilation_rate,
            "groups": conv.groups,
            "activation": activation(conv.activation)?,
            "use_bias": conv.use_bias,
            "kernel_regularizer": regularizer(conv.kernel_regularizer),
        }),
        LayerSpec::MaxPooling2D(pool) => json!({
            "pool_size": pool.pool_size,
            "strides": pool.strides,
            "padding": padding(pool.padding),
        }),
        LayerSpec::Embedding(embedding) => json!({
            "input_dim": embedding.input_dim,
            "output_dim": embedding.output_dim,
            "mask_zero": embedding.mask_zero,
        }),
        LayerSpec::Flatten(_) | LayerSpec::GlobalAveragePooling1D(_) => json!({}),
        _ => return None,
    })
}

fn activation(activation: Activation) -> Option<&'static str> {
    match activation {
        Activation::Linear => Some("linear"),
        Activation::Relu => Some("relu"),
        Activation::Sigmoid => Some("sigmoid"),
        Activation::Softmax => Some("softmax"),
        _ => None,
    }
}

fn padding(padding: Padding) -> &'static str {
    match padding {
        Padding::Valid => "valid",
        Padding::Same => "same",
        Padding::Causal => "causal",
    }
}

fn regularizer(regularizer: Option<Regularizer>) -> Value {
    regularizer.map_or(Value::Null, |Regularizer { l1, l2 }| {
        json!({
            "module": "keras.regularizers",
            "class_name": "L1L2",
            "config": {"l1": l1, "l2": l2},
            "registered_name": null,
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::{BUILT_IN, built_in, parse_keras_json};

    #[test]
    fn a_built_in_model_is_the_same_in_a_file() {
        for (name, _) in BUILT_IN {
            let features: &[usize] = match name {
                "digits-cnn" => &[8, 8],
                "mnist-cnn" => &[28, 28],
                "mlp" => &[7],
                _ => &[12],
            };
            let spec = built_in(name, 10, 30).unwrap();
            let plan = spec.plan(features).unwrap();
            let text = plan.built_in_json().unwrap();
            let read = parse_keras_json(&text, name).unwrap();
            assert_eq!(read.layers, spec.layers, "{name}");
            let read = read.plan(&plan.input().dims()).unwrap();
            assert_eq!(read.layers, plan.layers, "{name}");
        }
    }
}
