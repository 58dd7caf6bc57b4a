"""Whole numbers and numbers as classes."""

from layers import Case


def integers(generator, shape):
    return generator.integers(-2, 12, shape)


VOCABULARY = [5, 3, 9, 1, 7]


def lookup(name, shape=(4,), **options):
    return Case(
        f"integer_lookup_{name}",
        [shape],
        lambda k, x: k.layers.IntegerLookup(**options)(x),
        keras2=False,
        values=integers,
    )


def bins(name, shape=(4,)):
    return Case(
        f"discretization_{name}",
        [shape],
        lambda k, x: k.layers.Discretization([-1.0, 0.0, 0.5], output_mode=name)(x),
        keras2=False,
    )


CASES = [
    lookup("int", vocabulary=VOCABULARY),
    lookup("mask", vocabulary=VOCABULARY, mask_token=0),
    lookup("special", vocabulary=[0, -1, *VOCABULARY], mask_token=0, oov_token=-1),
    lookup("several", vocabulary=VOCABULARY, num_oov_indices=3, mask_token=2),
    lookup("steps", (3, 2), vocabulary=VOCABULARY),
    lookup("one", vocabulary=[4]),
    lookup("multi_hot", vocabulary=VOCABULARY, output_mode="multi_hot", mask_token=0),
    lookup("count", vocabulary=VOCABULARY, output_mode="count", num_oov_indices=2),
    lookup("one_hot", vocabulary=VOCABULARY, output_mode="one_hot"),
    lookup("one_hot_single", (1,), vocabulary=VOCABULARY, output_mode="one_hot"),
    lookup("padded", vocabulary=VOCABULARY, output_mode="count", max_tokens=9, pad_to_max_tokens=True),
    lookup(
        "tf_idf",
        vocabulary=VOCABULARY,
        output_mode="tf_idf",
        idf_weights=[0.5, 1.0, 2.0, 0.25, 0.75],
    ),
    bins("int"),
    bins("multi_hot"),
    bins("count"),
    bins("one_hot"),
    Case(
        "discretization_single",
        [(1,)],
        lambda k, x: k.layers.Discretization([0.0, 0.5], output_mode="one_hot")(x),
        keras2=False,
    ),
]
