"""Writes the model files and the expected numbers of this folder with real Keras.

    python -m venv venv && venv/bin/pip install tensorflow-cpu==2.21.0 tf_keras==2.21.0
    venv/bin/python generate.py

NAME.keras3.json and NAME.keras2.json are `Sequential.to_json()` of Keras 3 and Keras 2 (tf_keras).
NAME.expected.json holds what Keras says about the model: every layer's output shape and number of
parameters; and, for one seeded set of weights and inputs, the outputs and the sum of the
regularization losses.
"""

import json
import os
import pathlib

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras as keras3
import numpy as np
import tf_keras as keras2

HERE = pathlib.Path(__file__).parent


def documents_cnn(keras):
    """The CNN of the tutorial "Custom training with tf.distribute.Strategy"."""
    l2 = keras.regularizers.L2(1e-5)
    return [
        keras.layers.Conv2D(32, 3, activation="relu", kernel_regularizer=l2),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu", kernel_regularizer=l2),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu", kernel_regularizer=l2),
        keras.layers.Dense(10, kernel_regularizer=l2),
    ]


def same_padding(keras):
    """Strides, padding "same" on even and odd sizes, all pools, all regularizers."""
    r = keras.regularizers
    return [
        keras.layers.Conv2D(4, (3, 2), strides=(2, 1), padding="same", use_bias=False,
                            kernel_initializer="he_normal", kernel_regularizer=r.L1(1e-3)),
        keras.layers.Activation("tanh"),
        keras.layers.MaxPooling2D((3, 2), strides=(2, 2), padding="same"),
        keras.layers.Conv2D(6, 2, padding="same", activation="gelu",
                            kernel_regularizer=r.L1L2(l1=1e-3, l2=1e-2)),
        keras.layers.AveragePooling2D(2, strides=1, padding="same"),
        keras.layers.Dropout(0.25),
        keras.layers.Conv2D(5, 1, activation="softplus"),
        keras.layers.AveragePooling2D(2),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(7, activation="sigmoid", kernel_regularizer=r.L2(1e-2)),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(3, activation="softmax"),
    ]


def flatten_order(keras):
    """A Dense layer after Flatten sees (height, width, channels); layers in between do not mind."""
    return [
        keras.layers.Conv2D(3, 2),
        keras.layers.Activation("relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.1),
        keras.layers.Activation("silu"),
        keras.layers.Dense(4, activation="elu", bias_initializer="ones"),
        keras.layers.Dense(2),
    ]


def ends_with_flatten(keras):
    """Keras' order of the features is visible at the model's output."""
    return [
        keras.layers.Conv2D(2, 2, activation="relu"),
        keras.layers.Flatten(),
    ]


def text(keras):
    """The embedding classifier; index 0 is padding and does not count."""
    return [
        keras.layers.Embedding(20, 4, mask_zero=True),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(6, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]


MODELS = {
    "documents_cnn": (documents_cnn, (28, 28, 1)),
    "same_padding": (same_padding, (9, 8, 2)),
    "flatten_order": (flatten_order, (5, 4, 2)),
    "ends_with_flatten": (ends_with_flatten, (4, 3, 1)),
    "text": (text, (5,)),
}


def build(keras, layers, shape):
    dtype = "int32" if len(shape) == 1 else "float32"
    head = keras.layers.Input(shape=shape, dtype=dtype)
    return keras.Sequential([head] + layers(keras))


def inputs(shape, rng):
    if len(shape) == 1:
        tokens = rng.integers(1, 20, size=(3,) + shape)
        tokens[1, 3:] = 0
        return tokens.astype(np.int32)
    return rng.standard_normal((2,) + shape).astype(np.float32)


def array(value):
    value = np.asarray(value)
    kind = int if value.dtype.kind == "i" else float
    return {"shape": list(value.shape), "values": [kind(x) for x in value.reshape(-1)]}


def expected(model, shape):
    rng = np.random.default_rng(7)
    weights = [rng.normal(0, 0.3, w.shape).astype(np.float32) for w in model.get_weights()]
    model.set_weights(weights)
    x = inputs(shape, rng)
    y = np.asarray(model(x, training=False))
    layers = [
        {"class": type(layer).__name__, "output_shape": list(layer.output.shape)[1:],
         "parameters": layer.count_params()}
        for layer in model.layers
    ]
    result = {
        "layers": layers,
        "parameters": model.count_params(),
        "regularization_loss": float(sum(float(loss) for loss in model.losses)),
    }
    # The large model is checked by its shapes and the sum alone.
    if model.count_params() < 1000:
        result["weights"] = [array(w) for w in weights]
        result["input"] = array(x)
        result["output"] = array(y)
    else:
        result["seed"] = "weights are not stored"
        result.pop("regularization_loss")
    return result


for name, (layers, shape) in MODELS.items():
    model = build(keras3, layers, shape)
    old = build(keras2, layers, shape)
    (HERE / f"{name}.keras3.json").write_text(model.to_json(indent=1) + "\n")
    (HERE / f"{name}.keras2.json").write_text(old.to_json(indent=1) + "\n")
    facts = expected(model, shape)
    facts["versions"] = {"keras": keras3.__version__, "tf_keras": keras2.__version__}
    (HERE / f"{name}.expected.json").write_text(json.dumps(facts) + "\n")
