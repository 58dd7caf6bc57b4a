"""Normalizations, attentions and layers of `keras.applications`, of any axes."""

from layers import Case


def first(k):
    """Whether it is Keras 3, which has layers that Keras 2 lacks."""
    return hasattr(k, "ops")


IMAGE = [(4, 4, 3)]
STEPS = [(4, 3)]

CASES = [
    Case("identity", STEPS, lambda k, x: k.layers.Identity()(k.layers.Dense(2)(x))),
    Case("layer_norm_axes", IMAGE, lambda k, x: k.layers.LayerNormalization(axis=[1, 2, 3])(x)),
    Case("layer_norm_first", STEPS, lambda k, x: k.layers.LayerNormalization(axis=1)(x)),
    Case(
        "layer_norm_two",
        IMAGE,
        lambda k, x: k.layers.LayerNormalization(axis=[2, 3], scale=False)(x),
    ),
    Case("rms_norm", STEPS, lambda k, x: k.layers.RMSNormalization()(x), keras2=False),
    Case("rms_norm_axes", IMAGE, lambda k, x: k.layers.RMSNormalization([2, 3])(x), keras2=False),
    Case(
        "group_norm",
        [(4, 4, 6)],
        lambda k, x: k.layers.GroupNormalization(3)(x),
        weights=lambda g, path, shape: None,
    ),
    Case("instance_norm", IMAGE, lambda k, x: k.layers.GroupNormalization(-1)(x)),
    Case("layer_group_norm", [(5, 6)], lambda k, x: k.layers.GroupNormalization(1)(x)),
    Case("group_norm_axis", [(4, 3, 2)], lambda k, x: k.layers.GroupNormalization(2, axis=1)(x)),
    Case("unit_norm", STEPS, lambda k, x: k.layers.UnitNormalization()(k.layers.Dense(3)(x))),
    Case(
        "unit_norm_axes",
        IMAGE,
        lambda k, x: k.layers.UnitNormalization(axis=[1, 2])(k.layers.Conv2D(2, 1)(x)),
    ),
    Case("batch_norm_axis", IMAGE, lambda k, x: k.layers.BatchNormalization(axis=1)(x)),
    Case("batch_norm_steps", STEPS, lambda k, x: k.layers.BatchNormalization(axis=1)(x)),
    Case("prelu", IMAGE, lambda k, x: k.layers.PReLU()(x)),
    Case("prelu_shared", IMAGE, lambda k, x: k.layers.PReLU(shared_axes=[1, 2])(x)),
    Case("einsum_dense", STEPS, lambda k, x: k.layers.EinsumDense("abc,cd->abd", (None, 5))(x)),
    Case(
        "einsum_dense_bias",
        STEPS,
        lambda k, x: k.layers.EinsumDense(
            "abc,cde->abde", (None, 2, 5), bias_axes="de", activation="relu"
        )(x),
    ),
    Case(
        "einsum_dense_steps",
        STEPS,
        lambda k, x: k.layers.EinsumDense("abc,bd->adc", (6, 3), bias_axes="d")(x),
    ),
    Case(
        "einsum_dense_open",
        STEPS,
        lambda k, x: k.layers.EinsumDense("...x,xy->...y", (4,), bias_axes="y")(x),
    ),
    Case(
        "attention",
        [(4, 3), (5, 3)],
        lambda k, x, y: k.layers.Attention(use_scale=True)([k.layers.Dense(3)(x), y]),
    ),
    Case(
        "attention_key",
        [(4, 3), (5, 2), (5, 3)],
        lambda k, x, y, z: k.layers.Attention()([k.layers.Dense(3)(x), y, z]),
    ),
    Case(
        "attention_concat",
        [(4, 3), (5, 3)],
        lambda k, x, y: k.layers.Attention(score_mode="concat", use_scale=True)([x, y]),
    ),
    Case(
        "attention_causal",
        [(4, 3)],
        lambda k, x: k.layers.Attention(use_scale=True)([x, x], use_causal_mask=True),
    ),
    Case(
        "additive_attention",
        [(4, 3), (5, 3)],
        lambda k, x, y: k.layers.AdditiveAttention()([x, y]),
    ),
    Case(
        "dot",
        [(3,), (3,)],
        lambda k, x, y: k.layers.Dot(axes=1)([k.layers.Dense(3)(x), y]),
    ),
    Case(
        "dot_cosine",
        [(3,), (3,)],
        lambda k, x, y: k.layers.Dot(axes=-1, normalize=True)([k.layers.Dense(3)(x), y]),
    ),
    Case(
        "dot_steps",
        [(4, 3), (5, 3)],
        lambda k, x, y: k.layers.Dot(axes=(2, 2))([k.layers.Dense(3)(x), y]),
    ),
    Case(
        "merges",
        [(3,), (3,)],
        lambda k, x, y: k.layers.Average()(
            [
                k.layers.Maximum()([k.layers.Dense(3)(x), y]),
                k.layers.Minimum()([x, y]),
                k.layers.Subtract()([x, y]),
            ]
        ),
    ),
    Case(
        "noise_in_inference",
        STEPS,
        lambda k, x: k.layers.GaussianNoise(0.5)(
            k.layers.GaussianDropout(0.5)(
                k.layers.AlphaDropout(0.5)(k.layers.SpatialDropout1D(0.5, seed=3)(x))
            )
        ),
        trained=False,
    ),
    Case(
        "random_in_inference",
        [(4, 6, 3)],
        lambda k, x: k.layers.RandomFlip()(
            k.layers.RandomRotation(0.2)(
                k.layers.RandomZoom(0.2)(
                    k.layers.RandomTranslation(0.1, (-0.2, 0.3))(
                        k.layers.RandomContrast(0.2)(k.layers.RandomBrightness(0.2)(x))
                    )
                )
            )
        ),
        trained=False,
    ),
    Case("resizing_up", [(4, 6, 3)], lambda k, x: k.layers.Resizing(7, 9)(x), trained=False),
    Case("resizing_down", [(8, 6, 2)], lambda k, x: k.layers.Resizing(3, 4)(x), trained=False),
    Case(
        "resizing_nearest",
        [(4, 6, 3)],
        lambda k, x: k.layers.Resizing(7, 3, interpolation="nearest")(x),
        trained=False,
    ),
    Case(
        "resizing_bicubic",
        [(5, 6, 2)],
        lambda k, x: k.layers.Resizing(8, 9, interpolation="bicubic")(x),
        trained=False,
    ),
    Case(
        "resizing_crop",
        [(8, 6, 2)],
        lambda k, x: k.layers.Resizing(4, 6, crop_to_aspect_ratio=True)(x),
        trained=False,
    ),
    Case("center_crop", [(7, 6, 3)], lambda k, x: k.layers.CenterCrop(4, 3)(x), trained=False),
    Case(
        "rescaling_list",
        IMAGE,
        lambda k, x: k.layers.Rescaling([0.5, 2.0, 1.0], offset=[1.0, 0.0, -1.0])(x),
        trained=False,
    ),
    Case(
        "normalization_inverted",
        STEPS,
        lambda k, x: k.layers.Normalization(
            mean=[1.0, 2.0, 3.0], variance=[4.0, 1.0, 0.5], invert=True
        )(x),
        trained=False,
    ),
    Case(
        "categories",
        [(4,)],
        lambda k, x: [
            k.layers.CategoryEncoding(5, output_mode=mode)(x) for mode in ("multi_hot", "count")
        ],
        trained=False,
        values=lambda g, shape: g.integers(0, 5, shape),
    ),
    Case(
        "one_hot_category",
        [(1,)],
        lambda k, x: k.layers.CategoryEncoding(5, output_mode="one_hot")(x),
        trained=False,
        values=lambda g, shape: g.integers(0, 5, shape),
    ),
    Case(
        "fixed_batch_and_seeds",
        STEPS,
        lambda k, x: k.layers.Dense(
            2, kernel_initializer=k.initializers.GlorotNormal(seed=3), dtype="float32"
        )(k.layers.Dropout(0.5, seed=7)(x)),
        trained=False,
    ),
    Case(
        "softmax_axis",
        IMAGE,
        lambda k, x: k.layers.Softmax(axis=1)(k.layers.Conv2D(2, 1)(x)),
    ),
    Case(
        "bias_regularizers",
        IMAGE,
        lambda k, x: k.layers.Dense(2, bias_regularizer="l1")(
            k.layers.BatchNormalization(beta_regularizer="l2", gamma_regularizer="l1")(
                k.layers.Conv2D(3, 2, bias_regularizer="l2", kernel_regularizer="l1")(x)
            )
        ),
    ),
    Case(
        "discretization",
        STEPS,
        lambda k, x: k.layers.Rescaling(1.0)(
            k.ops.cast(k.layers.Discretization([-0.5, 0.0, 0.25])(x), "float32")
        ),
        trained=False,
        keras2=False,
    ),
    Case(
        "group_query_attention",
        STEPS,
        lambda k, x: k.layers.GroupQueryAttention(2, 4, 2)(x, x, use_causal_mask=True),
        keras2=False,
    ),
    Case(
        "group_query_attention_value",
        [(4, 3), (4, 3)],
        lambda k, x, y: k.layers.GroupQueryAttention(2, 2, 1, use_bias=False)(x, y),
        keras2=False,
    ),
]
