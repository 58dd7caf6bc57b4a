"""Times a training step of a built-in model in JAX, for the comparison in docs/tpu.md.

    pip install jax==0.10.2
    PJRT_NAMES_AND_LIBRARY_PATHS=cpu_plugin:PLUGIN.so JAX_PLATFORMS=cpu_plugin \
        python bench/tpu/jax_step.py --model mnist-cnn --replicas 1 --steps 100 --layout NHWC

Models, loss, optimizer and batch are the same as in `distribute-cli bench tpu --model`:
Keras' Adam, 64 examples per replica, sums of gradients over the replicas, the state donated. `bench tpu`
reads the loss of every step, and so does this script with `--read`. Prints one JSON line: the
milliseconds of a step, the median of the rounds.
"""

import argparse
import json
import statistics
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

HIGHEST = jax.lax.Precision.HIGHEST
CLASSES = 10
# What `text` is measured with: the tokens of a text, how many there are, numbers of each.
TEXT_STEPS, TEXT_TOKENS, WORD_DIMENSIONS = 64, 2000, 64


class Cnn:
    """Two convolutions with pools, one hidden layer."""

    def __init__(self, side, padding, flat, l2):
        self.side, self.padding, self.flat, self.l2 = side, padding, flat, l2

    def examples(self, rng, count, layout):
        side = self.side
        shape = (count, side, side, 1) if layout == "NHWC" else (count, 1, side, side)
        return rng.random(shape, np.float32), rng.integers(0, CLASSES, count, np.int32)

    def parameters(self, keys, layout):
        return [
            conv_parameters(keys[0], 1, 32, layout),
            conv_parameters(keys[1], 32, 64, layout),
            dense_parameters(keys[2], self.flat, 64),
            dense_parameters(keys[3], 64, CLASSES),
        ]

    def forward(self, params, x, layout):
        for kernel, bias in params[:2]:
            x = max_pool(conv(x, kernel, bias, self.padding, layout), layout)
        return dense_layers(params[2:], x.reshape(x.shape[0], -1))


class Mlp:
    """Two hidden layers."""

    l2 = 0.0

    def examples(self, rng, count, layout):
        return rng.random((count, 64), np.float32), rng.integers(0, CLASSES, count, np.int32)

    def parameters(self, keys, layout):
        sizes = zip(keys, [(64, 64), (64, 64), (64, CLASSES)])
        return [dense_parameters(key, *size) for key, size in sizes]

    def forward(self, params, x, layout):
        return dense_layers(params, x)


class Text:
    """Mean of word embeddings, two hidden layers, one output."""

    l2 = 0.0

    def examples(self, rng, count, layout):
        tokens = rng.integers(0, TEXT_TOKENS, (count, TEXT_STEPS), np.int32)
        return tokens, rng.integers(0, 2, count, np.int32)

    def parameters(self, keys, layout):
        shape = (TEXT_TOKENS, WORD_DIMENSIONS)
        words = jax.random.uniform(keys[0], shape, jnp.float32, -0.05, 0.05)
        sizes = zip(keys[1:], [(WORD_DIMENSIONS, 256), (256, 64), (64, 1)])
        return [(words,)] + [dense_parameters(key, *size) for key, size in sizes]

    def forward(self, params, tokens, layout):
        (words,) = params[0]
        # Token 0 is padding that the mean leaves out.
        known = (tokens != 0).astype(jnp.float32)[:, :, None]
        total = jnp.maximum(known.sum(1), 1.0)
        return dense_layers(params[1:], (words[tokens] * known).sum(1) / total)


MODELS = {
    "mnist-cnn": Cnn(28, "VALID", 1600, 1e-5),
    "digits-cnn": Cnn(8, "SAME", 256, 0.0),
    "mlp": Mlp(),
    "text": Text(),
}


def glorot(key, shape, fan_in, fan_out):
    limit = (6.0 / (fan_in + fan_out)) ** 0.5
    return jax.random.uniform(key, shape, jnp.float32, -limit, limit)


def conv_parameters(key, inputs, outputs, layout):
    shape = (3, 3, inputs, outputs) if layout == "NHWC" else (outputs, inputs, 3, 3)
    return glorot(key, shape, 9 * inputs, 9 * outputs), jnp.zeros(outputs)


def dense_parameters(key, inputs, outputs):
    return glorot(key, (inputs, outputs), inputs, outputs), jnp.zeros(outputs)


