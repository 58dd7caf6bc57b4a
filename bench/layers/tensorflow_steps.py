"""What the example train_steps of distribute-keras does, in TensorFlow on one core.

    python tensorflow_steps.py MODEL.keras BATCH EXTENT... [--jit]

A custom loop in a `tf.function`, with `--jit` one that XLA compiles. Prints the loss of the first
step, then for each line of its input, a number of seconds, the examples per second.
"""

import os
import sys
import time

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
CLASSES = 10


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--jit"]
    path, batch, *extents = arguments[0], *map(int, arguments[1:])
    model = tf.keras.models.load_model(path)
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    count = batch * int(np.prod(extents))
    numbers = (np.arange(count, dtype=np.uint32) * np.uint32(2654435761)).astype(np.float64)
    values = (numbers / (2**32 - 1)).astype(np.float32) - np.float32(0.5)
    x = tf.constant(values.reshape([batch, *extents]))
    labels = tf.constant(np.arange(batch) % CLASSES)

    @tf.function(jit_compile="--jit" in sys.argv)
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    print(float(step()), flush=True)
    for line in sys.stdin:
        seconds, start, steps = float(line), time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            step().numpy()
            steps += 1
        print(steps * batch / (time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main()
