# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training as one finds it everywhere: nothing in it knows of lockstep.

Prints the SHA-256 of the weights after 20 steps. ddp.py [--fail-rank R]
"""
import argparse
import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--fail-rank", type=int, default=-1, help="this rank exits with code 7 after 5 steps")
arguments = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(7)  # the same data and the same first weights on every rank
x, y = torch.randn(20, 16, 8), torch.randn(20, 16, 2)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
first = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(20):
    if step == 5 and rank == arguments.fail_rank:
        print(f"rank {rank} fails as it was told", file=sys.stderr, flush=True)
        os._exit(7)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(ddp(x[step, rank::world]), y[step, rank::world]).backward()
    optimizer.step()

weights = torch.cat([p.detach().flatten() for p in model.parameters()])
assert (weights - first).abs().max() > 1e-3, "nothing was learned"
dist.barrier()
where = "agent's store" if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "own store"
# One write, so that ranks that share a pipe do not mix their lines.
sys.stdout.write(f"rank {rank} of {world}, {where}: weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()}\n")
sys.stdout.flush()
dist.destroy_process_group()
# Not by the interpreter: gloo's thread drops the last work while Python ends, and aborts ("terminate called without an
# active exception": 2.15.0, a fifth of the runs on a busy machine, also with DistributedDataParallel deleted before).
os._exit(0)
