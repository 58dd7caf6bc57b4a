"""Images and sequences whose channels are first, where TensorFlow computes that on CPUs."""

from layers import Case

FIRST = {"data_format": "channels_first"}

CASES = [
    Case("flatten", [(3, 4, 2)], lambda k, x: k.layers.Dense(2)(k.layers.Flatten(**FIRST)(x))),
    Case(
        "global_average",
        [(3, 4, 2)],
        lambda k, x: k.layers.Dense(2)(k.layers.GlobalAveragePooling2D(**FIRST)(x)),
    ),
    Case(
        "global_max",
        [(3, 4, 2)],
        lambda k, x: k.layers.Dense(2)(k.layers.GlobalMaxPooling2D(keepdims=True, **FIRST)(x)),
    ),
    Case(
        "zero_padding",
        [(3, 4, 2)],
        lambda k, x: k.layers.Dense(2)(k.layers.ZeroPadding2D(((1, 2), (0, 1)), **FIRST)(x)),
    ),
    Case(
        "cropping",
        [(3, 4, 4)],
        lambda k, x: k.layers.Dense(2)(k.layers.Cropping2D(((1, 0), (1, 1)), **FIRST)(x)),
    ),
    Case(
        "normalized",
        [(3, 4, 2)],
        lambda k, x: k.layers.BatchNormalization(axis=1)(x),
    ),
]
