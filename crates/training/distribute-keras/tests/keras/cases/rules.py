"""Losses on what layers give, constraints on weights, and dropouts of whole channels."""

from layers import Case

L1L2 = dict(l1=0.02, l2=0.03)


def loss(k):
    return k.regularizers.L1L2(**L1L2)


def norm(k, axis=0):
    return k.constraints.MaxNorm(0.5, axis=axis)


def bidirectional(k, x):
    layer = k.layers.GRU(
        2,
        return_sequences=True,
        return_state=True,
        activity_regularizer=loss(k),
        kernel_constraint=norm(k, 1),
        recurrent_constraint="unit_norm",
    )
    return k.layers.Bidirectional(layer)(x)[0]


def nested(k, x):
    inner = k.Sequential(
        [k.layers.Input((3,)), k.layers.Dense(2, activation="relu", activity_regularizer=loss(k))]
    )
    return k.layers.Dense(2)(inner(x))


def twice(k, x, y):
    layer = k.layers.Dense(2, activity_regularizer="l2", bias_constraint="non_neg")
    return k.layers.Add()([layer(x), layer(y)])


CASES = [
    Case("activity", [(3,)], lambda k, x: k.layers.Dense(2, activity_regularizer=loss(k))(x)),
    # The loss is on the probabilities, which the model's own loss does without.
    Case(
        "activity_head",
        [(3,)],
        lambda k, x: k.layers.Dense(3, activation="softmax", activity_regularizer=loss(k))(x),
    ),
    Case(
        "activity_regularization",
        [(4, 3)],
        lambda k, x: k.layers.ActivityRegularization(**L1L2)(k.layers.Dense(2)(x)),
    ),
    Case(
        "activity_image",
        [(5, 4, 3)],
        lambda k, x: k.layers.Conv2D(
            2, 2, activation="relu", activity_regularizer=loss(k), kernel_regularizer="l2"
        )(x),
    ),
    Case(
        "activity_first",
        [(3, 5, 4)],
        lambda k, x: k.layers.GlobalAveragePooling2D(
            data_format="channels_first", activity_regularizer="l1"
        )(x),
        keras2=False,
    ),
    Case(
        "activity_states",
        [(4, 3)],
        lambda k, x: k.layers.LSTM(2, return_state=True, activity_regularizer=loss(k))(x)[1],
    ),
    Case("activity_bidirectional", [(4, 3)], bidirectional),
    Case("activity_nested", [(3,)], nested),
    Case("activity_twice", [(3,), (3,)], twice),
    # Keras 3 calls the layer inside without its loss.
    Case(
        "activity_steps",
        [(4, 3)],
        lambda k, x: k.layers.TimeDistributed(k.layers.Dense(2, activity_regularizer="l2"))(x),
        keras2=False,
    ),
    Case(
        "constraints_dense",
        [(3,)],
        lambda k, x: k.layers.Dense(
            2, kernel_constraint=norm(k), bias_constraint=k.constraints.NonNeg()
        )(x),
    ),
    Case(
        "constraints_flattened",
        [(3, 2, 2)],
        lambda k, x: k.layers.Dense(2, kernel_constraint=norm(k, [1]))(k.layers.Flatten()(x)),
    ),
    Case(
        "constraints_image",
        [(5, 4, 3)],
        lambda k, x: k.layers.Conv2D(2, 2, kernel_constraint=norm(k, [0, 1, 2]))(x),
    ),
    Case(
        "constraints_depthwise",
        [(5, 4, 3)],
        lambda k, x: k.layers.DepthwiseConv2D(
            2, depth_multiplier=2, depthwise_constraint=norm(k, [0, 1, 2])
        )(x),
    ),
    Case(
        "constraints_separable",
        [(5, 4, 3)],
        lambda k, x: k.layers.SeparableConv2D(
            2,
            2,
            depthwise_constraint=norm(k, [0, 1]),
            pointwise_constraint=k.constraints.MinMaxNorm(0.3, 0.6, rate=0.5, axis=2),
        )(x),
    ),
    Case(
        "constraints_transposed",
        [(3, 2)],
        lambda k, x: k.layers.Conv1DTranspose(3, 2, kernel_constraint=norm(k, [0, 2]))(x),
    ),
    Case(
        "constraints_volume",
        [(3, 3, 3, 2)],
        lambda k, x: k.layers.Conv3D(2, 2, kernel_constraint=norm(k, [0, 1, 2, 3]))(x),
    ),
    Case(
        "constraints_embedding",
        [(4,)],
        lambda k, x: k.layers.Embedding(5, 3, embeddings_constraint=k.constraints.UnitNorm(1))(x),
        values=lambda generator, shape: generator.integers(0, 5, shape),
    ),
    Case(
        "constraints_normalization",
        [(4, 3)],
        lambda k, x: k.layers.LayerNormalization(
            gamma_constraint="non_neg", beta_constraint=k.constraints.MaxNorm(0.2)
        )(x),
    ),
    Case(
        "constraints_attention",
        [(4, 3)],
        lambda k, x: k.layers.MultiHeadAttention(2, 3, kernel_constraint=norm(k))(x, x),
    ),
    Case(
        "constraints_lstm",
        [(4, 3)],
        lambda k, x: k.layers.LSTM(
            2, kernel_constraint=norm(k), recurrent_constraint=norm(k, 1), bias_constraint="non_neg"
        )(x),
    ),
    Case(
        "constraints_einsum",
        [(4, 3)],
        lambda k, x: k.layers.EinsumDense(
            "abc,cde->abde", output_shape=(None, 2, 2), kernel_constraint=norm(k, 1)
        )(x),
    ),
    Case(
        "constraints_prelu",
        [(4, 3)],
        lambda k, x: k.layers.PReLU(alpha_constraint=k.constraints.NonNeg())(x),
    ),
    Case(
        "spatial_dropout_3d",
        [(3, 3, 3, 2)],
        lambda k, x: k.layers.SpatialDropout3D(0.5)(k.layers.Conv3D(2, 1)(x)),
        trained=False,
    ),
]
