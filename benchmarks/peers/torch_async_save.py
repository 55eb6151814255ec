#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_async_save.py FOLDER: bench_snapshot's training and its snapshots, by PyTorch's torch.distributed.checkpoint.

The model, the rows, the optimizer and the steps are those of benchmarks/snapshot/main.cc, one process per rank under
PyTorch's DistributedDataParallel over gloo. For each line "without" or "with" on stdin, as benchmarks/run_snapshot
writes them, rank 0 makes a block of steps and prints "STEP_SECONDS PAUSE_SECONDS": with, its first step is followed by
async_save, and the pause is what the call takes; what is still being written when the block ends is waited for outside
of it, as there.
"""
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

WIDTH, ROWS, LAYERS, STEPS = 1024, 512, 6, 20


def main():
    folder = sys.argv[1]
    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = torch.full((ROWS, WIDTH), 0.01)

    def step():
        torch.nn.functional.mse_loss(ddp(rows), rows).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    saved = 0
    writers = dist.new_group()  # async_save's thread has collectives of its own: on the training's group the two would meet
    order = torch.zeros(1, dtype=torch.int64)  # 0: end, 1: a block without, 2: one with
    while True:
        if rank == 0:
            line = sys.stdin.readline().strip()
            order[0] = {"": 0, "without": 1, "with": 2}[line]
        dist.broadcast(order, 0)
        if order.item() == 0:
            break
        future, pause = None, 0.0
        dist.barrier()
        begin = time.perf_counter()
        for i in range(STEPS):
            step()
            if order.item() == 1 or i > 0:
                continue
            before = time.perf_counter()
            weights, state = get_state_dict(model, optimizer)
            future = dcp.async_save({"model": weights, "optimizer": state},
                                    checkpoint_id=os.path.join(folder, f"step-{saved}"), process_group=writers)
            pause = time.perf_counter() - before
        seconds = (time.perf_counter() - begin) / STEPS
        if future is not None:
            future.result()
            if rank == 0 and saved > 0:
                shutil.rmtree(os.path.join(folder, f"step-{saved - 1}"))
            saved += 1
        if rank == 0:
            print(f"{seconds} {pause}", flush=True)
    dist.destroy_process_group()
    os._exit(0)  # 2.15.0 may abort when Python ends


if __name__ == "__main__":
    main()
