"""SimpleRNN, LSTM, GRU, RNN of cells, Bidirectional, TimeDistributed, Masking and where masks go."""

from layers import Case, numbers, steps, tokens

CASES = []


def case(name, shapes, build, **options):
    CASES.append(Case(name, shapes, build, **options))


def classes(k):
    return {"rnn": k.layers.SimpleRNN, "lstm": k.layers.LSTM, "gru": k.layers.GRU}


def add(kind, name, shape=(4, 3), call=lambda layer, x: layer(x), options=None, **of_case):
    options = options or {}
    build = lambda k, x: call(classes(k)[kind](2, **options), x)
    case(f"{kind}_{name}", [shape], build, **of_case)


for KIND in ("rnn", "lstm", "gru"):
    add(KIND, "last")
    add(KIND, "sequences", options={"return_sequences": True})
    add(KIND, "backwards", options={"go_backwards": True, "return_sequences": True})
    add(KIND, "no_bias", options={"use_bias": False, "unroll": True})
    add(KIND, "states", options={"return_state": True, "return_sequences": True})
    add(KIND, "relu", options={"activation": "relu"})
    add(
        KIND,
        "regularized",
        options={
            "kernel_regularizer": "l2",
            "recurrent_regularizer": "l1",
            "bias_regularizer": "l2",
        },
    )
    for PAD in ("start", "end", "both"):
        case(
            f"{KIND}_masked_{PAD}",
            [(5, 2)],
            lambda k, x, kind=KIND: classes(k)[kind](2)(k.layers.Masking()(x)),
            values=steps(PAD),
        )
    case(
        f"{KIND}_masked_sequences",
        [(5, 2)],
        lambda k, x, kind=KIND: classes(k)[kind](2, return_sequences=True, return_state=True)(
            k.layers.Masking()(x)
        ),
        values=steps("both"),
    )
    case(
        f"{KIND}_masked_backwards",
        [(5,)],
        lambda k, x, kind=KIND: classes(k)[kind](2, return_sequences=True, go_backwards=True)(
            k.layers.Embedding(7, 3, mask_zero=True)(x)
        ),
        values=tokens(7, "end"),
    )
add("lstm", "hard", options={"recurrent_activation": "hard_sigmoid"}, keras2=False)
add("lstm", "no_forget", options={"unit_forget_bias": False, "recurrent_activation": "relu"})
add("gru", "before", options={"reset_after": False})
add("gru", "before_sequences", options={"reset_after": False, "return_sequences": True})
add("gru", "before_no_bias", options={"reset_after": False, "use_bias": False})
add("gru", "hard", options={"recurrent_activation": "hard_sigmoid"}, keras2=False)


def encoder_decoder(k, x, y):
    _, h, c = k.layers.LSTM(2, return_state=True)(x)
    decoded = k.layers.LSTM(2, return_sequences=True)(y, initial_state=[h, c])
    return k.layers.Dense(3, activation="tanh")(decoded)


def gru_decoder(k, x, y):
    _, h = k.layers.GRU(3, return_state=True)(x)
    return k.layers.GRU(3)(y, initial_state=h)


def two_decoders(k, x, y):
    first, h, c = k.layers.LSTM(2, return_state=True, return_sequences=True)(x)
    second = k.layers.LSTM(2)(y, initial_state=[c, h])
    return [first, second, c]


case("encoder_decoder", [(4, 2), (3, 2)], encoder_decoder)
case("gru_decoder", [(3, 2), (2, 2)], gru_decoder)
case("two_decoders", [(3, 2), (2, 2)], two_decoders)

CELLS = {
    "simple": lambda k: k.layers.SimpleRNNCell(2),
    "lstm": lambda k: k.layers.LSTMCell(2),
    "gru": lambda k: k.layers.GRUCell(2),
    "gru_before": lambda k: k.layers.GRUCell(2, reset_after=False, activation="relu"),
    "stacked": lambda k: [k.layers.LSTMCell(3), k.layers.GRUCell(2), k.layers.SimpleRNNCell(2)],
}
for NAME, CELL in CELLS.items():
    case(
        f"cells_{NAME}",
        [(3, 2)],
        lambda k, x, cell=CELL: k.layers.RNN(cell(k), return_sequences=True)(x),
    )
case(
    "cells_stacked_masked",
    [(5, 2)],
    lambda k, x: k.layers.RNN([k.layers.LSTMCell(2), k.layers.GRUCell(3)], go_backwards=True)(
        k.layers.Masking()(x)
    ),
    values=steps("both"),
)
case(
    "cells_stacked_in_cells",
    [(3, 2)],
    lambda k, x: k.layers.RNN(k.layers.StackedRNNCells([k.layers.GRUCell(2), k.layers.LSTMCell(2)]))(
        x
    ),
)
case("deep", [(4, 2)], lambda k, x: k.layers.GRU(2)(k.layers.LSTM(3, return_sequences=True)(x)))

for MERGE in ("concat", "sum", "ave", "mul", None):
    for SEQUENCES in (True, False):
        case(
            f"bidirectional_{MERGE}_{SEQUENCES}",
            [(4, 2)],
            lambda k, x, merge=MERGE, sequences=SEQUENCES: k.layers.Bidirectional(
                k.layers.GRU(2, return_sequences=sequences), merge_mode=merge
            )(x),
        )
