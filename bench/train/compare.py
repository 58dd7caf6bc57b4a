"""Training throughput beside PyTorch and TensorFlow on CPUs: the table and picture of
docs/performance.md.

    cargo build --release -p distribute-cli
    python bench/train/compare.py run --program target/release/distribute-cli \\
        --torch PYTHON_WITH_TORCH --tensorflow PYTHON_WITH_TENSORFLOW > bench/train/two-cores.jsonl
    python bench/train/compare.py table bench/train/two-cores.jsonl
    python bench/train/compare.py picture bench/train/two-cores.jsonl > docs/throughput.svg

The programs take turns, in another order each round, so that a drifting machine moves all of them;
ratios are those within a round. `other` is the share of the machine that other processes took.
A framework whose Python is not given is SKIPPED.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
REFERENCE = ("PyTorch, DDP over gloo", 2)


def programs(options):
    seconds = str(options.seconds)
    ours = [options.program, "bench", "train", "--replicas", "1,2", "--rounds", "1"]
    found = {"ours": ours + ["--seconds", seconds, "--output", "json"]}
    for name, python, modes in [
        ("pytorch", options.torch, {"single": [], "ddp": []}),
        ("tensorflow", options.tensorflow, {"single": ["taskset", "-c", "0"], "mirrored": []}),
    ]:
        if python is None:
            print(f"{name}: SKIPPED, no --{'torch' if name == 'pytorch' else name}", file=sys.stderr)
            continue
        for mode, before in modes.items():
            loop = str(HERE / f"{name}_loop.py")
            found[f"{name} {mode}"] = [*before, python, loop, mode, seconds]
    return found


def busy_ticks():
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), sum(ticks) - ticks[3] - ticks[4]


def own_ticks():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) * os.sysconf("SC_CLK_TCK")


def run(options):
    found = programs(options)
    names = list(found)
    for turn in range(options.rounds):
        random.shuffle(names)
        for name in names:
            (all_before, busy_before), own_before = busy_ticks(), own_ticks()
            output = subprocess.run(
                found[name], stdout=subprocess.PIPE, text=True, timeout=300, check=True
            ).stdout
            (all_after, busy_after), own = busy_ticks(), own_ticks() - own_before
            other = max(0.0, (busy_after - busy_before - own) / (all_after - all_before))
            for line in output.splitlines():
                if line.startswith("{"):
                    print(json.dumps(json.loads(line) | {"round": turn, "other": round(other, 2)}))
        sys.stdout.flush()


def rows(path):
    """Of each implementation, its records by round."""
    found = {}
    for line in Path(path).read_text().splitlines():
        record = json.loads(line)
        found.setdefault((record["impl"], record["replicas"]), {})[record["round"]] = record
    return found


def table(options):
    found = rows(options.records)
    reference = found.get(REFERENCE, {})
    print("| program | replicas | images/s | to PyTorch's DDP | CPU us per image |")
    print("|---|---|---|---|---|")
    for (impl, replicas), records in found.items():
        rate = median(record["images_per_s"] for record in records.values())
        cost = median(record["cpu_us_per_image"] for record in records.values())
        ratios = [
            records[turn]["images_per_s"] / reference[turn]["images_per_s"]
            for turn in records.keys() & reference.keys()
        ]
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        print(f"| {impl} | {replicas} | {rate:.0f} | {ratio} | {cost:.0f} |")


def picture(options):
    found = rows(options.records)
    rates = {
        key: median(record["images_per_s"] for record in records.values())
        for key, records in found.items()
    }
    rounds = max(len(records) for records in found.values())
    widest, height, left, width = max(rates.values()), 24, 210, 420
    bottom = 44 + height * len(rates)
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {bottom + 40}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="720" height="{bottom + 40}" fill="white"/>'
    )
    print(
        '<text x="20" y="24" font-size="15" font-weight="bold">'
        "Training throughput on CPUs, mnist-cnn, batch 64 per replica (images/s)</text>"
    )
    for index, ((impl, replicas), rate) in enumerate(sorted(rates.items(), key=lambda row: row[1])):
        top = 40 + height * index
        others = impl.startswith(("PyTorch", "TensorFlow"))
        color = "#999" if others else "#0072b2" if replicas == 1 else "#d55e00"
        label = impl if others else f"{impl}, {replicas} replica{'s' * (replicas > 1)}"
        length = rate / widest * width
        print(
            f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{label}</text>'
            f'<rect x="{left}" y="{top}" width="{length:.1f}" height="{height - 6}" fill="{color}"/>'
            f'<text x="{left + length + 6:.1f}" y="{top + 14}">{rate:.0f}</text>'
        )
    print(
        f'<text x="360" y="{bottom + 24}" text-anchor="middle">'
        f"medians of {rounds} interleaved rounds, 2 cores</text></svg>"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run", help="measure; JSON lines on standard output")
    command.add_argument("--program", required=True, help="a release build of distribute-cli")
    command.add_argument("--torch", help="a Python that imports torch")
    command.add_argument("--tensorflow", help="a Python that imports tensorflow")
    command.add_argument("--rounds", type=int, default=7)
    command.add_argument("--seconds", type=float, default=2.0)
    command.set_defaults(call=run)
    for name, call in [("table", table), ("picture", picture)]:
        command = commands.add_parser(name)
        command.add_argument("records", help="what `run` printed")
        command.set_defaults(call=call)
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
