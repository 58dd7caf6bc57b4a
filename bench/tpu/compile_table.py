"""Makes the table of compiled programs in docs/tpu.md: every built-in model against JAX.

    cargo build -p distribute-cli
    distribute-tpu-xla/pjrt-cpu/fetch-libtpu
    python bench/tpu/compile_table.py --program target/debug/distribute-cli --precision highest

Both sides compile the training step of a model for a topology that is not there, with the same
libtpu, 64 examples per replica and the same precision of matrix products. JAX (`pip install
jax==0.10.2`) is run where it is installed; its columns say SKIPPED otherwise. `CPU s` is processor
time, `kcycles` the sum of `estimated_cycles` in the optimized program. Ends with 1 where a program
took more than 120 s of processor time (60 s on two cores), or where bytes or cycles are more than
1.1 of JAX's; JAX's own processor time is limited by --jax-limit. Cycles and bytes are the same in every
run; times are processor time because other work on the machine changes it least.
"""

import argparse
import gzip
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

DATASETS = {"mlp": "digits", "digits-cnn": "digits", "mnist-cnn": "mnist", "text": "csv"}
BATCH = 64
CPU_LIMIT, RATIO_LIMIT, OWN_LIMIT = 120.0, 1.1, 600
LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
}


def libtpu():
    """The library that both sides compile with."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cached = sorted(cache.glob("distribute/libtpu/*/libtpu/libtpu.so"))
    found = os.environ.get("PJRT_PLUGIN_LIBRARY_PATH") or (cached and str(cached[-1]))
    return found or sys.exit("no libtpu: run distribute-tpu-xla/pjrt-cpu/fetch-libtpu")


def write_data(folder):
    """Files of the right shapes; what is in them does not matter to a compiler."""
    for name, count in [("train", 20480), ("t10k", 64)]:
        images = struct.pack(">IIII", 2051, count, 28, 28) + bytes(count * 784)
        labels = struct.pack(">II", 2049, count) + bytes(i % 10 for i in range(count))
        for kind, content in [("images-idx3", images), ("labels-idx1", labels)]:
            path = folder / f"{name}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(content, 1))
    words = lambda row: " ".join(f"w{(row * 64 + i) % 1998}" for i in range(64))
    rows = [f"{words(row)},{row % 2}" for row in range(20480)]
    (folder / "texts.csv").write_text("\n".join(["text,label"] + rows) + "\n")


def measured(command, limit):
    """The last JSON line of a command, and its processor time in seconds; nothing if a process of it
    took more than `limit` seconds of processor time, or twenty times that by the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    limited = lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=20 * limit,
            env={**os.environ, **LIBTPU, "PJRT_PLUGIN_LIBRARY_PATH": libtpu()},
            check=False,
            preexec_fn=limited,
        )
    except subprocess.TimeoutExpired:
        return None, None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return None, None
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stdout}{run.stderr}")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return lines[-1], seconds


def ours(arguments, model, topology, folder):
    data = {"csv": f"csv:{folder}/texts.csv"}.get(DATASETS[model], DATASETS[model])
    command = [arguments.program, "train", "--strategy", "tpu", "--compile-only", "--output", "json"]
    command += ["--topology", topology, "--model", model, "--dataset", data]
    command += ["--data-dir", str(folder)] if data == "mnist" else []
    command += ["--batch-size", str(BATCH), "--precision-of-matmul", arguments.precision]
    report, seconds = measured(command, OWN_LIMIT)
    if report is None:
        sys.exit(f"{' '.join(command)}: more than {OWN_LIMIT} s of processor time")
    return {
        "cpu_s": seconds,
        "mb": report["bytes_accessed"] / 1e6,
        "kcycles": report["estimated_cycles"] / 1e3,
    }


