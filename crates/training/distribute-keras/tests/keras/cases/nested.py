"""Models inside of models, whose calls versions of Keras count in different ways."""

from layers import Case


def inner(k, name, units=3):
    x = k.Input((4,), name=name + "_in")
    return k.Model(x, k.layers.Dense(units, name=name + "_dense")(x), name=name)


def siamese(k, x, y, half=False):
    tower = inner(k, "tower")
    first, second = tower(x), tower(y)
    joined = k.layers.Concatenate(name="joined")([first, second])
    return [joined, second] if half else [first, second]


def reused(k, x):
    """The inner model was called before, outside of this model."""
    tower = inner(k, "tower")
    tower(k.Input((4,), name="other"))
    return tower(x)


def two_deep(k, x):
    y = k.Input((4,), name="y")
    middle = k.Model(y, inner(k, "innermost", 4)(y), name="middle")
    return middle(middle(x))


CASES = [
    Case("ends_with_a_model", [(4,)], lambda k, x: inner(k, "encoder")(x)),
    Case("calls_it_twice", [(4,), (4,)], siamese),
    Case("uses_one_call_twice", [(4,), (4,)], lambda k, x, y: siamese(k, x, y, half=True)),
    Case("was_called_before", [(4,)], reused),
    Case("two_deep", [(4,)], two_deep),
    Case(
        "sequential_twice",
        [(4,)],
        lambda k, x: (lambda s: s(s(x)))(k.Sequential([k.Input((4,)), k.layers.Dense(4)])),
    ),
]
