"""images/s of TensorFlow on the CNN of `distribute-cli bench train`: one JSON line.

    python tensorflow_loop.py single|mirrored SECONDS

`single` has no strategy (run it with `taskset -c 0` for one core), `mirrored` is a
`MirroredStrategy` over two logical CPUs. A custom loop in a `tf.function`, 64 images per replica
and step, synthetic; Adam.
"""

import json
import os
import resource
import sys
import time

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

BATCH = 64


def processor_time():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cnn():
    layers = tf.keras.layers
    return tf.keras.Sequential([
        tf.keras.Input((28, 28, 1)),
        layers.Conv2D(32, 3, activation="relu", kernel_regularizer=tf.keras.regularizers.L2(1e-5)),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ])  # fmt: skip


def batches(strategy, replicas):
    images = tf.random.stateless_uniform([16, BATCH * replicas, 28, 28, 1], [1, 2])
    labels = tf.random.stateless_uniform([16, BATCH * replicas], [3, 4], 0, 10, tf.int32)
    if replicas == 1:
        return [(images[index], labels[index]) for index in range(16)]

    def parts(values):
        def part(context):
            first = context.replica_id_in_sync_group * BATCH
            return values[first : first + BATCH]

        return strategy.experimental_distribute_values_from_function(part)

    return [(parts(images[index]), parts(labels[index])) for index in range(16)]


def main():
    mode, seconds = sys.argv[1], float(sys.argv[2])
    replicas = 2 if mode == "mirrored" else 1
    strategy = tf.distribute.get_strategy()
    if mode == "mirrored":
        cpus = tf.config.list_physical_devices("CPU")
        logical = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(cpus[0], logical)
        strategy = tf.distribute.MirroredStrategy([f"/cpu:{index}" for index in range(replicas)])
    with strategy.scope():
        model = cnn()
        optimizer = tf.keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(losses(labels, model(images, training=True)))
            loss = loss / (BATCH * replicas) + tf.add_n(model.losses) / replicas
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    @tf.function
    def step(images, labels):
        per_replica = strategy.run(replica_step, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    data = batches(strategy, replicas)
    for index in range(6):
        loss = step(*data[index])
    loss.numpy()
    start, processor, steps = time.perf_counter(), processor_time(), 0
    while time.perf_counter() - start < seconds:
        loss = step(*data[steps % 16])
        steps += 1
        if steps % 8 == 0:
            loss.numpy()
    loss = float(loss.numpy())
    images_in_all = steps * BATCH * replicas
    print(json.dumps({
        "impl": "TensorFlow, MirroredStrategy" if replicas > 1 else "TensorFlow, one core",
        "replicas": replicas,
        "images_per_s": images_in_all / (time.perf_counter() - start),
        "cpu_us_per_image": (processor_time() - processor) * 1e6 / images_in_all,
        "loss": loss,
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
