#!/usr/bin/env python3
"""Images, tokens and visits a second of the programs `resnet`, `gpt` and `recommender`.

    python bench/networks/throughput.py FOLDER --data-dir FASHION_MNIST [--rounds 5]

FOLDER has the programs: target/release after
`cargo build --release -p examples --bin resnet --bin gpt --bin recommender`. In each round every
program runs under every strategy in turn, once for a few steps and once for more; what the rest of
a run takes (start, compilation, validation) is in both. One line of JSON for each network and
strategy: the median of the rounds' rates, and the least and the largest.
"""

import argparse
import gzip
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

STRATEGIES = {
    "one device": ["--strategy", "one-device"],
    "mirrored, 2 replicas": ["--strategy", "mirrored", "--replicas", "2"],
    "compiled, 1 replica": ["--strategy", "tpu", "--replicas", "1"],
    "compiled, 2 replicas": ["--strategy", "tpu", "--replicas", "2"],
}
LIMIT_S = 600


def programs(data):
    """Name, what is counted, the command for some steps, counts of a step, few and many steps."""
    resnet = ["resnet", "--data-dir", data, "--epochs", "1", "--batch", "128"]
    return [
        ("ResNet, narrow, 28 x 28", "images/s", lambda n: resnet + ["--steps", n], 128, 10, 50),
        ("ResNet-18, 28 x 28", "images/s",
         lambda n: resnet[:-1] + ["32", "--network", "resnet-18", "--steps", n], 32, 2, 8),
        ("GPT, 3.2 M, windows of 64", "tokens/s",
         lambda n: ["gpt", "--write", "0", "--steps", n], 16 * 64, 5, 35),
        ("two towers", "visits/s",
         lambda n: ["recommender", "--epochs", "1", "--steps-per-epoch", n], 256, 100, 600),
    ]


def with_few_test_images(data, folder):
    """The same data with 256 test images, since each run validates."""
    for file in pathlib.Path(data).glob("train-*"):
        (folder / file.name).symlink_to(file.resolve())
    for name, header, size in [("t10k-images-idx3-ubyte", 16, 784), ("t10k-labels-idx1-ubyte", 8, 1)]:
        [file] = pathlib.Path(data).glob(name + "*")
        raw = file.read_bytes()
        raw = gzip.decompress(raw) if file.suffix == ".gz" else raw
        count = 256
        short = raw[:4] + count.to_bytes(4, "big") + raw[8:header + count * size]
        (folder / name).write_bytes(short)
    return str(folder)


def seconds(folder, command, options):
    start = time.monotonic()
    subprocess.run(
        [folder / command[0], *command[1:], *options], check=True, timeout=LIMIT_S,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rates = {}
    scratch = tempfile.TemporaryDirectory()
    data = with_few_test_images(options.data_dir, pathlib.Path(scratch.name))
    for _ in range(options.rounds):
        for network, unit, command, counts, few, many in programs(data):
            for strategy, flags in STRATEGIES.items():
                took = [seconds(options.folder, command(str(n)), flags) for n in (few, many)]
                rate = (many - few) * counts / (took[1] - took[0])
                rates.setdefault((network, unit, strategy), []).append(rate)
    for (network, unit, strategy), all_rounds in rates.items():
        print(json.dumps({
            "network": network, "strategy": strategy, "unit": unit,
            "median": round(statistics.median(all_rounds)),
            "least": round(min(all_rounds)), "most": round(max(all_rounds))}))


if __name__ == "__main__":
    main()
