"""Writes models with several inputs and outputs, their data, and what Keras makes of them.

    venv/bin/python outputs.py        # Keras 3.15 with TensorFlow

NAME.keras is a compiled model with its weights, NAME.npz its data, NAME.expected.json what `fit`
returns for two epochs (Keras: `History.history`), and what `predict` returns then for the first
training example.

The models run eagerly. In a graph of TensorFlow the size of a batch is not known when Keras averages
the losses of outputs, which makes it count a short last batch as a full one, although the sum of
the losses counts by examples.
"""

import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
L = keras.layers
EXAMPLES, TESTS, BATCH = 10, 5, 5


def towers():
    """Two inputs; a class, a yes or no, two values and a class for each pixel."""
    image = L.Input((4, 3, 1), name="image")
    numbers = L.Input((3,), name="numbers")
    x = L.Conv2D(4, 3, padding="same", activation="tanh", name="conv")(image)
    pixels = L.Conv2D(3, 1, activation="softmax", name="pixels")(x)
    both = L.Concatenate(name="both")([L.GlobalAveragePooling2D(name="pool")(x), numbers])
    h = L.Dense(5, activation="tanh", kernel_regularizer="l2", name="h")(both)
    choice = L.Dense(3, activation="softmax", name="choice")(h)
    flag = L.Dense(1, activation="sigmoid", name="flag")(h)
    score = L.Dense(2, name="score")(h)
    model = keras.Model([image, numbers], [choice, flag, score, pixels])
    model.compile(
        keras.optimizers.SGD(0.1),
        loss={
            "choice": "sparse_categorical_crossentropy",
            "flag": "binary_crossentropy",
            "score": keras.losses.LogCosh(),
            "pixels": "sparse_categorical_crossentropy",
        },
        loss_weights={"choice": 1.0, "flag": 0.5, "score": 2.0, "pixels": 0.25},
        metrics={
            "choice": ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(k=2)],
            "flag": ["accuracy", keras.metrics.AUC()],
            "score": ["mae"],
            "pixels": ["accuracy"],
        },
        weighted_metrics={"choice": ["accuracy"], "score": ["mse"]},
    )
    return model


def lists():
    """One input; losses, factors and metrics as lists."""
    x = L.Input((3,), name="x")
    h = L.Dense(4, activation="relu", name="h")(x)
    kind = L.Dense(4, name="kind")(h)
    size = L.Dense(1, name="size")(h)
    model = keras.Model(x, [kind, size])
    model.compile(
        keras.optimizers.Adam(0.05),
        loss=[keras.losses.CategoricalCrossentropy(from_logits=True), "mae"],
        loss_weights=[1.0, 3.0],
        metrics=[["categorical_accuracy"], ["mse"]],
    )
    return model


def pixels():
    """One output, a class for each step of a sequence."""
    x = L.Input((5, 2), name="x")
    y = L.Conv1D(3, 3, padding="same", activation="softmax", name="steps")(x)
    model = keras.Model(x, y)
    model.compile(
        keras.optimizers.SGD(0.5),
        "sparse_categorical_crossentropy",
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(k=2)],
    )
    return model


def data(model, count, rng):
    """Arrays of inputs and of targets, by the names of the inputs and outputs."""
    inputs = {t.name: rng.random((count,) + t.shape[1:]).astype("f4") for t in model.inputs}
    targets = {}
    for name, tensor in zip(model.output_names, model.outputs):
        shape = (count,) + tuple(tensor.shape[1:])
        if name in ("choice", "pixels", "steps"):
            targets[name] = rng.integers(0, 3, shape[:-1])
        elif name == "kind":
            targets[name] = np.eye(4)[rng.integers(0, 4, count)].astype("f4")
        elif name == "flag":
            targets[name] = rng.integers(0, 2, count)
        else:
            targets[name] = rng.random(shape).astype("f4")
    return inputs, targets


def write(name, model, is_weighted):
    rng = np.random.default_rng(7)
    inputs, targets = data(model, EXAMPLES, rng)
    tests, test_targets = data(model, TESTS, rng)
    weights = rng.random(EXAMPLES).astype("f4") if is_weighted else None

    def shaped(targets):
        # Keras wants as many axes of weights as of targets.
        one = [weights.reshape((-1,) + (1,) * (t.ndim - 1)) for t in targets.values()]
        return [w if t.ndim > 2 else w[:, 0] if t.ndim == 2 else w
                for w, t in zip(one, targets.values())]

    model.save(os.path.join(HERE, name + ".keras"))
    arrays = {**inputs, **targets}
    arrays.update({k + "_test": v for k, v in {**tests, **test_targets}.items()})
    if len(arrays) == 4:
        pairs = zip(("x_train", "y_train", "x_test", "y_test"), arrays.values())
        arrays = dict(pairs)
    if is_weighted:
        arrays["sample_weight"] = weights
    np.savez_compressed(os.path.join(HERE, name + ".npz"), **arrays)
    model.run_eagerly = True
    history = model.fit(
        list(inputs.values()),
        list(targets.values()),
        sample_weight=shaped(targets) if is_weighted else None,
        validation_data=(list(tests.values()), list(test_targets.values())),
        batch_size=BATCH,
        epochs=2,
        shuffle=False,
        verbose=0,
    ).history
    first = model.predict([v[:1] for v in inputs.values()], verbose=0)
    first = first if isinstance(first, list) else [first]
    expected = {
        "history": history,
        "first": {n: np.ravel(v).tolist() for n, v in zip(model.output_names, first)},
    }
    with open(os.path.join(HERE, name + ".expected.json"), "w") as out:
        json.dump(expected, out, indent=1)


if __name__ == "__main__":
    keras.utils.set_random_seed(3)
    write("towers", towers(), True)
    write("lists", lists(), False)
    write("pixels", pixels(), False)
