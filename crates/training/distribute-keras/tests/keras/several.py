"""Writes the models of this folder with several inputs and outputs and with layers that are not
trained, and the numbers of real Keras that belong to them.

    venv/bin/python several.py        # the environment of graphs.py

NAME.keras3.json and NAME.keras2.json are what `to_json()` writes; several.expected.json holds the
shapes of all weights, how many numbers are trained, the outputs of four examples, and the losses of
three outputs together before and after a step of SGD, in 64 bits. Weights and inputs are made from
their position, as in graphs.py.
"""

import json

import numpy as np
import tensorflow as tf

from graphs import HERE, fill, keras2, keras3, numbers, rows

RATE = 0.05


def towers(keras, named=False):
    """Towers of an image, numbers and tokens; the second output reads the first."""
    L = keras.layers
    image = L.Input((6, 5, 2), name="image")
    some = L.Input((3,), name="numbers")
    tokens = L.Input((4,), dtype="int32", name="tokens")
    x = L.Conv2D(4, 3, padding="same", activation="relu", trainable=False)(image)
    x = L.BatchNormalization(synchronized=True, momentum=0.9)(x)
    x = L.Conv2D(3, 1)(x)
    x = L.BatchNormalization(trainable=False)(x)
    flat = L.Flatten(name="flat")(x)
    words = L.GlobalAveragePooling1D()(L.Embedding(20, 5, trainable=False)(tokens))
    base = keras.Sequential(
        [L.Input((3,)), L.Dense(4, activation="tanh", kernel_regularizer="l2"), L.Dense(3)],
        name="base",
    )
    base.trainable = False
    both = L.Concatenate()([flat, words, base(some)])
    choice = L.Dense(3, activation="softmax", name="choice", kernel_regularizer="l2")(both)
    flag = L.Dense(1, activation="sigmoid", name="flag")(L.Concatenate()([choice, words]))
    score = L.Dense(2, name="score")(both)
    if named:
        inputs = {"tokens": tokens, "image": image, "numbers": some}
        return keras.Model(inputs, {"z": choice, "b": flag, "a": score})
    return keras.Model([some, image, tokens], [choice, flag, score, flat])


def named(keras):
    """The same with dictionaries in place of lists."""
    return towers(keras, True)


SHAPES = {"image": (6, 5, 2), "numbers": (3,), "tokens": (4,)}


def inputs(model, batch, floats="float32"):
    """By name: an input is the same in every model."""
    made = {}
    for i, (name, shape) in enumerate(sorted(SHAPES.items())):
        u = numbers((1 << 20) + i, batch * int(np.prod(shape))).reshape((batch,) + shape)
        tokens = np.floor((u + 1) * 9.5).astype(np.int32)
        made[name] = tokens if name == "tokens" else u.astype(floats)
    if isinstance(model.input, dict):
        return made
    return [made[tensor.name.split(":")[0]] for tensor in model.inputs]


def outputs_of(model, x, training):
    """Choice, flag and score, and what else there is."""
    y = model(x, training=training)
    return [y["z"], y["b"], y["a"]] if isinstance(y, dict) else list(y)


def step(build, keras):
    keras.backend.clear_session()
    keras.backend.set_floatx("float64")
    policies = keras.mixed_precision if keras is keras2 else keras.config
    set_policy = getattr(policies, "set_global_policy", getattr(policies, "set_dtype_policy", None))
    set_policy("float64")
    model = build(keras)
    fill(model)
    x, losses = inputs(model, 16, "float64"), []
    labels = np.arange(16)
    for _ in range(2):
        with tf.GradientTape() as tape:
            choice, flag, score = outputs_of(model, x, True)[:3]
            chosen = tf.gather(choice, tf.constant(labels % 3)[:, None], batch_dims=1)
            yes = tf.cast(tf.constant(labels % 2)[:, None], flag.dtype)
            flags = tf.math.log(yes * flag + (1 - yes) * (1 - flag))
            loss = tf.reduce_mean(score**2) - tf.reduce_mean(flags)
            loss -= tf.reduce_mean(tf.math.log(chosen))
        losses.append(float(loss))
        weights = model.trainable_weights
        variables = weights if keras is keras2 else [w.value for w in weights]
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(RATE * tf.convert_to_tensor(gradient))
    after = [rows(y)[:4] for y in outputs_of(model, x, False)]
    keras.backend.set_floatx("float32")
    set_policy("float32")
    return {"losses": losses, "outputs_after": after}


def facts_of(build):
    name = build.__name__
    for keras, version in ((keras3, "keras3"), (keras2, "keras2")):
        keras.backend.clear_session()
        text = json.dumps(json.loads(build(keras).to_json()), indent=1)
        (HERE / f"{name}.{version}.json").write_text(text + "\n")
    keras3.backend.clear_session()
    model = build(keras3)
    fill(model)
    trained = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    return {
        "inputs": [tensor.name for tensor in model.inputs],
        "weights": [list(w.shape) for w in model.weights],
        "trained": trained,
        "regularization": float(sum(model.losses)),
        "outputs": [rows(y) for y in outputs_of(model, inputs(model, 4), False)],
        "step": step(build, keras3),
        "step_of_keras2": step(build, keras2),
    }


facts = {"versions": {"keras": keras3.__version__, "tf_keras": keras2.__version__}, "rate": RATE}
for build in (towers, named):
    facts[build.__name__] = facts_of(build)
    print(build.__name__, {k: v for k, v in facts[build.__name__].items() if "out" not in k})
(HERE / "several.expected.json").write_text(json.dumps(facts) + "\n")
