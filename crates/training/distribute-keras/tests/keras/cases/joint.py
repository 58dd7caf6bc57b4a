"""What of one kind of layers, operations and shapes meets what of another."""

from layers import Case, on_dense, steps, tokens

CASES = []
VOLUME = (2, 3, 2, 4)


def case(name, shapes, build, **options):
    CASES.append(Case(name, shapes, build, **options))


def volume(name, operate, **options):
    """An operation on volumes, behind a layer with weights."""
    build = lambda k, x: operate(k, k.layers.Dense(4)(x))
    case(f"volume_{name}", [VOLUME], build, **options)


def layer(name, class_name, *args, **options):
    build = lambda k, x: on_dense(k, getattr(k.layers, class_name)(*args, **options), x)
    case(f"volume_{name}", [VOLUME], build, keras2=False)


def sequence(name, build, **options):
    """A layer between a sequence with padding and one that reads the mask."""
    run = lambda k, x: k.layers.LSTM(2)(build(k, k.layers.Masking()(x)))
    options = {"values": steps("end"), "keras2": False, **options}
    case(f"masked_{name}", [(5, 4)], run, **options)


def attention(name, build, **options):
    def run(k, x, y):
        query = k.layers.Embedding(7, 4, mask_zero=True)(x)
        value = k.layers.Embedding(7, 4, mask_zero=True)(y)
        return build(k, query, value)

    options = {"values": tokens(7, "end"), **options}
    case(f"masked_{name}", [(5,), (4,)], run, **options)


def lstm_states(k, x):
    y, h, c = k.layers.LSTM(3, return_sequences=True, return_state=True)(x)
    return [y[:, -1] + h * c, k.layers.GRU(3)(y * 2.0, initial_state=h - c)]


def inner(k, shape):
    x = k.Input(shape)
    return k.Model(x, k.layers.Dense(2)(x[:, :, 0] * 0.5) + 1.0)


def normalized(k, x):
    return k.layers.BatchNormalization(axis=1)(x)


volume("scalar", lambda k, x: 1.5 * x / 255.0 + 2.0)
volume("sum", lambda k, x: x + k.layers.Dense(4)(x) * x)
volume("slice", lambda k, x: x[:, 1:, ::2, :, -1])
volume("index", lambda k, x: x[:, 0])
volume("wide", lambda k, x: x[:, :, None] * x[:, :, :, None])
volume("mean", lambda k, x: k.ops.mean(x, axis=(1, 3)), keras2=False)
volume("largest", lambda k, x: k.ops.max(x, axis=-1, keepdims=True), keras2=False)
volume("transposed", lambda k, x: k.ops.transpose(x, (0, 4, 2, 1, 3)), keras2=False)
volume("joined", lambda k, x: k.ops.concatenate([x, x * x], axis=2), keras2=False)
volume("reshaped", lambda k, x: k.ops.reshape(x, (-1, 4, 3, 2, 2)), keras2=False)
volume("softmax", lambda k, x: k.ops.softmax(x, axis=1), keras2=False)
volume("merged", lambda k, x: k.layers.Concatenate(axis=3)([x, x[:, :, :, :1]]))
volume("flattened", lambda k, x: k.layers.Dense(2)(k.layers.Flatten()(x * x)))
volume("convolved", lambda k, x: k.layers.Conv3D(2, 2)(x * 0.5 - 1.0) * 2.0)
volume("permuted_5", lambda k, x: k.layers.Permute((3, 5, 1, 2, 4))(x[:, :, None]))
volume("reshaped_5", lambda k, x: k.layers.Reshape((2, 3, 1, 2, 4))(x))
layer("prelu", "PReLU", shared_axes=[1, 2])
layer("groups", "GroupNormalization", groups=2)
layer("axes", "LayerNormalization", axis=[1, -1])
layer("unit", "UnitNormalization", axis=2)
layer("rms", "RMSNormalization")
layer("softmax_axis", "Softmax", axis=2)
layer("identity", "Identity")
layer("einsum", "EinsumDense", "bdhwc,ce->bdhwe", (None, None, None, 3), bias_axes="e")
case("volume_axis", [VOLUME], normalized)
case("states", [(4, 3)], lstm_states)
case("each_model", [(3, 2, 4)], lambda k, x: k.layers.TimeDistributed(inner(k, (2, 4)))(x))
case(
    "each_volume",
    [(2, 2, 3, 2, 1)],
    lambda k, x: k.layers.TimeDistributed(k.layers.Conv3D(2, 2))(x),
    keras2=False,
)
case(
    "each_channels_first",
    [(2, 3, 2, 2)],
    lambda k, x: k.layers.Dense(2)(
        k.layers.TimeDistributed(
            k.layers.ZeroPadding2D(((1, 0), (0, 2)), data_format="channels_first")
        )(x)
    ),
)
for SIZE, SHAPE in (("1D", (3, 4)), ("3D", (2, 3, 2, 2))):
    for POOL in ("Max", "Average"):
        case(
            f"channels_first_{POOL}_{SIZE}",
            [SHAPE],
            lambda k, x, name=f"Global{POOL}Pooling{SIZE}": k.layers.Dense(2)(
                getattr(k.layers, name)(data_format="channels_first")(x)
            ),
        )
case(
    "channels_first_zero_3D",
    [(2, 1, 2, 2)],
    lambda k, x: k.layers.Dense(2)(
        k.layers.ZeroPadding3D((1, 0, 1), data_format="channels_first")(x)
    ),
)
for NAME, LAYER in {
    "identity": lambda k: k.layers.Identity(),
    "prelu": lambda k: k.layers.PReLU(),
    "groups": lambda k: k.layers.GroupNormalization(2),
    "rms": lambda k: k.layers.RMSNormalization(),
    "axes": lambda k: k.layers.LayerNormalization(axis=[1, 2]),
    "unit": lambda k: k.layers.UnitNormalization(),
    "einsum": lambda k: k.layers.EinsumDense("bsf,fg->bsg", (None, 3)),
    "noise": lambda k: k.layers.GaussianNoise(0.0),
}.items():
    sequence(NAME, lambda k, x, make=LAYER: make(k)(x))
sequence("operation", lambda k, x: x * 2.0 + 1.0)
attention("attention", lambda k, q, v: k.layers.Attention(use_scale=True)([q, v]))
attention("attention_key", lambda k, q, v: k.layers.Attention()([q, v, v * 0.5]), keras2=False)
attention("additive", lambda k, q, v: k.layers.AdditiveAttention()([q, v]))
attention(
    "causal_read",
    lambda k, q, v: k.layers.GRU(2)(k.layers.Attention()([q, v], use_causal_mask=True)),
    keras2=False,
)
attention(
    "grouped",
    lambda k, q, v: k.layers.GRU(2)(k.layers.GroupQueryAttention(2, 4, 2)(q, v)),
    keras2=False,
)