def conv(x, kernel, bias, padding, layout):
    numbers = (layout, "HWIO" if layout == "NHWC" else "OIHW", layout)
    x = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), padding, dimension_numbers=numbers, precision=HIGHEST
    )
    shape = [1, 1, 1, 1]
    shape[3 if layout == "NHWC" else 1] = -1
    return jax.nn.relu(x + bias.reshape(shape))


def max_pool(x, layout):
    window = (1, 2, 2, 1) if layout == "NHWC" else (1, 1, 2, 2)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def dense_layers(params, x):
    for index, (kernel, bias) in enumerate(params):
        x = jnp.dot(x, kernel, precision=HIGHEST) + bias
        if index + 1 < len(params):
            x = jax.nn.relu(x)
    return x


def losses_of(logits, y):
    if logits.shape[1] == 1:
        z = logits[:, 0]
        return jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)


def loss_of(params, x, y, model, global_batch, replicas, layout):
    loss = jnp.sum(losses_of(model.forward(params, x, layout), y)) / global_batch
    if model.l2 == 0.0:
        return loss
    l2 = sum(jnp.sum(kernel * kernel) for kernel, _ in params) * model.l2
    return loss + l2 / replicas


def step(state, x, y, rate, *, model, global_batch, replicas, layout):
    params, m, v = state
    loss_and_grads = jax.value_and_grad(loss_of)
    loss, grads = loss_and_grads(params, x, y, model, global_batch, replicas, layout)
    if replicas > 1:
        loss, grads = jax.lax.psum((loss, grads), "replicas")
    tree = jax.tree_util.tree_map
    m = tree(lambda m, g: m + (g - m) * (1.0 - 0.9), m, grads)
    v = tree(lambda v, g: v + (g * g - v) * (1.0 - 0.999), v, grads)
    params = tree(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-7), params, m, v)
    return (params, m, v), loss


def compiled(model, replicas, batch, layout):
    options = dict(model=model, global_batch=batch * replicas, replicas=replicas, layout=layout)
    body = partial(step, **options)
    if replicas == 1:
        return jax.jit(body, donate_argnums=0), None
    mesh = Mesh(np.array(jax.devices()[:replicas]), ("replicas",))
    specs = dict(in_specs=(P(), P("replicas"), P("replicas"), P()), out_specs=(P(), P()))
    body = jax.shard_map(body, mesh=mesh, check_vma=False, **specs)
    return jax.jit(body, donate_argnums=0), mesh


def read_arguments():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--model", choices=list(MODELS), default="mnist-cnn")
    arguments.add_argument("--replicas", type=int, default=1)
    arguments.add_argument("--batch", type=int, default=64, help="examples per replica")
    arguments.add_argument("--steps", type=int, default=50, help="steps of one round")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--read", action="store_true", help="read every loss, as bench tpu does")
    arguments.add_argument("--layout", choices=["NHWC", "NCHW"], default="NHWC")
    return arguments.parse_args()


def main():
    arguments = read_arguments()
    replicas, layout = arguments.replicas, arguments.layout
    model = MODELS[arguments.model]
    run, mesh = compiled(model, replicas, arguments.batch, layout)
    count = arguments.batch * replicas
    x, y = model.examples(np.random.default_rng(1), count, layout)
    params = model.parameters(jax.random.split(jax.random.key(0), 4), layout)
    zeros = lambda: jax.tree_util.tree_map(jnp.zeros_like, params)
    state = (params, zeros(), zeros())
    if mesh is not None:
        state = jax.device_put(state, NamedSharding(mesh, P()))
    rate = np.float32(1e-3)

    # A batch comes from the host in every step, as in training.
    def rounds():
        nonlocal state
        for _ in range(arguments.steps):
            state, loss = run(state, x, y, rate)
            if arguments.read:
                float(loss)
        return jax.block_until_ready(loss)

    first = rounds()
    times = []
    for _ in range(arguments.rounds):
        begin = time.perf_counter()
        loss = rounds()
        times.append((time.perf_counter() - begin) / arguments.steps * 1e3)
    print(json.dumps({
        "implementation": f"jax {jax.__version__}",
        "model": arguments.model,
        "layout": layout,
        "replicas": replicas,
        "step_ms": statistics.median(times),
        "examples_per_second": count / statistics.median(times) * 1e3,
        "parameters": sum(leaf.size for leaf in jax.tree_util.tree_leaves(params)),
        "first_loss": float(first),
        "loss": float(loss),
    }))


if __name__ == "__main__":
    main()
