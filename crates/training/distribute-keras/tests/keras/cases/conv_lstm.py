"""LSTMs over sequences of images."""

from layers import Case


def case(name, shape, axes, **options):
    def build(k, x):
        layer = getattr(k.layers, f"ConvLSTM{axes}D")
        return layer(2, **options)(x)

    return Case(name, [shape], build, keras2=False)


CASES = [
    case("conv_lstm_1d", (3, 5, 2), 1, kernel_size=2, padding="same", return_sequences=True),
    case("conv_lstm_1d_last", (3, 5, 2), 1, kernel_size=3, strides=2, activation="relu"),
    case(
        "conv_lstm_2d",
        (3, 4, 5, 2),
        2,
        kernel_size=(2, 3),
        return_sequences=True,
        go_backwards=True,
        kernel_regularizer="l2",
        recurrent_regularizer="l2",
        bias_regularizer="l2",
    ),
    case(
        "conv_lstm_2d_last",
        (2, 4, 4, 1),
        2,
        kernel_size=2,
        padding="same",
        use_bias=False,
        recurrent_activation="hard_sigmoid",
    ),
    case("conv_lstm_2d_dilated", (2, 5, 5, 2), 2, kernel_size=2, dilation_rate=2),
    case("conv_lstm_3d", (2, 2, 3, 3, 1), 3, kernel_size=2, padding="same", return_sequences=True),
    Case(
        "conv_lstm_first",
        [(2, 2, 4, 5)],
        lambda k, x: k.layers.ConvLSTM2D(2, 2, data_format="channels_first")(x),
        keras2=False,
        trained=False,
    ),
    Case(
        "conv_lstm_first_sequences",
        [(2, 2, 4, 5)],
        lambda k, x: k.layers.ConvLSTM2D(
            2, 2, padding="same", data_format="channels_first", return_sequences=True
        )(x),
        keras2=False,
        trained=False,
    ),
]
