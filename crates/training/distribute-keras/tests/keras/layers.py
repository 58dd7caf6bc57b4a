"""Writes the golden family `keras_models`: what real Keras makes of every layer and its options.

    python -m venv venv && venv/bin/pip install tensorflow-cpu==2.21.0 tf_keras==2.21.0
    venv/bin/python layers.py [GROUP ...]

Each file cases/GROUP.py has a list CASES of the tiny models of one group of layers;
cases/GROUP.json.gz is what this script makes of it. The test `layers.rs` checks every such file. An entry has

- name, tolerance: of the case; how far an output may be from Keras', relative to its size,
- keras3, keras2: the model as `to_json()` of Keras 3 and Keras 2 writes it; Keras 2 is left out where
  it lacks the layer or computes something else,
- paths, weights: the weights' names and numbers in the order of `get_weights()`,
- inputs, outputs: one list of numbers each, with its shape; the outputs are those of inference,
- loss, updated: for a model that is trained, the loss of these examples in training, and the weights
  after one step of SGD with RATE and the constraints. The loss is the sum over all outputs of the mean of
  (output - target)^2 plus the losses of the layers, and the target of value number i (from 0) is
  sin(i).

Weights and inputs have few digits, so that the files stay small.
"""

import dataclasses
import gzip
import importlib
import json
import os
import pathlib
import sys
import zlib
from collections.abc import Callable

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

HERE = pathlib.Path(__file__).parent
BATCH = 3
RATE = 0.1


@dataclasses.dataclass
class Case:
    """One tiny model."""

    name: str
    # The shape of one example of each input; `build` gets a Keras module and the inputs of these
    # shapes, and returns the output or a list of outputs.
    shapes: list
    build: Callable
    # Whether one step is trained: not if the layer draws random numbers. A layer without weights
    # has a gradient that counts if one with weights stands before it, see `on_dense`.
    trained: bool = True
    # Whether Keras 2 has the model too and computes the same.
    keras2: bool = True
    tolerance: float = 1e-5
    # The inputs' values: (generator, shape of the batch) -> array. Default: between -1.5 and 1.5.
    values: Callable | None = None
    # The weights: (generator, path, shape) -> array, or None for the default.
    weights: Callable | None = None


def few_digits(values, digits=2):
    return np.round(values, digits).astype(np.float32)


def numbers(generator, shape):
    """The default inputs."""
    return few_digits(generator.uniform(-1.5, 1.5, shape))


def tokens(count, pad=None):
    """Inputs that are tokens from 1 to count - 1; some at the "end" or the "start" are 0."""

    def values(generator, shape):
        x = generator.integers(1, count, shape)
        return padded(x, pad).astype(np.float32)

    return values


def steps(pad):
    """Inputs of which whole steps at the "end" or the "start", or "both", are 0."""
    return lambda generator, shape: padded(numbers(generator, shape), pad)


def padded(x, pad):
    """Row i loses i steps, modulo the number of steps, so that the first has no padding."""
    for row in range(len(x)):
        lost = row * 2 % (x.shape[1] - 1)
        if pad in ("end", "both") and lost:
            x[row, -lost:] = 0
        if pad in ("start", "both"):
            x[row, : (lost + 1) // 2 if pad == "both" else lost] = 0
    return x


def weight(generator, path, shape):
    """The default weights."""
    u = generator.uniform(-1, 1, shape)
    if "variance" in path:
        return few_digits(1 + 0.5 * u)
    if "gamma" in path:
        return few_digits(1 + 0.3 * u)
    return few_digits(0.7 * u)


def on_dense(keras, layer, x):
    """The layer, if it has no weights behind one that has some."""
    y = layer(x)
    return y if layer.weights else layer(keras.layers.Dense(x.shape[-1])(x))


def made(keras, case):
    inputs = [keras.Input(shape) for shape in case.shapes]
    outputs = case.build(keras, *inputs)
    return keras.Model(inputs if len(inputs) > 1 else inputs[0], outputs)


def listed(outputs):
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def arrays(tensors):
    """Numbers of 9 digits, each list with its shape."""
    digits = lambda x: float(f"{x:.9g}")
    return [
        {"shape": list(np.shape(x)), "values": [digits(v) for v in np.ravel(x)]} for x in tensors
    ]


def step(model, inputs):
    """One step of SGD: the loss before it, and the weights behind it."""
    with tf.GradientTape() as tape:
        outputs = listed(model(inputs, training=True))
        loss = tf.add_n(model.losses) if model.losses else 0.0
        for output in outputs:
            target = np.sin(np.arange(np.prod(output.shape))).reshape(output.shape)
            loss += tf.reduce_mean((output - tf.constant(target, tf.float32)) ** 2)
    variables = [
        v if isinstance(v, tf.Variable) else v.value for v in model.trainable_variables
    ]
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        if gradient is not None:
            variable.assign_sub(RATE * tf.convert_to_tensor(gradient))
    # As an optimizer of Keras does behind its update.
    for variable in model.trainable_variables:
        if getattr(variable, "constraint", None) is not None:
            variable.assign(variable.constraint(variable))
    return float(loss), model.get_weights()


def entry(case):
    """What Keras makes of a case."""
    generator = np.random.default_rng(zlib.crc32(case.name.encode()))
    values = case.values or numbers
    inputs = [np.asarray(values(generator, (BATCH, *s)), np.float32) for s in case.shapes]
    keras3.backend.clear_session()
    model = made(keras3, case)
    paths = [w.path for w in model.weights]
    make = case.weights or (lambda *_: None)
    weights = []
    for path, old in zip(paths, model.get_weights()):
        own = make(generator, path, old.shape)
        weights.append(weight(generator, path, old.shape) if own is None else own)
    model.set_weights(weights)
    given = inputs if len(inputs) > 1 else inputs[0]
    outputs = [np.asarray(x) for x in listed(model(given, training=False))]
    found = {
        "name": case.name,
        "tolerance": case.tolerance,
        "keras3": model.to_json(),
        "paths": paths,
        "weights": arrays(weights),
        "inputs": arrays(inputs),
        "outputs": arrays(outputs),
    }
    assert all(np.isfinite(x).all() for x in outputs), case.name
    if case.keras2:
        keras2.backend.clear_session()
        old = made(keras2, case)
        old.set_weights(weights)
        for new, other in zip(outputs, listed(old(given, training=False)), strict=True):
            np.testing.assert_allclose(new, other, rtol=1e-4, atol=1e-5, err_msg=case.name)
        found["keras2"] = old.to_json()
    if case.trained and model.trainable_weights:
        found["loss"], updated = step(model, given)
        found["updated"] = arrays(updated)
        if case.keras2:
            loss, _ = step(old, given)
            np.testing.assert_allclose(loss, found["loss"], rtol=1e-4, err_msg=case.name)
    return found


def main(groups):
    # The groups' files import this one by its name.
    sys.modules["layers"] = sys.modules["__main__"]
    for group in groups or sorted(p.stem for p in (HERE / "cases").glob("*.py")):
        sys.path.insert(0, str(HERE / "cases"))
        cases = importlib.import_module(group).CASES
        names = [case.name for case in cases]
        assert len(set(names)) == len(names), group
        text = json.dumps({"rate": RATE, "cases": [entry(case) for case in cases]})
        path = HERE / "cases" / f"{group}.json.gz"
        # Without the time, so that the same numbers make the same file.
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        print(group, len(cases), path.stat().st_size)


import keras as keras3  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tf_keras as keras2  # noqa: E402

if __name__ == "__main__":
    main(sys.argv[1:])
