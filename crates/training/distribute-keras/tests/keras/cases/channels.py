"""Images and sequences whose channels are first, where TensorFlow computes that on CPUs."""

from layers import Case

FIRST = {"data_format": "channels_first"}

# Layers that end a model.
LAST = {
    "depthwise": lambda k: k.layers.DepthwiseConv2D(3, depth_multiplier=2, **FIRST),
    "depthwise_same": lambda k: k.layers.DepthwiseConv2D(2, padding="same", **FIRST),
    "conv": lambda k: k.layers.Conv2D(4, 3, **FIRST),
    "separable": lambda k: k.layers.SeparableConv2D(4, 3, depth_multiplier=2, **FIRST),
    "transposed": lambda k: k.layers.Conv2DTranspose(2, 3, strides=2, **FIRST),
    "max_pool": lambda k: k.layers.MaxPooling2D(2, **FIRST),
    "average_pool": lambda k: k.layers.AveragePooling2D(2, **FIRST),
    "padded": lambda k: k.layers.ZeroPadding2D(**FIRST),
    "up": lambda k: k.layers.UpSampling2D(**FIRST),
}

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
    *[
        Case(
            f"{name}_last",
            [(3, 4, 5)],
            lambda k, x, layer=layer: layer(k)(x),
            trained=False,
            keras2=False,
        )
        for name, layer in LAST.items()
    ],
]
