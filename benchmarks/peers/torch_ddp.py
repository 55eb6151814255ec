# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch's DistributedDataParallel, over gloo or nccl: torch_ddp.py MODEL RANK WORLD FOLDER cpu|cuda

Started by benchmarks/run_libtorch_ddp. The models and the protocol are those of benchmarks/libtorch_ddp: reads lines
"CONTENDER STEPS", answers with the microseconds of every step, and of ddp with the part of its communication that ran
behind backward, where PyTorch's logging data have it. Contenders: local, ddp, and with several ranks zero: ddp with its
optimizer in ZeroRedundancyOptimizer.
"""
import contextlib
import functools
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, q, k, v, mask):
        if mask is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return ((q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.size(-1)))).masked_fill(mask, float("-inf")).softmax(-1) @ v

    def forward(self, x, mask):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(
            rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v, mask).transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


GPTS = {"gpt": {"tokens": 128, "length": 128, "rows": 8, "width": 256, "layers": 4, "heads": 4},
        "gpt2": {"tokens": 50257, "length": 512, "rows": 8, "width": 768, "layers": 12, "heads": 12}}
GPTS["gpt2-bf16"] = {**GPTS["gpt2"], "tokens": 50304, "length": 1024, "rows": 16, "bf16": True}
GPTS["gpt2-bf16-8x512"] = {**GPTS["gpt2-bf16"], "length": 512, "rows": 8}
GPTS["gpt2-tiny-bf16"] = {"tokens": 256, "length": 64, "rows": 4, "width": 64, "layers": 2, "heads": 2, "bf16": True}
# As FusedAdamW, which steps as torch::optim::AdamW does where LibTorch has no fused operator.
HAS_FUSED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)


class Gpt(nn.Module):
    def __init__(self, tokens, length, rows, width, layers, heads, bf16=False):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        # No buffers: gloo can't broadcast a bool one.
        self.mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        self.numbers = torch.arange(length)
        if bf16:
            self.head.weight = self.tokens.weight
            self.mask = None if hasattr(F, "scaled_dot_product_attention") else self.mask

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
                                    "big": lambda: mlp([1024] + 6 * [2048] + [1024])}[name.removesuffix("-adamw")]()
    if gpt:
        model.mask, model.numbers = None if model.mask is None else model.mask.to(device), model.numbers.to(device)
    model.to(device)
    torch.manual_seed(1000 + rank)
    optimizer = (torch.optim.AdamW(model.parameters(), lr=1e-4) if name.endswith("-adamw") else
                 torch.optim.SGD(model.parameters(), lr=1e-3))
    if gpt:
        batch, tokens = (gpt["rows"], gpt["length"]), gpt["tokens"]
        x, y = torch.randint(tokens, batch), torch.randint(tokens, batch)
        fused = {"fused": True} if "bf16" in gpt and HAS_FUSED else {}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused)
        return (model, x.to(device), y.to(device),
                lambda output, y: F.cross_entropy(output.view(-1, tokens), y.view(-1)), optimizer)
    x, y, loss = {
        "tiny": lambda: (torch.randn(30, 5), torch.randn(30, 2), F.mse_loss),
        "mlp": lambda: (torch.randn(64, 784), torch.randint(10, (64,)), F.cross_entropy),
        "big": lambda: (torch.randn(32, 1024), torch.randint(1024, (32,)), F.cross_entropy),
    }[name.removesuffix("-adamw")]()
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
    steps, bf16 = {}, GPTS.get(name, {}).get("bf16", False)
    autocast = functools.partial(torch.autocast, torch.device(device).type, torch.bfloat16) if bf16 else contextlib.nullcontext
    to_none = {"set_to_none": True} if bf16 else {}
    for contender in ("local", "ddp", "zero") if world > 1 else ("local", "ddp"):
        model, x, y, loss, optimizer = make(name, rank, device)
        call = model if contender == "local" else nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=bf16)
        if contender == "zero":
            kind, settings = type(optimizer), {"lr": optimizer.defaults["lr"]}
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, **settings)

        def step(call=call, x=x, y=y, loss=loss, optimizer=optimizer):
            optimizer.zero_grad(**to_none)
            with autocast():
                value = loss(call(x), y)
            value.backward()
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
