"""images/s of PyTorch on the CNN of `distribute-cli bench train`: one JSON line.

    python pytorch_loop.py single|ddp SECONDS

`single` is one process with one thread, `ddp` DistributedDataParallel over gloo: two processes of
one thread each. 64 images per process and step, synthetic; Adam with Keras' epsilon.
"""

import json
import os
import resource
import sys
import time

import torch
from torch import nn

BATCH = 64


def processor_time():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(rank, world, port, seconds):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1600, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    network = model
    if world > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
        )
        network = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-7)
    images = torch.rand(16, BATCH, 1, 28, 28)
    labels = torch.randint(0, 10, (16, BATCH))

    def step(index):
        output = network(images[index % 16])
        loss = nn.functional.cross_entropy(output, labels[index % 16])
        loss = loss + 1e-5 * model[0].weight.square().sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    for index in range(6):
        step(index)
    start, processor, steps, ended = time.perf_counter(), processor_time(), 0, False
    while not ended:
        for _ in range(10):
            loss = step(steps)
            steps += 1
        loss.item()
        ended = time.perf_counter() - start > seconds
        if world > 1:
            # All processes end after the same step: rank 0 decides.
            flag = torch.tensor([float(ended)])
            torch.distributed.broadcast(flag, 0)
            ended = flag.item() > 0
    if rank == 0:
        images_in_all = steps * BATCH * world
        print(json.dumps({
            "impl": "PyTorch, DDP over gloo" if world > 1 else "PyTorch, one thread",
            "replicas": world,
            "images_per_s": images_in_all / (time.perf_counter() - start),
            "cpu_us_per_image": (processor_time() - processor) * world * 1e6 / images_in_all,
            "loss": loss.item(),
        }), flush=True)  # fmt: skip


def main():
    mode, seconds = sys.argv[1], float(sys.argv[2])
    if mode == "single":
        return run(0, 1, None, seconds)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(
        run, args=(2, port, seconds), nprocs=2, start_method="spawn"
    )


if __name__ == "__main__":
    main()
