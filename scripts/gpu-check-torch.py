"""Images per second on a GPU with PyTorch: the models, the batches and the optimizers of
crates/training/distribute-models/examples/gpu_bench.rs. One JSON object a line."""

import json
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as error:
    print(f"SKIPPED: no PyTorch ({error})")
    sys.exit(0)

BATCHES, ROUNDS, STEPS = 8, 5, 100


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1600, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def resnet18():
    from torchvision.models import resnet18

    return resnet18(num_classes=10)


def measure(model, shape, size, steps, compiled=False, bf16=False):
    """The median time of a round of steps."""
    torch.manual_seed(42)
    model = model().cuda()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = nn.CrossEntropyLoss(reduction="sum")
    images = [torch.rand(size, *shape, device="cuda") for _ in range(BATCHES)]
    labels = [torch.arange(size, device="cuda") % 10 for _ in range(BATCHES)]
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        for step in range(steps):
            index = step % BATCHES
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                sum_of_losses = loss(forward(images[index]), labels[index])
            (sum_of_losses / size).backward()
            optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    # The first round chooses and compiles kernels.
    return sorted(times[1:])[ROUNDS // 2]


def main():
    if not torch.cuda.is_available():
        print("SKIPPED: PyTorch sees no GPU")
        return
    # As burn's kernels: f32 inputs, tf32 in tensor cores.
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    for size in (64, 256, 1024):
        for compiled in (False, True):
            name = "pytorch-compiled" if compiled else "pytorch"
            report(name, size, STEPS, cnn, (1, 28, 28), compiled=compiled)
    for bf16 in (False, True):
        name = "pytorch-bf16" if bf16 else "pytorch"
        report(name, 256, 20, resnet18, (3, 64, 64), bf16=bf16)


def report(name, size, steps, model, shape, **options):
    try:
        seconds = measure(model, shape, size, steps, **options)
    except Exception as error:  # torch.compile needs a C compiler and more
        print(f"SKIPPED: {name}: {str(error).splitlines()[0]}")
        return
    images = round(steps * size / seconds)
    print(json.dumps({"bench": f"gpu-{model.__name__}", "impl": name, "batch": size,
                      "images_per_s": images}), flush=True)


if __name__ == "__main__":
    main()
