"""Operations that sort values, pool them, cut matrices or resize images, and masks that are inputs.

Behind a Dense layer, so that a step has a gradient.
"""

import numpy as np
import tensorflow as tf
from layers import Case
from operations import each

STEPS = [(5, 4)]
IMAGE = [(6, 6, 3)]


def lower(generator, shape):
    """A mask of no later steps, or values."""
    if len(shape) == 3 and shape[1] == shape[2]:
        return np.tril(np.ones(shape))
    return np.round(generator.uniform(-1.5, 1.5, shape), 2)


def lengths(generator, shape):
    """A mask of the first steps, or values."""
    if len(shape) == 2:
        return (np.arange(shape[1]) < np.array([[5], [3], [2]])).astype("float32")
    return np.round(generator.uniform(-1.5, 1.5, shape), 2)


def attention(k, x, mask):
    return k.layers.MultiHeadAttention(2, 3)(x, x, attention_mask=mask)


def recurrent(k, x, mask):
    return k.layers.LSTM(3)(x, mask=mask)


def tables(k, x):
    """A vector for each of several numbers, which stand alone or in a table."""
    return k.layers.Embedding(6, 3)(x)


def numbers(generator, shape):
    return generator.integers(0, 6, shape).astype("float32")


CASES = [
    each("sort", STEPS, lambda o, x: o.sort(x, axis=1), lambda x: tf.sort(x, axis=1)),
    each(
        "argsort",
        STEPS,
        lambda o, x: x * o.cast(o.argsort(x, axis=-1), "float32"),
        lambda x: x * tf.cast(tf.argsort(x, axis=-1), "float32"),
    ),
    each(
        "top_k",
        STEPS,
        lambda o, x: o.top_k(x, 2)[0] * o.cast(o.top_k(x, 2)[1], "float32"),
        lambda x: tf.math.top_k(x, 2)[0] * tf.cast(tf.math.top_k(x, 2)[1], "float32"),
    ),
    each("take_along", STEPS, lambda o, x: o.take_along_axis(x, o.argsort(x, axis=1), axis=1)),
    each(
        "lower",
        [(4, 4)],
        lambda o, x: o.tril(x),
        lambda x: tf.linalg.band_part(x, -1, 0),
    ),
    each("upper", [(4, 4)], lambda o, x: o.triu(x, k=1)),
    each("cumprod", STEPS, lambda o, x: o.cumprod(x, 1), lambda x: tf.math.cumprod(x, 1)),
    each("glu", STEPS, lambda o, x: o.glu(x)),
    each(
        "max_pool",
        [(7, 7, 3)],
        lambda o, x: o.max_pool(x, 2, padding="same"),
        lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"),
    ),
    each(
        "average_pool",
        [(6, 3)],
        lambda o, x: o.average_pool(x, 2),
        lambda x: tf.nn.avg_pool1d(x, 2, 2, "VALID"),
    ),
    each(
        "resize",
        IMAGE,
        lambda o, x: o.image.resize(x, (4, 9), antialias=True),
        lambda x: tf.image.resize(x, (4, 9), antialias=True),
    ),
    each(
        "lanczos",
        IMAGE,
        lambda o, x: o.image.resize(x, (4, 9), interpolation="lanczos3"),
        lambda x: tf.image.resize(x, (4, 9), method="lanczos3"),
    ),
    each(
        "bent",
        STEPS,
        lambda o, x: o.arcsinh(x) + o.logaddexp(x, 0.5) + o.hypot(x, o.tanh(x)) + o.erfc(x),
    ),
    Case("attention_mask", [(5, 4), (5, 5)], attention, values=lower),
    Case("recurrent_mask", [(5, 4), (5,)], recurrent, values=lengths, keras2=False),
    Case("embedded_table", [(3, 2)], tables, values=numbers),
    Case("embedded_number", [()], tables, values=numbers),
]
