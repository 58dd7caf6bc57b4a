"""Layers without a group of their own."""

from layers import Case

CASES = [
    Case("dense", [(3,)], lambda k, x: k.layers.Dense(2, activation="tanh")(x)),
    Case("dense_steps", [(4, 3)], lambda k, x: k.layers.Dense(2, kernel_regularizer="l2")(x)),
    Case(
        "two_outputs",
        [(3,), (2,)],
        lambda k, x, y: [
            k.layers.Dense(2, activation="softmax", name="a")(x),
            k.layers.Dense(1, name="b")(k.layers.Concatenate()([x, y])),
        ],
    ),
    Case(
        "batch_normalization",
        [(4, 4, 3)],
        lambda k, x: k.layers.BatchNormalization(momentum=0.8)(x),
    ),
]
