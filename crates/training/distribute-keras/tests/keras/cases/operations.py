"""Operations in the graph: `x + y`, slices, `keras.ops`, and TensorFlow's functions in Keras 2.

Behind a Dense layer, so that a step has a gradient.
"""

import numpy as np
import tensorflow as tf
from layers import Case

PER_CHANNEL = np.array([0.5, -1.0, 2.0], "float32")


def after_dense(build):
    """Builds on a Dense layer, with `ops` of Keras 3 or None."""

    def built(k, *inputs):
        hidden = [k.layers.Dense(x.shape[-1])(x) for x in inputs]
        return build(getattr(k, "ops", None), *hidden)

    return built


def both(name, shapes, build, **options):
    return Case(name, shapes, after_dense(lambda o, *x: build(*x)), **options)


def each(name, shapes, keras3, old=None, **options):
    """An operation of Keras 3, and TensorFlow's function that does the same."""
    build = after_dense(lambda o, *x: keras3(o, *x) if o else old(*x))
    return Case(name, shapes, build, keras2=old is not None, **options)


IMAGE = [(4, 4, 3)]
TWO = [(4, 4, 3), (4, 4, 3)]
STEPS = [(4, 3)]

CASES = [
    both("add", TWO, lambda x, y: x + y),
    both("arithmetic", IMAGE, lambda x: (2 * x - 1.0) / 3.0 + x * x),
    both("reversed", STEPS, lambda x: 1 - x),
    both("reciprocal", STEPS, lambda x: 1.5 / (x * x + 1.0)),
    both("per_channel", IMAGE, lambda x: x * PER_CHANNEL + PER_CHANNEL),
    both("power", [(3,)], lambda x: x**2 + (x * x + 0.5) ** 1.5),
    both("negative", STEPS, lambda x: -abs(x)),
    both("slice", IMAGE, lambda x: x[:, 1:3, ::2]),
    both("slice_back", IMAGE, lambda x: x[..., ::-1]),
    both("slice_position", IMAGE, lambda x: x[:, 0] + x[:, -1]),
    both("slice_new_axis", STEPS, lambda x: x[:, :, None] * x[:, None]),
    both("slice_features", [(4,)], lambda x: x[:, 1:]),
    each(
        "mean",
        IMAGE,
        lambda o, x: o.mean(x, axis=[1, 2]),
        lambda x: tf.reduce_mean(x, axis=[1, 2]),
    ),
    each("sum", IMAGE, lambda o, x: o.sum(x, -1, True), lambda x: tf.reduce_sum(x, -1, True)),
    each("scalar", [(5,)], lambda o, x: o.sum(x, axis=-1), lambda x: tf.reduce_sum(x, axis=-1)),
    each("max", IMAGE, lambda o, x: o.max(x, axis=1), lambda x: tf.reduce_max(x, axis=1)),
    each("min", STEPS, lambda o, x: o.min(x, axis=-1), lambda x: tf.reduce_min(x, axis=-1)),
    each("ties", STEPS, lambda o, x: o.max(o.maximum(x, 0.7), axis=1)),
    each(
        "spread",
        STEPS,
        lambda o, x: o.concatenate([o.std(x, axis=1), o.var(x, axis=1)], -1),
        lambda x: tf.concat(
            [tf.math.reduce_std(x, axis=1), tf.math.reduce_variance(x, axis=1)], -1
        ),
    ),
    each("logsumexp", STEPS, lambda o, x: o.logsumexp(x, axis=-1)),
    each("prod", STEPS, lambda o, x: o.prod(x, axis=1), lambda x: tf.reduce_prod(x, axis=1)),
    each("norm", STEPS, lambda o, x: o.norm(x, axis=-1), lambda x: tf.norm(x, axis=-1)),
    each(
        "normalize",
        IMAGE,
        lambda o, x: o.normalize(x, axis=-1),
        lambda x: tf.math.l2_normalize(x, axis=-1),
    ),
    each(
        "reshape",
        IMAGE,
        lambda o, x: o.reshape(x, (-1, 2, 8, 3)),
        lambda x: tf.reshape(x, (-1, 2, 8, 3)),
    ),
    each(
        "reshape_batch",
        IMAGE,
        lambda o, x: o.reshape(x, (-1, 48)),
        lambda x: tf.reshape(x, (tf.shape(x)[0], -1)),
    ),
    each(
        "patches",
        IMAGE,
        lambda o, x: o.reshape(
            o.transpose(o.reshape(x, (-1, 2, 2, 2, 2, 3)), (0, 1, 3, 2, 4, 5)), (-1, 4, 12)
        ),
        lambda x: tf.reshape(
            tf.transpose(tf.reshape(x, (-1, 2, 2, 2, 2, 3)), (0, 1, 3, 2, 4, 5)), (-1, 4, 12)
        ),
    ),
    each(
        "transpose",
        IMAGE,
        lambda o, x: o.transpose(x, (0, 3, 1, 2)),
        lambda x: tf.transpose(x, (0, 3, 1, 2)),
    ),
    each("moveaxis", IMAGE, lambda o, x: o.moveaxis(x, 3, 1)),
    each("swapaxes", STEPS, lambda o, x: o.swapaxes(x, 1, 2)),
    each("expand", STEPS, lambda o, x: o.expand_dims(x, 2), lambda x: tf.expand_dims(x, 2)),
    each(
        "squeeze",
        [(1, 3)],
        lambda o, x: o.squeeze(x, 1),
        lambda x: tf.squeeze(x, 1),
    ),
    each(
        "concatenate",
        TWO,
        lambda o, x, y: o.concatenate([x, y], axis=1),
        lambda x, y: tf.concat([x, y], axis=1),
    ),
    each(
        "stack",
        [(4, 3), (4, 3)],
        lambda o, x, y: o.stack([x, y], axis=1),
        lambda x, y: tf.stack([x, y], axis=1),
    ),
    each(
        "split",
        [(6,)],
        lambda o, x: [part * (1.0 + i) for i, part in enumerate(o.split(x, 3, axis=-1))][1:],
        lambda x: [part * (1.0 + i) for i, part in enumerate(tf.split(x, 3, axis=-1))][1:],
    ),
    each(
        "split_sizes",
        [(6,)],
        lambda o, x: o.concatenate(o.split(x, [1, 4], axis=-1)[::-1], axis=-1),
        lambda x: tf.concat(tf.split(x, [1, 3, 2], axis=-1)[::-1], axis=-1),
    ),
    each(
        "unstack",
        STEPS,
        lambda o, x: o.unstack(x, axis=1)[2],
        lambda x: tf.unstack(x, axis=1)[2],
    ),
    each(
        "clip",
        STEPS,
        lambda o, x: o.clip(x, -0.5, 0.5),
        lambda x: tf.clip_by_value(x, -0.5, 0.5),
    ),
    each(
        "extremes",
        [(3,), (3,)],
        lambda o, x, y: o.maximum(x, y) - o.minimum(x, 0.25),
        lambda x, y: tf.maximum(x, y) - tf.minimum(x, 0.25),
    ),
    each(
        "where",
        [(3,), (3,)],
        lambda o, x, y: o.where(x > 0, x, y * 2.0),
        lambda x, y: tf.where(x > 0, x, y * 2.0),
    ),
    each(
        "cast",
        STEPS,
        lambda o, x: o.cast(x > 0.2, "float32") * x,
        lambda x: tf.cast(x > 0.2, "float32") * x,
    ),
    each(
        "functions",
        STEPS,
        lambda o, x: o.exp(x) + o.log(o.square(x) + 1.0) + o.sqrt(o.abs(x) + 0.1) + o.sin(x),
        lambda x: tf.exp(x) + tf.math.log(tf.square(x) + 1.0) + tf.sqrt(tf.abs(x) + 0.1) + tf.sin(x),
    ),
    each(
        "activations",
        STEPS,
        lambda o, x: o.relu(x) + o.sigmoid(x) * o.tanh(x) + o.silu(x) + o.softplus(x),
        lambda x: tf.nn.relu(x) + tf.sigmoid(x) * tf.tanh(x) + tf.nn.silu(x) + tf.math.softplus(x),
    ),
    each(
        "gelu",
        STEPS,
        lambda o, x: o.gelu(x) + o.gelu(x, approximate=False),
        lambda x: tf.nn.gelu(x, approximate=True) + tf.nn.gelu(x),
    ),
    each(
        "leaky_relu",
        STEPS,
        lambda o, x: o.leaky_relu(x, 0.1) + o.elu(x),
        lambda x: tf.nn.leaky_relu(x, 0.1) + tf.nn.elu(x),
    ),
    each(
        "softmax",
        IMAGE,
        lambda o, x: o.softmax(x, axis=1),
        lambda x: tf.nn.softmax(x, axis=1),
    ),
    each(
        "attention",
        STEPS,
        lambda o, x: o.matmul(o.softmax(o.matmul(x, o.transpose(x, (0, 2, 1)))), x),
        lambda x: tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x),
    ),
    each(
        "matmul_constant",
        STEPS,
        lambda o, x: o.matmul(x, np.array([[1, 2], [3, 4], [5, 6]], "float32")),
        lambda x: tf.matmul(x, np.array([[1, 2], [3, 4], [5, 6]], "float32")),
    ),
    each("einsum", TWO, lambda o, x, y: o.einsum("bhwc,bhwd->bcd", x, y)),
    each("einsum_free", [(4, 3), (5, 3)], lambda o, x, y: o.einsum("bqd,bkd->bkq", x, y)),
    each(
        "pad",
        STEPS,
        lambda o, x: o.pad(x, [[0, 0], [1, 2], [0, 1]]),
        lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 1]]),
    ),
    each(
        "pad_reflect",
        STEPS,
        lambda o, x: o.pad(x, [[0, 0], [2, 1], [0, 0]], mode="reflect"),
        lambda x: tf.pad(x, [[0, 0], [2, 1], [0, 0]], mode="REFLECT"),
    ),
    each(
        "take",
        STEPS,
        lambda o, x: o.take(x, [2, 0, -1], axis=1),
        lambda x: tf.gather(x, [2, 0, 3], axis=1),
    ),
    each(
        "tile",
        STEPS,
        lambda o, x: o.tile(x, [1, 2, 1]),
        lambda x: tf.tile(x, [1, 2, 1]),
    ),
    each("repeat", STEPS, lambda o, x: o.repeat(x, 2, axis=1), lambda x: tf.repeat(x, 2, axis=1)),
    each("flip", STEPS, lambda o, x: o.flip(x, axis=1), lambda x: tf.reverse(x, [1])),
    each("roll", STEPS, lambda o, x: o.roll(x, 1, axis=1)),
    each("cumsum", STEPS, lambda o, x: o.cumsum(x, axis=1), lambda x: tf.cumsum(x, axis=1)),
    each(
        "one_hot",
        STEPS,
        lambda o, x: o.one_hot(o.argmax(x, axis=-1), 3) * x,
        lambda x: tf.one_hot(tf.argmax(x, axis=-1), 3) * x,
    ),
    Case(
        "depth_to_space",
        [(2, 2, 8)],
        lambda k, x: (
            k.layers.Activation("linear")(k.layers.Dense(8)(x))
            if hasattr(k, "ops")
            else tf.nn.space_to_depth(tf.nn.depth_to_space(k.layers.Dense(8)(x), 2), 2)
        ),
    ),
    Case(
        "preprocess_caffe",
        IMAGE,
        lambda k, x: k.layers.Dense(2)(k.applications.resnet50.preprocess_input(x)),
        trained=False,
    ),
    Case(
        "preprocess_tf",
        IMAGE,
        lambda k, x: k.layers.Dense(2)(k.applications.mobilenet_v2.preprocess_input(x)),
    ),
    Case(
        "preprocess_torch",
        IMAGE,
        lambda k, x: k.layers.Dense(2)(
            k.applications.imagenet_utils.preprocess_input(x, mode="torch")
        ),
    ),
    Case(
        "inside_and_flattened",
        IMAGE,
        lambda k, x: k.layers.Dense(2)(k.layers.Flatten()(k.layers.Conv2D(2, 2)(x)) * 0.5),
    ),
    Case(
        "flattened_twice",
        IMAGE,
        lambda k, x: k.layers.Dense(2)(
            k.layers.Flatten()(x) + k.layers.Flatten()(k.layers.Conv2D(3, 1)(x))
        ),
    ),
]
