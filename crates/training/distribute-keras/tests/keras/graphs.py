"""Writes the functional models of this folder, and the numbers of real Keras that belong to them.

    python -m venv venv && venv/bin/pip install tensorflow-cpu==2.21.0 tf_keras==2.21.0
    venv/bin/python graphs.py

NAME.keras3.json.gz and NAME.keras2.json.gz are what `to_json()` of Keras 3 and Keras 2 (tf_keras)
writes: of small graphs that have every layer and option, and of networks of `keras.applications`
at full depth. graphs.expected.json holds what Keras 3 makes of them: the shapes of all weights in
the order of `get_weights()`, the outputs of four examples, and, for models without random layers,
the loss in training of sixteen examples, before and after one step of SGD, in 64 bits: batch
normalization of few values makes much of the last bits.

Weights and inputs are not stored: `numbers` makes them, here and in the test, from their position.
"""

import gzip
import json
import os
import pathlib

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras2

HERE = pathlib.Path(__file__).parent
RATE = 1e-4


def numbers(stream, count):
    """`count` numbers between -1 and 1: a hash of the position and the stream."""
    x = np.arange(1, count + 1, dtype=np.uint64) * 0x9E3779B1 + np.uint64(stream * 0x85EBCA6B)
    x &= 0xFFFFFFFF
    x ^= x >> 16
    x = x * 0x21F0AAAD & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x735A2D97 & 0xFFFFFFFF
    x ^= x >> 15
    return x.astype(np.float64) / 2.0**31 - 1.0


def weight(stream, name, shape):
    """A weight that keeps the size of what flows through a deep network."""
    u = numbers(stream, int(np.prod(shape))).reshape(shape)
    if name == "count":
        return np.zeros(shape, np.float32)
    if name.endswith("variance"):
        u = 1 + 0.5 * u
    elif name == "gamma":
        u = 0.6 + 0.2 * u
    elif len(shape) == 1:
        u = 0.1 * u
    else:
        depthwise = len(shape) == 4 and shape[3] == 1 and shape[2] > 1
        inputs = shape[0] * shape[1] if depthwise else int(np.prod(shape)) // shape[-1]
        u = np.sqrt(6 / inputs) * u
    return u.astype(np.float32)


def blocks(keras):
    """Branches, merges of all kinds, broadcasting, sizes that "same" pads on one side only."""
    L = keras.layers
    x = i = L.Input((9, 8, 3))
    x = L.Rescaling(0.5, offset=0.25)(x)
    x = L.ZeroPadding2D(((1, 2), (0, 1)))(x)
    a = L.Conv2D(4, 3, strides=2, padding="same", use_bias=False)(x)
    a = L.BatchNormalization(momentum=0.9)(a)
    a = L.ReLU(max_value=1.5, negative_slope=0.1)(a)
    b = L.DepthwiseConv2D(3, strides=2, padding="same", depth_multiplier=2)(x)
    b = L.Conv2D(4, 1, groups=2, activation="silu")(b)
    c = L.SeparableConv2D(4, (3, 2), padding="same", dilation_rate=2, depth_multiplier=2)(x)
    c = L.BatchNormalization(scale=False, center=False)(c)
    c = L.AveragePooling2D(3, strides=2, padding="same")(c)
    m = L.Maximum()([a, b, c])
    n = L.Minimum()([a, c])
    gate = L.GlobalAveragePooling2D()(m)
    gate = L.Reshape((1, 1, 4))(gate)
    gate = L.Conv2D(4, 1, activation="softplus")(gate)
    x = L.Multiply()([m, gate])
    x = L.Concatenate()([x, n, L.Subtract()([a, b])])
    x = L.Concatenate(axis=1)([x, x])
    x = L.Cropping2D(((1, 0), (0, 1)))(x)
    x = L.LayerNormalization(epsilon=1e-5)(x)
    x = L.Dense(5, activation="mish")(x)
    average = L.Average()([L.GlobalMaxPooling2D()(x), L.GlobalAveragePooling2D()(x)])
    flat = L.Flatten()(x)
    x = L.Concatenate()([average, L.Dense(3)(L.Activation("tanh")(flat))])
    x = L.BatchNormalization(center=False)(x)
    return keras.Model(i, L.Dense(4, activation="softmax")(x))


