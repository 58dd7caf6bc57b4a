"""The networks of distribute-models in PyTorch: one JSON line with the loss of each step.

    python pytorch_loop.py resnet-narrow|resnet-18|gpt|two-towers STEPS

One process, one thread, f32. Initial weights and batches follow the rules of
crates/training/distribute-models/tests/all/comparison.rs. Parameters have the layout of burn: a matrix is
[inputs, outputs]. Adam is Keras', whose epsilon is added before the bias is corrected.
"""

import gzip
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "crates/training/distribute-models/src"


def mix(state):
    """SplitMix64's output for each state."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return (state >> np.uint64(40)).astype(np.float64) / (1 << 24)


class Parameters(dict):
    """Makes each parameter by the rule, when it is first asked for by its path."""

    def weight(self, path, *shape):
        if path not in self:
            seed = 0xCBF29CE484222325
            for byte in path.encode():
                seed = ((seed ^ byte) * 0x100000001B3) % 2**64
            count = np.arange(1, math.prod(shape) + 1, dtype=np.uint64)
            unit = mix(np.uint64(seed) + count * np.uint64(0x9E3779B97F4A7C15))
            bound = math.sqrt(6 / math.prod(shape[1:]) if len(shape) == 4 else 1 / shape[0])
            values = (bound * (2 * unit - 1)).astype(np.float32).reshape(shape)
            self[path] = torch.tensor(values, requires_grad=True)
        return self[path]

    def constant(self, path, size, value):
        if path not in self:
            self[path] = torch.full([size], float(value), requires_grad=True)
        return self[path]

    def linear(self, path, x, outputs, bias=True):
        weight = self.weight(f"{path}.weight", x.shape[-1], outputs)
        return F.linear(x, weight.T, self.constant(f"{path}.bias", outputs, 0) if bias else None)

    def layer_norm(self, path, x):
        size = x.shape[-1]
        gamma, beta = self.constant(f"{path}.gamma", size, 1), self.constant(f"{path}.beta", size, 0)
        return F.layer_norm(x, [size], gamma, beta, eps=1e-5)

    def conv_norm(self, path, x, filters, size, stride):
        weight = self.weight(f"{path}.conv.weight", filters, x.shape[1], size, size)
        gamma = self.constant(f"{path}.norm.gamma", filters, 0 if path.endswith("second") else 1)
        beta = self.constant(f"{path}.norm.beta", filters, 0)
        x = F.conv2d(x, weight, stride=stride, padding=size // 2)
        return F.batch_norm(x, None, None, gamma, beta, training=True, eps=1e-5)


def idx(name):
    data = gzip.open(ROOT / f"crates/training/distribute-readers/src/data/digits-{name}-ubyte.gz").read()
    sizes = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(sizes)


def resnet(p, widths, blocks, stem, channels, factor, edge):
    images, labels = idx("images-idx3"), idx("labels-idx1")

    def loss(step):
        at = np.arange(16 * step, 16 * step + 16) % len(images)
        x = (images[at] / 16).astype(np.float32).repeat(factor, 1).repeat(factor, 2)
        x = np.pad(x, ((0, 0), (edge, edge), (edge, edge)))[:, None].repeat(channels, 1)
        size, stride, pool = stem
        x = F.relu(p.conv_norm("stem", torch.tensor(x), widths[0], size, stride))
        if pool:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage, width in enumerate(widths):
            for block in range(blocks):
                path = f"blocks.{stage * blocks + block}"
                stride = 2 if stage > 0 and block == 0 else 1
                around = x
                if stride > 1 or x.shape[1] != width:
                    around = p.conv_norm(f"{path}.shortcut", x, width, 1, stride)
                x = F.relu(p.conv_norm(f"{path}.first", x, width, 3, stride))
                x = F.relu(p.conv_norm(f"{path}.second", x, width, 3, 1) + around)
        logits = p.linear("output", x.mean([2, 3]), 10)
        return F.cross_entropy(logits, torch.tensor(labels[at].astype(np.int64)))

    return loss


def gpt(p, length=64, width=256, heads=4, layers=4):
    text = (MODELS / "data/alice.txt").read_text()
    alphabet = sorted(set(text))
    tokens = torch.tensor([alphabet.index(character) for character in text])
    windows = (len(text) * 9 // 10 - 1) // length

    def layer(path, x):
        batch = x.shape[0]
        normed = p.layer_norm(f"{path}.norm_2", x)
        parts = [p.linear(f"{path}.mha.{name}", normed, width) for name in ("query", "key", "value")]
        parts = [part.view(batch, length, heads, width // heads).transpose(1, 2) for part in parts]
        seen = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + p.linear(f"{path}.mha.output", seen.transpose(1, 2).reshape(x.shape), width)
        hidden = F.gelu(p.linear(f"{path}.pwff.linear_inner", p.layer_norm(f"{path}.norm_1", x), 4 * width))
        return x + p.linear(f"{path}.pwff.linear_outer", hidden, width)

    def loss(step):
        at = [(8 * step + i) % windows * length for i in range(8)]
        now, after = (torch.stack([tokens[i + by : i + by + length] for i in at]) for by in (0, 1))
        x = F.embedding(now, p.weight("tokens.weight", len(alphabet), width))
        x = x + p.weight("positions.weight", length, width)
        for i in range(layers):
            x = layer(f"layers.layers.{i}", x)
        logits = p.linear("output", p.layer_norm("norm", x), len(alphabet), bias=False)
        return F.cross_entropy(logits.flatten(0, 1), after.flatten())

    return loss


def hashed(seed, number):
    return mix(number.astype(np.uint64) + np.uint64(1) + np.uint64(seed << 32))


def two_towers(p, users=200, items=100, width=16):
    def tower(path, rows, feature):
        x = torch.cat([rows, torch.tensor(feature.astype(np.float32))[:, None]], 1)
        return p.linear(f"{path}.output", F.relu(p.linear(f"{path}.hidden", x, 64)), 16)

    def loss(step):
        number = np.arange(64 * step, 64 * step + 64)
        user = (hashed(1, number) * users).astype(np.int64)
        item = (hashed(2, number) * items).astype(np.int64)
        age, price = 2 * hashed(3, user) - 1, 2 * hashed(4, item) - 1
        fit = age * price + sum(
            (2 * hashed(5 + t, user) - 1) * (2 * hashed(9 + t, item) - 1) for t in range(4)
        )
        left = F.embedding(torch.tensor(user), p.weight("users.weight", users, width))
        right = F.embedding(torch.tensor(item), p.weight("items.weight", items, width))
        logits = (tower("towers.user", left, age) * tower("towers.item", right, price)).sum(1)
        return F.binary_cross_entropy_with_logits(logits, torch.tensor(fit > 0).float())

    return loss


def main():
    torch.set_num_threads(1)
    name, steps = sys.argv[1], int(sys.argv[2])
    p = Parameters()
    if name == "resnet-narrow":
        loss, rate = resnet(p, [32, 64, 128], 1, (3, 2, False), 1, 3, 2), 0.006
    elif name == "resnet-18":
        loss, rate = resnet(p, [64, 128, 256, 512], 2, (7, 2, True), 3, 5, 0), 0.0003
    else:
        loss, rate = {"gpt": (gpt(p), 3e-4), "two-towers": (two_towers(p), 0.003)}[name]
    loss(0)  # Makes the parameters.
    if name.startswith("resnet"):
        optimizer = torch.optim.SGD(p.values(), lr=rate, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(p.values(), lr=rate)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["eps"] = 1e-7 / math.sqrt(1 - 0.999 ** (step + 1))
        value = loss(step)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
