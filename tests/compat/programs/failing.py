# SPDX-License-Identifier: Apache-2.0
"""Trains with DistributedDataParallel on gloo until it comes to harm: the program of tests/extra/torch-failures.

failing.py FOLDER SECONDS: process groups time out after SECONDS. Each rank writes its pid into FOLDER/pid.RANK after its
fifth step, and from then on does what FOLDER/harm.RANK says.
"""
import datetime
import os
import sys

import torch
import torch.distributed as dist

folder, seconds = sys.argv[1], float(sys.argv[2])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def harm():
    try:
        with open(f"{folder}/harm.{rank}") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


step = 0
while True:
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 5:
        with open(f"{folder}/pid.{rank}.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{folder}/pid.{rank}.new", f"{folder}/pid.{rank}")
    kind = harm() if step >= 5 else ""
    if kind == "exception":
        raise RuntimeError("an exception of the program's own")
    if kind == "exit0":
        sys.exit(0)
    if kind == "exit7":
        sys.exit(7)
    if kind == "full":
        torch.save(model.state_dict(), "/dev/full")
    while kind == "loop":
        pass
