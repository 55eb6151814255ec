# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch's DistributedDataParallel, over gloo or nccl: torch_ddp.py MODEL RANK WORLD FOLDER cpu|cuda

Started by benchmarks/run_libtorch_ddp. The models and the protocol are those of benchmarks/libtorch_ddp: reads lines
"CONTENDER STEPS", answers with the microseconds of every step, and of ddp with the part of its communication that ran
behind backward, where PyTorch's logging data have it. Contenders: local and ddp.
"""
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(
            rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attention = ((q @ k.transpose(-1, -2)) * (1 / math.sqrt(width // self.heads))).masked_fill(
            mask, float("-inf")).softmax(-1)
        x = x + self.out((attention @ v).transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


GPTS = {"gpt": {"tokens": 128, "length": 128, "rows": 8, "width": 256, "layers": 4, "heads": 4},
        "gpt2": {"tokens": 50257, "length": 512, "rows": 8, "width": 768, "layers": 12, "heads": 12}}


class Gpt(nn.Module):
    def __init__(self, tokens, length, rows, width, layers, heads):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        # No buffers: gloo can't broadcast a bool one.
        self.mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        self.numbers = torch.arange(length)

    def forward(self, x):
        x = self.tokens(x) + self.positions(self.numbers)
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


def mlp(widths):
    layers = []
    for i in range(len(widths) - 1):
        layers.append(nn.Linear(widths[i], widths[i + 1]))
        if i < len(widths) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def make(name, rank, device):
    """model, x, y, loss, optimizer"""
    torch.manual_seed(0)
    gpt = GPTS.get(name)
    model = Gpt(**gpt) if gpt else {"tiny": lambda: nn.Linear(5, 2), "mlp": lambda: mlp([784, 1024, 1024, 10]),
                                    "big": lambda: mlp([1024] + 6 * [2048] + [1024])}[name]()
    if gpt:
        model.mask, model.numbers = model.mask.to(device), model.numbers.to(device)
    model.to(device)
    torch.manual_seed(1000 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if gpt:
        batch, tokens = (gpt["rows"], gpt["length"]), gpt["tokens"]
        x, y = torch.randint(tokens, batch), torch.randint(tokens, batch)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        return (model, x.to(device), y.to(device),
                lambda output, y: F.cross_entropy(output.view(-1, tokens), y.view(-1)), optimizer)
    x, y, loss = {
        "tiny": lambda: (torch.randn(30, 5), torch.randn(30, 2), F.mse_loss),
        "mlp": lambda: (torch.randn(64, 784), torch.randint(10, (64,)), F.cross_entropy),
        "big": lambda: (torch.randn(32, 1024), torch.randint(1024, (32,)), F.cross_entropy),
    }[name]()
    return model, x.to(device), y.to(device), loss, optimizer


def hidden(module):
    """Of the mean over the steps that PyTorch samples; empty if it has measured nothing."""
    data = module._get_ddp_logging_data()
    total = data.get("avg_backward_comm_time", 0)
    return f"hidden {data['avg_backward_compute_comm_overlap_time'] / total:.4f}" if total > 0 else ""


def main(name, rank, world, folder, device):
    rank, world = int(rank), int(world)
    torch.set_num_threads(1)
    if device == "cuda":
        device = f"cuda:{rank}"
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device == "cpu" else "nccl", init_method=f"file://{folder}/python", rank=rank, world_size=world)
    steps = {}
    for contender in "local", "ddp":
        model, x, y, loss, optimizer = make(name, rank, device)
        call = model if contender == "local" else nn.parallel.DistributedDataParallel(model)

        def step(call=call, x=x, y=y, loss=loss, optimizer=optimizer):
            optimizer.zero_grad()
            loss(call(x), y).backward()
            optimizer.step()
        steps[contender] = step, call
    print(torch.__version__, *steps, flush=True)
    for line in sys.stdin:
        contender, count = line.split()
        step, call = steps[contender]
        times = []
        dist.barrier()
        for _ in range(int(count)):
            begin = time.perf_counter()
            step()
            if device != "cpu":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        print(*(f"{1e6 * t:.2f}" for t in times), hidden(call) if contender == "ddp" else "", flush=True)
    os._exit(0)  # at the end of 1.13's process group a rank was seen to spin for good


if __name__ == "__main__":
    main(*sys.argv[1:])
