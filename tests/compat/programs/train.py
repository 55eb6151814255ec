# SPDX-License-Identifier: Apache-2.0
"""Training as PyTorch's tutorials have it: DistributedDataParallel over gloo, a DataLoader with a worker process, a
checkpoint that rank 0 writes and all ranks resume from. It knows torchrun's variables and nothing of lockstep.

train.py CHECKPOINT [--steps N] [--record] [--rank R --does HARM]
"""
import argparse
import atexit
import contextlib
import datetime
import os
import select
import signal
import socket
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BAD_STEP = 20


class Samples(Dataset):
    """A new batch for each step."""

    def __init__(self, rank, first, last):
        self.rank, self.first, self.last = rank, first, last

    def __len__(self):
        return self.last - self.first

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(1000 * (self.first + index) + self.rank)
        x = torch.randn(16, 8, generator=random)
        return x, x.sum(1, keepdim=True)


def shut_connections():
    """As when a process group is destroyed, though DistributedDataParallel still holds it."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            connection = socket.socket(fileno=fd)
        except OSError:
            continue  # not a socket
        with contextlib.suppress(OSError):
            connection.getpeername()  # not a listener, which gloo would abort for
            connection.shutdown(socket.SHUT_RDWR)
        connection.detach()


def linger(other):
    """Ends with 1 as soon as the process `other` has ended."""
    select.select([os.pidfd_open(other)], [], [])
    os._exit(1)


def harm(does, pids):
    if does == "leave":
        os._exit(0)
    while does == "hang":
        signal.pause()
    if does == "linger":
        shut_connections()
        atexit.register(linger, pids[0])
    raise ValueError(f"sample {BAD_STEP} has no label")


def main(arguments):
    began = time.monotonic()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    if arguments.does == "together" and rank == 0:
        atexit.register(linger, pids[1])
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    first = 0
    if os.path.exists(arguments.checkpoint):
        saved = torch.load(arguments.checkpoint)
        model.load_state_dict(saved["model"])
        first = saved["step"]
    loader = DataLoader(Samples(rank, first, arguments.steps), batch_size=None, num_workers=1)
    for step, (x, y) in enumerate(loader, first + 1):
        if step == BAD_STEP and rank == arguments.rank:
            harm(arguments.does, pids)
        if step == BAD_STEP and arguments.does == "hang":  # so that earlier steps may take any time
            dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=5))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            torch.save({"model": model.state_dict(), "step": step}, f"{arguments.checkpoint}.new")
            os.rename(f"{arguments.checkpoint}.new", arguments.checkpoint)
        if step == first + 10:
            print(f"rank {rank} of {len(pids)}, pid {os.getpid()}, has begun at step {first}, start "
                  f"{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", flush=True)
        if began and time.monotonic() - began > 30:
            began = None
            print(f"rank {rank} of {len(pids)} has trained for 30 s", flush=True)
    dist.barrier()
    print(f"rank {rank} of {len(pids)} has done {arguments.steps} steps, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()
    os._exit(0)  # see ddp.py


parser = argparse.ArgumentParser()
parser.add_argument("checkpoint")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--rank", type=int, default=-1, help=f"this rank comes to harm in step {BAD_STEP}")
parser.add_argument("--does", choices=("raise", "linger", "leave", "hang", "together"), default="raise")
parser.add_argument("--record", action="store_true", help="under torch.distributed.elastic's record")
arguments = parser.parse_args()
(record(main) if arguments.record else main)(arguments)
