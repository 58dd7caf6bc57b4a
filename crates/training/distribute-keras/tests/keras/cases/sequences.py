"""Convolutions and pools of sequences, transposed convolutions, upsampling, Permute, RepeatVector."""

from layers import Case, on_dense, tokens

CASES = []


def case(name, shape, build, **options):
    CASES.append(Case(name, [shape], build, **options))


def layer(name, class_name, shape, *args, of_case=None, **options):
    build = lambda k, x: on_dense(k, getattr(k.layers, class_name)(*args, **options), x)
    case(name, shape, build, **(of_case or {}))


for PADDING in ("valid", "same", "causal"):
    for OPTIONS in ({}, {"strides": 2}, {"dilation_rate": 2}):
        NAME = "_".join(OPTIONS) or "plain"
        layer(f"conv1d_{PADDING}_{NAME}", "Conv1D", (7, 2), 3, 3, padding=PADDING, **OPTIONS)
layer("conv1d_groups", "Conv1D", (5, 4), 4, 2, groups=2, activation="relu", use_bias=False)
layer("conv1d_even", "Conv1D", (6, 2), 2, 4, padding="same", kernel_regularizer="l2")
layer("conv1d_softmax", "Conv1D", (4, 2), 3, 2, activation="softmax")
for PADDING in ("valid", "same"):
    for STRIDE in (1, 2):
        NAME = f"{PADDING}_{STRIDE}"
        OPTIONS = {"padding": PADDING, "strides": STRIDE}
        layer(f"depthwise_{NAME}", "DepthwiseConv1D", (6, 2), 3, depth_multiplier=2, **OPTIONS)
        layer(f"separable_{NAME}", "SeparableConv1D", (6, 2), 3, 3, depth_multiplier=2, **OPTIONS)
        layer(f"max_{NAME}", "MaxPooling1D", (7, 2), 3, **OPTIONS)
        layer(f"average_{NAME}", "AveragePooling1D", (7, 2), 3, **OPTIONS)
layer("max_default", "MaxPooling1D", (6, 2))
layer("average_two", "AveragePooling1D", (6, 2), 2)
case(
    "global_max_of_equals",
    (5,),
    lambda k, x: k.layers.GlobalMaxPooling1D()(k.layers.Embedding(3, 3)(x)),
    values=tokens(3),
)
for KEEP in (True, False):
    layer(f"global_max_{KEEP}", "GlobalMaxPooling1D", (5, 3), keepdims=KEEP)
    layer(f"global_average_{KEEP}", "GlobalAveragePooling1D", (5, 3), keepdims=KEEP)
case(
    "global_max_masked",
    (5,),
    lambda k, x: k.layers.GlobalMaxPooling1D()(k.layers.Embedding(7, 3, mask_zero=True)(x)),
    values=tokens(7, "end"),
)
case(
    "conv1d_masked",
    (5,),
    lambda k, x: k.layers.GlobalAveragePooling1D()(
        k.layers.Conv1D(2, 2)(k.layers.Embedding(7, 3, mask_zero=True)(x))
    ),
    values=tokens(7, "end"),
)

for PADDING in ("valid", "same"):
    for KERNEL, STRIDE in ((3, 1), (3, 2), (2, 3), (4, 2), (1, 2)):
        NAME = f"{PADDING}_{KERNEL}_{STRIDE}"
        OPTIONS = {"padding": PADDING, "strides": STRIDE}
        layer(f"transpose1d_{NAME}", "Conv1DTranspose", (4, 2), 3, KERNEL, **OPTIONS)
        layer(f"transpose2d_{NAME}", "Conv2DTranspose", (3, 2, 2), 3, KERNEL, **OPTIONS)
    layer(
        f"transpose2d_{PADDING}_mixed",
        "Conv2DTranspose",
        (3, 4, 2),
        2,
        (3, 2),
        strides=(2, 1),
        padding=PADDING,
        activation="relu",
        use_bias=False,
    )
    layer(
        f"transpose2d_{PADDING}_padding",
        "Conv2DTranspose",
        (3, 3, 2),
        2,
        3,
        strides=2,
        padding=PADDING,
        output_padding=1,
        kernel_regularizer="l2",
    )
    layer(
        f"transpose2d_{PADDING}_no_padding",
        "Conv2DTranspose",
        (3, 3, 2),
        2,
        3,
        strides=2,
        padding=PADDING,
        output_padding=0,
    )
layer("transpose1d_padding", "Conv1DTranspose", (4, 2), 2, 3, strides=3, output_padding=1)

layer("up1d", "UpSampling1D", (3, 2), 3)
layer("up2d", "UpSampling2D", (3, 2, 2), (2, 3))
layer("up2d_default", "UpSampling2D", (2, 3, 2))
layer("up2d_bilinear", "UpSampling2D", (3, 4, 2), (2, 3), interpolation="bilinear")
layer("up2d_bilinear_one", "UpSampling2D", (1, 3, 2), 4, interpolation="bilinear")
layer("zero1d", "ZeroPadding1D", (3, 2), 2)
layer("zero1d_pair", "ZeroPadding1D", (3, 2), (1, 2))
layer("crop1d", "Cropping1D", (5, 2), (1, 2))
layer("crop1d_default", "Cropping1D", (5, 2))
layer("permute2", "Permute", (3, 2), (2, 1))
layer("permute3", "Permute", (2, 3, 4), (3, 1, 2))
layer("permute4", "Permute", (2, 3, 2, 4), (4, 2, 1, 3))
layer("repeat", "RepeatVector", (3,), 2)


def net(k, x):
    x = k.layers.Conv1D(4, 3, padding="same", activation="relu")(x)
    x = k.layers.BatchNormalization(momentum=0.9)(x)
    x = k.layers.MaxPooling1D(2)(x)
    x = k.layers.Flatten()(x)
    return k.layers.Dense(2, activation="softmax")(x)


case("net1d", (8, 2), net)


def coder(k, x):
    x = k.layers.Conv2D(3, 3, strides=2, padding="same", activation="relu")(x)
    x = k.layers.Conv2DTranspose(2, 3, strides=2, padding="same", activation="relu")(x)
    x = k.layers.UpSampling2D(2)(x)
    return k.layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x)


case("autoencoder", (4, 4, 1), coder)


def sequence_coder(k, x):
    x = k.layers.LSTM(3)(x)
    x = k.layers.RepeatVector(3)(x)
    x = k.layers.LSTM(2, return_sequences=True)(x)
    return k.layers.TimeDistributed(k.layers.Dense(2))(x)


case("sequence_autoencoder", (3, 2), sequence_coder)