case(
    "bidirectional_states",
    [(4, 2)],
    lambda k, x: k.layers.Bidirectional(k.layers.LSTM(2, return_state=True))(x),
)


def bidirectional_initial(k, x, y):
    outputs = k.layers.Bidirectional(k.layers.LSTM(2, return_state=True))(x)
    layer = k.layers.Bidirectional(k.layers.LSTM(2, return_sequences=True))
    return layer(y, initial_state=list(outputs[1:]))


case("bidirectional_initial", [(3, 2), (2, 2)], bidirectional_initial)
case(
    "bidirectional_own_backward",
    [(4, 2)],
    lambda k, x: k.layers.Bidirectional(
        k.layers.LSTM(2, return_sequences=True),
        backward_layer=k.layers.GRU(3, return_sequences=True, go_backwards=True),
    )(x),
)
for PAD in ("start", "end", "both"):
    for SEQUENCES in (True, False):
        case(
            f"bidirectional_masked_{PAD}_{SEQUENCES}",
            [(5,)],
            lambda k, x, sequences=SEQUENCES: k.layers.Bidirectional(
                k.layers.LSTM(2, return_sequences=sequences)
            )(k.layers.Embedding(7, 2, mask_zero=True)(x)),
            values=tokens(7, PAD),
        )


def stacked_text(k, x):
    x = k.layers.Embedding(7, 3, mask_zero=True)(x)
    x = k.layers.Bidirectional(k.layers.LSTM(2, return_sequences=True))(x)
    x = k.layers.Dropout(0.0)(x)
    x = k.layers.Bidirectional(k.layers.GRU(2))(x)
    return k.layers.Dense(2, activation="softmax")(x)


case("stacked_text", [(5,)], stacked_text, values=tokens(7, "end"))

case("distributed_dense", [(3, 2)], lambda k, x: k.layers.TimeDistributed(k.layers.Dense(2))(x))
case(
    "distributed_conv",
    [(2, 4, 4, 2)],
    lambda k, x: k.layers.TimeDistributed(k.layers.Conv2D(2, 3, padding="same"))(x),
)
case(
    "distributed_rows",
    [(3, 4, 2)],
    lambda k, x: k.layers.TimeDistributed(k.layers.LSTM(2))(x),
)
case(
    "distributed_flatten",
    [(2, 3, 3, 2)],
    lambda k, x: k.layers.LSTM(2)(k.layers.TimeDistributed(k.layers.Flatten())(x)),
)


def video(k, x):
    frame = k.Sequential(
        [
            k.layers.Input((4, 4, 1)),
            k.layers.Conv2D(2, 3, activation="relu"),
            k.layers.MaxPooling2D(),
            k.layers.Flatten(),
            k.layers.Dense(2),
        ]
    )
    return k.layers.GRU(2)(k.layers.TimeDistributed(frame)(x))


case("distributed_model", [(3, 4, 4, 1)], video)


def tagged(k, x):
    x = k.layers.Masking()(x)
    x = k.layers.LSTM(2, return_sequences=True)(x)
    x = k.layers.TimeDistributed(k.layers.Dense(2, activation="relu"))(x)
    return k.layers.GlobalAveragePooling1D()(x)


case("distributed_masked", [(5, 2)], tagged, values=steps("end"))
case(
    "distributed_bidirectional",
    [(2, 3, 2)],
    lambda k, x: k.layers.TimeDistributed(k.layers.Bidirectional(k.layers.GRU(2)))(x),
)
case(
    "masking_value",
    [(4, 2)],
    lambda k, x: k.layers.LSTM(2, return_sequences=True)(k.layers.Masking(mask_value=1.0)(x)),
    values=lambda generator, shape: numbers(generator, shape).round(0),
)
for KEEP in (True, False):
    case(
        f"mean_of_masked_{KEEP}",
        [(5,)],
        lambda k, x, keep=KEEP: k.layers.GlobalAveragePooling1D(keepdims=keep)(
            k.layers.Embedding(7, 3, mask_zero=True)(x)
        ),
        values=tokens(7, "both"),
        keras2=not KEEP,
    )


def attention(k, x):
    x = k.layers.Embedding(7, 4, mask_zero=True)(x)
    x = k.layers.MultiHeadAttention(2, 2)(x, x)
    return k.layers.GlobalAveragePooling1D()(x)


def causal(k, x):
    x = k.layers.Embedding(7, 4, mask_zero=True)(x)
    return k.layers.MultiHeadAttention(1, 3)(x, x, use_causal_mask=True)


def cross(k, x, y):
    x = k.layers.Masking()(x)
    y = k.layers.Masking()(y)
    return k.layers.MultiHeadAttention(2, 2)(x, y)


case("attention_masked", [(5,)], attention, values=tokens(7, "end"))
case("attention_causal", [(4,)], causal, values=tokens(7, "end"))
case("attention_cross", [(4, 2), (5, 3)], cross, values=steps("end"))
