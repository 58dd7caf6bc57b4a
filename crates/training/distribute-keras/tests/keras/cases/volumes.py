"""Layers of volumes, and layers of any shape on them."""

from layers import Case, on_dense

CASES = []


def case(name, shape, build, **options):
    CASES.append(Case(name, [shape], build, **options))


def layer(name, class_name, shape, *args, **options):
    build = lambda k, x: on_dense(k, getattr(k.layers, class_name)(*args, **options), x)
    case(name, shape, build)


for PADDING in ("valid", "same"):
    for STRIDE in (1, 2):
        OPTIONS = {"padding": PADDING, "strides": STRIDE}
        NAME = f"{PADDING}_{STRIDE}"
        layer(f"conv_{NAME}", "Conv3D", (3, 4, 3, 2), 2, 2, **OPTIONS)
        layer(f"transpose_{NAME}", "Conv3DTranspose", (2, 2, 2, 2), 2, (3, 2, 2), **OPTIONS)
        layer(f"max_{NAME}", "MaxPooling3D", (4, 5, 3, 2), (2, 2, 3), **OPTIONS)
        layer(f"average_{NAME}", "AveragePooling3D", (4, 5, 3, 2), (2, 2, 3), **OPTIONS)
layer("conv_mixed", "Conv3D", (3, 4, 4, 2), 2, (1, 2, 3), activation="relu", use_bias=False)
layer("conv_groups", "Conv3D", (2, 3, 3, 4), 4, 2, groups=2, kernel_regularizer="l2")
layer("max_default", "MaxPooling3D", (2, 4, 4, 2))
layer("average_two", "AveragePooling3D", (2, 4, 4, 2), 2)
for KEEP in (True, False):
    layer(f"global_max_{KEEP}", "GlobalMaxPooling3D", (2, 3, 2, 2), keepdims=KEEP)
    layer(f"global_average_{KEEP}", "GlobalAveragePooling3D", (2, 3, 2, 2), keepdims=KEEP)
layer("zero", "ZeroPadding3D", (2, 1, 2, 2), ((1, 0), (0, 2), (1, 1)))
layer("zero_default", "ZeroPadding3D", (1, 1, 1, 2))
layer("crop", "Cropping3D", (3, 4, 3, 2), ((1, 0), (1, 2), (1, 1)))
layer("crop_three", "Cropping3D", (3, 4, 5, 1), (1, 1, 2))
layer("up", "UpSampling3D", (2, 1, 2, 2), (1, 2, 3))
layer("dense", "Dense", (2, 2, 2, 3), 2, activation="tanh")
layer("softmax", "Softmax", (2, 2, 1, 3))
layer("normalization", "BatchNormalization", (2, 2, 2, 3), momentum=0.9)
layer("layer_normalization", "LayerNormalization", (2, 2, 2, 3))
layer("rescaling", "Rescaling", (2, 1, 2, 2), 0.5, offset=0.1)
layer("flatten", "Flatten", (2, 3, 2, 2))
case(
    "flatten_dense",
    (2, 3, 2, 2),
    lambda k, x: k.layers.Dense(2)(k.layers.Flatten()(k.layers.Conv3D(2, 2)(x))),
)
layer("reshape", "Reshape", (2, 3, 2, 2), (4, 6))
layer("reshape_to", "Reshape", (24,), (2, 3, 2, 2))
case("add", (2, 2, 2, 2), lambda k, x: k.layers.Add()([x, k.layers.Conv3D(2, 1)(x)]))
case(
    "concatenate",
    (2, 2, 2, 2),
    lambda k, x: k.layers.Concatenate(axis=-1)([x, k.layers.Conv3D(1, 1)(x)]),
)


def net(k, x):
    x = k.layers.Conv3D(3, 3, padding="same", activation="tanh")(x)
    x = k.layers.BatchNormalization(momentum=0.9)(x)
    x = k.layers.MaxPooling3D(2)(x)
    x = k.layers.GlobalAveragePooling3D()(x)
    return k.layers.Dense(2, activation="softmax")(x)


case("net", (4, 4, 4, 1), net)
