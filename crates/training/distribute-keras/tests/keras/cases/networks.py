"""Whole networks, tiny, as the examples of keras.io and tensorflow.org build them."""

import numpy as np
from layers import Case, tokens


def siamese(k, a, b):
    layers = k.layers
    tower = k.Sequential([layers.Dense(4, "tanh"), layers.Dense(3)])
    return layers.Dense(1, "sigmoid")(abs(tower(a) - tower(b)))


def transformer(k, x):
    """A block of a language model, with positions that are constants."""
    layers = k.layers
    positions = np.round(np.sin(np.arange(24)), 2).reshape(1, 6, 4).astype("float32")
    x = layers.Embedding(9, 4)(x) * 2.0 + positions
    y = layers.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization(epsilon=1e-6)(x + y)
    y = layers.Dense(4)(layers.Dense(6, "relu")(x))
    return layers.Dense(9)(layers.LayerNormalization(epsilon=1e-6)(x + y))


def residual(k, x):
    layers = k.layers
    x = layers.Conv2D(4, 3, padding="same")(x)
    y = layers.BatchNormalization()(x)
    y = layers.Conv2D(4, 3, padding="same", activation="relu")(y)
    return layers.Dense(2, "softmax")(layers.GlobalAveragePooling2D()(layers.add([x, y])))


def unet(k, x):
    layers = k.layers
    first = layers.Conv2D(3, 3, padding="same", activation="relu")(x)
    inner = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.MaxPooling2D(2)(first))
    up = layers.Conv2DTranspose(3, 2, strides=2)(inner)
    return layers.Conv2D(2, 1, activation="softmax")(layers.Concatenate()([up, first]))


def wavenet(k, x):
    layers = k.layers
    for rate in (1, 2):
        options = {"padding": "causal", "dilation_rate": rate}
        wave = layers.Conv1D(3, 2, activation="tanh", **options)(x)
        gate = layers.Conv1D(3, 2, activation="sigmoid", **options)(x)
        x = layers.Add()([x, layers.Conv1D(3, 1)(layers.multiply([wave, gate]))])
    return layers.Dense(1)(x[:, -1])


def translator(k, source, target):
    layers = k.layers
    _, h, c = layers.LSTM(4, return_state=True)(source)
    y = layers.LSTM(4, return_sequences=True)(target, initial_state=[h, c])
    return layers.Dense(3, "softmax")(layers.Attention()([y, y]))


def nested(k, a, b):
    """A model inside of a model, called twice, with two inputs and outputs."""
    layers = k.layers
    inner_a, inner_b = k.Input((3,)), k.Input((2,))
    hidden = layers.Dense(3, "tanh")(layers.concatenate([inner_a, inner_b]))
    two = k.Model([inner_a, inner_b], [hidden, layers.Dense(2)(hidden)])
    first, second = two([a, b])
    third, fourth = two([first, second])
    return [layers.concatenate([first, third]), fourth * 0.5]


def squeezed(k, x):
    layers = k.layers
    gate = layers.Dense(2, "relu")(layers.GlobalAveragePooling2D()(x))
    gate = layers.Reshape((1, 1, 3))(layers.Dense(3, "sigmoid")(gate))
    return layers.DepthwiseConv2D(3)(x * gate)


def recommender(k, user, item):
    layers = k.layers
    user = layers.Flatten()(layers.Embedding(6, 3)(user))
    item = layers.Flatten()(layers.Embedding(6, 3)(item))
    return layers.Activation("sigmoid")(layers.Dot(axes=1)([user, item]))


def numbers(generator, shape):
    return generator.integers(0, 6, shape).astype("float32")


CASES = [
    Case("siamese", [(5,), (5,)], siamese),
    Case("transformer", [(6,)], transformer, values=tokens(9)),
    Case("residual", [(5, 5, 2)], residual),
    Case("unet", [(4, 4, 2)], unet),
    Case("wavenet", [(6, 3)], wavenet),
    Case("translator", [(4, 3), (5, 2)], translator),
    Case("nested", [(3,), (2,)], nested),
    Case("squeezed", [(5, 5, 3)], squeezed),
    Case("recommender", [(1,), (1,)], recommender, values=numbers),
]