def jax(arguments, model, topology):
    command = [arguments.python, __file__, "--jax-one", model, "--topologies", topology]
    report, seconds = measured(command + ["--precision", arguments.precision], arguments.jax_limit)
    return report and {**report, "cpu_s": seconds}


def compile_with_jax(model, topology, precision):
    """In a process of its own: compiles the step of `jax_step.py` and prints what it costs."""
    os.environ["TPU_LIBRARY_PATH"] = libtpu()
    import jax
    import jax_step
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    jax_step.HIGHEST = getattr(jax.lax.Precision, precision.upper())
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    jax.devices, replicas = (lambda: devices), len(devices)
    network = jax_step.MODELS[model]
    run, _ = jax_step.compiled(network, replicas, BATCH, "NHWC")
    mesh = Mesh(np.array(devices), ("replicas",))
    shaped = lambda x, spec: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=NamedSharding(mesh, spec)
    )
    x, y = network.examples(np.random.default_rng(1), BATCH * replicas, "NHWC")
    params = jax.eval_shape(
        lambda: network.parameters(jax.random.split(jax.random.key(0), 4), "NHWC")
    )
    state = jax.tree_util.tree_map(lambda leaf: shaped(leaf, P()), (params, params, params))
    batch = [shaped(x, P("replicas")), shaped(y, P("replicas"))]
    program = run.lower(*[state, *batch, shaped(np.float32(1e-3), P())]).compile()
    costs = program.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    cycles = re.findall(r'"estimated_cycles":"(\d+)"', program.as_text())
    kcycles = sum(map(int, cycles)) / 1e3
    print(json.dumps({"mb": costs["bytes accessed"] / 1e6, "kcycles": kcycles}))


def has_jax(python):
    found = subprocess.run([python, "-c", "import jax"], capture_output=True, check=False)
    return found.returncode == 0


def row(model, topology, mine, theirs, missing):
    cells = [model, topology] + [f"{mine[key]:.1f}" for key in ("cpu_s", "mb", "kcycles")]
    if theirs is None:
        return cells + [missing] * 3, []
    cells += [f"{theirs[key]:.1f}" for key in ("cpu_s", "mb", "kcycles")]
    ratios = {key: mine[key] / theirs[key] for key in ("mb", "kcycles")}
    return cells, [f"{key} {r:.2f} of JAX's" for key, r in ratios.items() if r > RATIO_LIMIT]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="target/debug/distribute-cli")
    parser.add_argument("--python", default=sys.executable, help="the Python that has JAX")
    parser.add_argument("--models", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    topologies = ["v5e:2x4", "v4:2x2x2", "v5p:2x2x2", "v6e:2x4"]
    parser.add_argument("--topologies", nargs="+", default=topologies)
    parser.add_argument("--precision", default="default", choices=["default", "high", "highest"])
    parser.add_argument("--jax-limit", type=int, default=300, help="CPU s for JAX's compiler")
    parser.add_argument("--jax-one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.jax_one:
        return compile_with_jax(arguments.jax_one, arguments.topologies[0], arguments.precision)
    with_jax = has_jax(arguments.python)
    if not with_jax:
        print("SKIPPED: JAX is not installed (pip install jax==0.10.2); --python names another one")
    print("| model | topology | CPU s | MB | kcycles | JAX: CPU s | MB | kcycles |")
    print("|---|---|---|---|---|---|---|---|")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        for model in arguments.models:
            for topology in arguments.topologies:
                mine = ours(arguments, model, topology, Path(folder))
                theirs = jax(arguments, model, topology) if with_jax else None
                missing = f"> {arguments.jax_limit} s" if with_jax else "SKIPPED"
                cells, wrong = row(model, topology, mine, theirs, missing)
                wrong += ["too slow to compile"] if mine["cpu_s"] > CPU_LIMIT else []
                print(f"| {' | '.join(cells)} |", flush=True)
                failed += [f"{model} for {topology}: {problem}" for problem in wrong]
    for problem in failed:
        print(problem, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
