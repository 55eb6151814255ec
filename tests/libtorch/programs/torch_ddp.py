# SPDX-License-Identifier: Apache-2.0
"""What tests/libtorch/programs/ddp.cc does, by PyTorch's DistributedDataParallel. torch_ddp.py START DATA END

Files are safetensors: START the first state, DATA x and y [steps, rows, ...], END what rank 0 writes.
"""
import json
import os
import struct
import sys

import torch
import torch.distributed as dist

NAMES = {torch.float32: "F32", torch.int64: "I64", torch.bfloat16: "BF16"}


def bytes_of(tensor):
    if tensor.dtype == torch.bfloat16:  # which numpy has not
        tensor = tensor.view(torch.int16)
    return tensor.numpy().tobytes()


def write(path, tensors, metadata=None):
    header, blobs, at = {"__metadata__": metadata} if metadata else {}, [], 0
    for name, tensor in tensors.items():
        blob = bytes_of(tensor.detach().contiguous())
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    types = {name: dtype for dtype, name in NAMES.items()}
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        first, last = (begin + offset for offset in entry["data_offsets"])
        tensors[name] = torch.frombuffer(bytearray(data[first:last]), dtype=types[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def main(start, data, end):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    model = make()
    model.load_state_dict(read(start))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    batches = read(data)
    rows = batches["x"].shape[1] // world
    for x, y in zip(batches["x"], batches["y"]):
        optimizer.zero_grad()
        own = slice(rank * rows, (rank + 1) * rows)
        torch.nn.functional.mse_loss(ddp(x[own]), y[own]).backward()
        optimizer.step()
    if rank == 0:
        write(end, model.state_dict())
    dist.barrier()
    os._exit(0)  # see tests/compat/programs/ddp.py


if __name__ == "__main__":
    main(*sys.argv[1:])