def shared(keras):
    """A layer called twice, models inside of the model, one of them called twice."""
    L = keras.layers
    i = L.Input((6,))
    norm = L.Normalization(mean=[0.1] * 6, variance=[0.5] * 6)(i)
    dense = L.Dense(6, activation="selu", name="shared")
    base = keras.Sequential([L.Input((6,)), L.Dense(4, name="inner"), L.BatchNormalization()],
                            name="base")
    j = L.Input((4,))
    k = L.Dense(3, activation="softsign", name="inner")(j)
    fork = keras.Model(j, [k, L.Dense(2, activation="elu")(k)], name="fork")
    a = base(dense(norm))
    b = base(dense(dense(norm)), training=False)
    p, q = fork(a)
    r, s = fork(b)
    x = L.Concatenate()([p, L.Add()([q, s]), r])
    return keras.Model(i, L.Dense(1, activation="sigmoid")(x))


def attention(keras):
    """A transformer's block over tokens, and one of other widths."""
    L = keras.layers
    i = L.Input((6,), dtype="int32")
    x = L.Embedding(20, 8)(i)
    a = L.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    x = L.LayerNormalization(epsilon=1e-6)(L.Add()([x, a]))
    f = L.Dense(16, activation="gelu")(x)
    x = L.Add()([x, L.Dense(8)(f)])
    x = L.LayerNormalization(scale=False)(x)
    a = L.MultiHeadAttention(3, 4, value_dim=2, use_bias=False)(x, x)
    x = L.Add()([x, a])
    x = L.GlobalAveragePooling1D()(x)
    return keras.Model(i, L.Dense(3, activation="softmax")(x))


def padded(keras):
    """Sequences with padding, which goes through layers and sums to the mean."""
    L = keras.layers
    i = L.Input((6,), dtype="int32")
    x = L.Embedding(20, 8, mask_zero=True)(i)
    f = L.Dense(8, activation="gelu")(x)
    x = L.LayerNormalization()(L.Add()([x, f]))
    return keras.Model(i, L.Dense(3, activation="softmax")(L.GlobalAveragePooling1D()(x)))


# Which Keras takes the step of training: Keras 3 forgets `training=False` of a call in a model.
SMALL = {
    "blocks": (blocks, keras3),
    "shared": (shared, keras2),
    "attention": (attention, keras3),
    "padded": (padded, keras3),
}
# Name, side of the images, whether a step of training is compared: not with random layers.
APPLICATIONS = {
    "ResNet50": (32, True),
    "ResNet50V2": (32, False),
    "MobileNetV2": (32, True),
    "EfficientNetB0": (32, False),
    "DenseNet121": (32, True),
    "VGG16": (32, False),
    "InceptionV3": (75, False),
    "Xception": (71, False),
}


def application(name):
    side, _ = APPLICATIONS[name]
    return lambda keras: getattr(keras.applications, name)(
        weights=None, input_shape=(side, side, 3), classes=10
    )


