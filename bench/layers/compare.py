"""Training of small models from Keras files beside TensorFlow, on one core: a table.

    cargo build --release -p distribute-keras --features bench --example train_steps
    PYTHON_WITH_TENSORFLOW bench/layers/compare.py target/release/examples/train_steps

The program keeps freed memory, as distribute-cli does. Each model is trained by our program and by TensorFlow as a `tf.function`, with XLA and without, from
the same weights and on the same batch. All take turns on one core for some rounds; a ratio is the
one within a round. It fails if the losses of the first step differ.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
CLASSES = 10
TENSORFLOW, XLA = "TensorFlow", "TensorFlow, XLA"


def models():
    """Name, shape of an example, size of the batch, layers."""
    from keras import layers

    recurrent = {"LSTM": layers.LSTM, "GRU": layers.GRU, "SimpleRNN": layers.SimpleRNN}
    for name, layer in recurrent.items():
        for features, batch in [(32, 32), (64, 64)]:
            yield f"{name}(128)", (100, features), batch, [layer(128)]
    both = [layers.Bidirectional(layers.LSTM(64, return_sequences=True)), layers.LSTM(64)]
    yield "Bidirectional(LSTM(64)), LSTM(64)", (50, 32), 32, both
    for name, shape, options in [
        ("Conv1D(32, 5)", (128, 4), [dict(filters=32, kernel_size=5)]),
        ("Conv1D(64, 5), Conv1D(64, 5)", (128, 32), [dict(filters=64, kernel_size=5)] * 2),
        ("Conv1D(256, 3)", (64, 256), [dict(filters=256, kernel_size=3)]),
        (
            "Conv1D(64, 2), causal, dilated 1, 2, 4, 8",
            (128, 32),
            [dict(filters=64, kernel_size=2, padding="causal", dilation_rate=2**i) for i in range(4)],
        ),
    ]:
        convolutions = [layers.Conv1D(activation="relu", **each) for each in options]
        yield name, shape, 32, [*convolutions, layers.GlobalAveragePooling1D()]


def saved(folder):
    import keras

    for index, (name, shape, batch, layers) in enumerate(models()):
        keras.utils.set_random_seed(index)
        model = keras.Sequential([keras.Input(shape), *layers, keras.layers.Dense(CLASSES)])
        path = f"{folder}/{index}.keras"
        model.save(path)
        yield name, path, [str(number) for number in (batch, *shape)]


# What distribute-cli asks of its allocator (distribute-cli/src/allocator.rs).
KEEP_FREED_PAGES = {
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TOP_PAD_": "67108864",
}


class Program:
    """A program that trains for as many seconds as a line of its input says."""

    def __init__(self, command, environment={}):
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", *command],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.loss = float(self.process.stdout.readline())

    def rate(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def compare(options, path, numbers):
    """Of each program, its rates by round."""
    tensorflow = [sys.executable, str(HERE / "tensorflow_steps.py"), path, *numbers]
    ours = Program([options.program, path, *numbers], KEEP_FREED_PAGES)
    programs = {"ours": ours, TENSORFLOW: Program(tensorflow)}
    if options.xla:
        programs[XLA] = Program([*tensorflow, "--jit"])
    losses = [program.loss for program in programs.values()]
    if max(losses) - min(losses) > 1e-4:
        sys.exit(f"{path}: the losses of the first step are {losses}")
    rates = {name: [] for name in programs}
    for turn in range(options.rounds + 1):
        for name in random.sample(list(programs), len(programs)):
            rate = programs[name].rate(options.seconds)
            # The first round warms up.
            if turn > 0:
                rates[name].append(rate)
    for program in programs.values():
        program.end()
    return rates


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program")
    parser.add_argument("--only", default="", help="models with this in their name")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--xla", action="store_true", help="with TensorFlow's compiler too")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    print("| model | input | batch | ours, examples/s | TensorFlow | ours / TensorFlow |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, path, numbers in saved(folder):
            if options.only not in name:
                continue
            rates = compare(options, path, numbers)
            ours, theirs = rates["ours"], rates[TENSORFLOW]
            ratios = [one / other for one, other in zip(ours, theirs)]
            batch, *shape = numbers
            line = (
                f"| {name} | {' x '.join(shape)} | {batch} | {median(ours):.0f}"
                f" | {median(theirs):.0f}"
                f" | {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
            )
            if options.xla:
                ratios = [one / other for one, other in zip(ours, rates[XLA])]
                line += f" {median(rates[XLA]):.0f}, {median(ratios):.2f} |"
            print(line, flush=True)


if __name__ == "__main__":
    main()
