"""Times a training step of `mnist-cnn` in JAX, for the comparison in docs/tpu.md.

    pip install jax==0.10.2
    PJRT_NAMES_AND_LIBRARY_PATHS=cpu_plugin:PLUGIN.so JAX_PLATFORMS=cpu_plugin \
        python bench/tpu/jax_step.py --replicas 1 --steps 100 --layout NHWC

The model, the loss, the optimizer and the batch are those of `distribute-cli bench tpu`: Keras'
Adam, 64 examples per replica, sums of gradients over the replicas, the state donated. Prints one
JSON line: the milliseconds of a step, the median of the rounds.
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

L2 = 1e-5


def parameters(key, layout):
    """Glorot uniform kernels and zero biases, as Keras initialises them."""

    def glorot(key, shape, fan_in, fan_out):
        limit = (6.0 / (fan_in + fan_out)) ** 0.5
        return jax.random.uniform(key, shape, jnp.float32, -limit, limit)

    def conv(key, inputs, outputs):
        shape = (3, 3, inputs, outputs) if layout == "NHWC" else (outputs, inputs, 3, 3)
        return glorot(key, shape, 9 * inputs, 9 * outputs), jnp.zeros(outputs)

    def dense(key, inputs, outputs):
        return glorot(key, (inputs, outputs), inputs, outputs), jnp.zeros(outputs)

    keys = jax.random.split(key, 4)
    return [
        conv(keys[0], 1, 32),
        conv(keys[1], 32, 64),
        dense(keys[2], 1600, 64),
        dense(keys[3], 64, 10),
    ]


def forward(params, x, layout):
    channels = (3,) if layout == "NHWC" else (1,)
    numbers = (layout, "HWIO" if layout == "NHWC" else "OIHW", layout)
    window = (1, 2, 2, 1) if layout == "NHWC" else (1, 1, 2, 2)
    for kernel, bias in params[:2]:
        x = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=numbers,
            precision=jax.lax.Precision.HIGHEST,
        )
        shape = [1, 1, 1, 1]
        shape[channels[0]] = -1
        x = jax.nn.relu(x + bias.reshape(shape))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    x = x.reshape(x.shape[0], -1)
    (k1, b1), (k2, b2) = params[2:]
    x = jax.nn.relu(jnp.dot(x, k1, precision=jax.lax.Precision.HIGHEST) + b1)
    return jnp.dot(x, k2, precision=jax.lax.Precision.HIGHEST) + b2


def loss_of(params, x, y, global_batch, replicas, layout):
    logits = forward(params, x, layout)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
    l2 = sum(jnp.sum(kernel * kernel) for kernel, _ in params) * L2
    return -jnp.sum(picked) / global_batch + l2 / replicas


def step(state, x, y, rate, *, global_batch, replicas, layout):
    params, m, v = state
    loss, grads = jax.value_and_grad(loss_of)(params, x, y, global_batch, replicas, layout)
    if replicas > 1:
        loss, grads = jax.lax.psum((loss, grads), "replicas")
    tree = jax.tree_util.tree_map
    m = tree(lambda m, g: m + (g - m) * (1.0 - 0.9), m, grads)
    v = tree(lambda v, g: v + (g * g - v) * (1.0 - 0.999), v, grads)
    params = tree(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-7), params, m, v)
    return (params, m, v), loss


def compiled(replicas, batch, layout):
    body = partial(step, global_batch=batch * replicas, replicas=replicas, layout=layout)
    if replicas == 1:
        return jax.jit(body, donate_argnums=0), None
    mesh = Mesh(np.array(jax.devices()[:replicas]), ("replicas",))
    specs = dict(in_specs=(P(), P("replicas"), P("replicas"), P()), out_specs=(P(), P()))
    body = jax.shard_map(body, mesh=mesh, check_vma=False, **specs)
    return jax.jit(body, donate_argnums=0), mesh


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--replicas", type=int, default=1)
    arguments.add_argument("--batch", type=int, default=64, help="examples per replica")
    arguments.add_argument("--steps", type=int, default=50, help="steps of one round")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--layout", choices=["NHWC", "NCHW"], default="NHWC")
    arguments = arguments.parse_args()
    replicas, layout = arguments.replicas, arguments.layout

    run, mesh = compiled(replicas, arguments.batch, layout)
    count = arguments.batch * replicas
    shape = (count, 28, 28, 1) if layout == "NHWC" else (count, 1, 28, 28)
    rng = np.random.default_rng(1)
    x, y = rng.random(shape, np.float32), rng.integers(0, 10, count, np.int32)
    params = parameters(jax.random.key(0), layout)
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
        return jax.block_until_ready(loss)

    rounds()
    times = []
    for _ in range(arguments.rounds):
        begin = time.perf_counter()
        loss = rounds()
        times.append((time.perf_counter() - begin) / arguments.steps * 1e3)
    print(json.dumps({
        "implementation": f"jax {jax.__version__}",
        "layout": layout,
        "replicas": replicas,
        "step_ms": statistics.median(times),
        "images_per_second": count / statistics.median(times) * 1e3,
        "loss": float(loss),
    }))


if __name__ == "__main__":
    main()