def write(name, build):
    for keras, version in ((keras3, "keras3"), (keras2, "keras2")):
        keras.backend.clear_session()
        text = build(keras).to_json().encode()
        # No time in the file: it is the same whenever it is written.
        (HERE / f"{name}.{version}.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))


def path(weight):
    return getattr(weight, "path", weight.name.split(":")[0])


def fill(model):
    shapes = [(path(w).split("/")[-1], tuple(w.shape)) for w in model.weights]
    model.set_weights([weight(i, *shape) for i, shape in enumerate(shapes)])
    for layer in model._flatten_layers():
        # It computes with copies of its weights.
        if type(layer).__name__ == "Normalization" and layer.input_mean is None:
            layer.finalize_state()


def inputs(model, batch):
    shape = (batch,) + tuple(model.inputs[0].shape[1:])
    u = numbers(1 << 20, int(np.prod(shape))).reshape(shape)
    if model.inputs[0].dtype in ("int32", tf.int32):
        tokens = np.floor((u + 1) * 9.5).astype(np.int32) + 1
        tokens[0, 4:] = 0
        return tokens
    return u.astype(np.float32)


def rows(y):
    return [[float(v) for v in row] for row in np.asarray(y)]


def outputs(build):
    keras3.backend.clear_session()
    model = build(keras3)
    fill(model)
    return {
        "parameters": model.count_params(),
        "weights": [list(w.shape) for w in model.weights],
        "paths": [w.path for w in model.weights],
        "output": rows(model(inputs(model, 4), training=False)),
    }


def loss_of(model, x, labels):
    p = model(x, training=True)
    labels = tf.convert_to_tensor(labels % max(p.shape[-1], 2))
    if p.shape[-1] == 1:
        labels = tf.cast(labels[:, None], p.dtype)
        return -tf.reduce_mean(tf.math.log(labels * p + (1 - labels) * (1 - p)))
    chosen = tf.gather(p, labels[:, None], batch_dims=1)
    return -tf.reduce_mean(tf.math.log(chosen))


def step(build, keras, floats):
    keras.backend.clear_session()
    keras.backend.set_floatx(floats)
    policies = keras.mixed_precision if keras is keras2 else keras.config
    set_policy = getattr(policies, "set_global_policy", getattr(policies, "set_dtype_policy", None))
    set_policy(floats)
    model = build(keras)
    fill(model)
    x, labels, losses = inputs(model, 16), np.arange(16), []
    x = x if x.dtype == np.int32 else x.astype(floats)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, labels)
        losses.append(float(loss))
        weights = model.trainable_weights
        variables = weights if keras is keras2 else [w.value for w in weights]
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(RATE * tf.convert_to_tensor(gradient))
    # What the moving statistics say after two steps.
    after = rows(model(x, training=False))[:4]
    keras.backend.set_floatx("float32")
    set_policy("float32")
    return {"losses": losses, "output_after": after}


def facts_of(name, build, keras):
    write(name, build)
    facts = outputs(build)
    if keras is not None:
        facts["step"] = step(build, keras, "float64")
        facts["step_of_32_bits"] = step(build, keras, "float32")
        print(name, facts["step"]["losses"], facts["step_of_32_bits"]["losses"], flush=True)
    print(name, facts["output"][0], flush=True)
    return facts


POINTS = [-4.0, -2.5, -1.0, -0.75, -0.5, -0.3, 0.0, 0.2, 0.5, 0.9, 1.0, 1.5, 3.5, 7.0]


def activations(keras):
    """What every activation function with a name makes of some points."""
    known = {}
    for name in sorted(n for n in dir(keras.activations) if n.islower() and n[0] != "_"):
        function = getattr(keras.activations, name)
        if name in ("get", "serialize", "deserialize", "glu", "sparsemax", "threshold"):
            continue
        if callable(function):
            y = function(tf.constant([POINTS], tf.float32))
            known[name] = [float(v) for v in np.asarray(y)[0]]
    return known


def main():
    facts = {
        "versions": {"keras": keras3.__version__, "tf_keras": keras2.__version__},
        "rate": RATE,
    }
    facts["activations"] = {
        "points": POINTS,
        "keras3": activations(keras3),
        "keras2": activations(keras2),
    }
    for name, (build, keras) in SMALL.items():
        facts[name] = facts_of(name, build, keras)
    for name, (_, has_step) in APPLICATIONS.items():
        facts[name] = facts_of(name, application(name), keras3 if has_step else None)
    (HERE / "graphs.expected.json").write_text(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
