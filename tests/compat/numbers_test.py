# SPDX-License-Identifier: Apache-2.0
"""Our operations against PyTorch's, on the same inputs: not further from float64 than PyTorch's float32 is.

The errors are max|a - b| over max|b| of a tensor, b being PyTorch's result in float64. The worst over all offsets and scales
is never above PyTorch's worst. In a single case it may be up to twice PyTorch's: which float a rounding hits is chance.
"""
import math
import subprocess
import unittest

import support
from support import program, torch

import numpy  # noqa: E402, torch has it

# What float32 may round in a few operations, even where PyTorch happened to hit the nearest float.
A_FEW_ULPS = 4 * 2.0**-24
TARGETS = torch.tensor([0, 18, 7, -100, 3])
F = torch.nn.functional


def attention(qkv):
    q, k, v = qkv.unbind(-1)
    scores = q.unsqueeze(-1) * k.unsqueeze(-2)
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return (torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v.unsqueeze(-1))


OPERATIONS = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "sum": torch.sum,
    "mean": torch.mean,
    "mse_loss": F.mse_loss,
    "layer_norm": lambda x, gain, bias: F.layer_norm(x, gain.shape, gain, bias),
    "cross_entropy": lambda x: F.cross_entropy(x, TARGETS),
    "linear": lambda x, w, b: x @ w + b,
    "attention": attention,
}
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
}


def cases():
    """(name, {title: tensor}) as tests/compat/programs/numbers.cc wrote them."""
    data = subprocess.run([program("compat_numbers")], stdout=subprocess.PIPE, check=True, timeout=60).stdout
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        name, *titles = data[at:end].decode().split(" ")
        at, tensors = end + 1, {}
        for title in titles:
            key, *extents = title.split(":")
            count = math.prod(map(int, extents))
            values = numpy.frombuffer(data, "<f4", count, at).copy()
            tensors[key] = torch.from_numpy(values).reshape([int(extent) for extent in extents])
            at += 4 * count
        yield name, tensors


def operation(name, tensors, dtype):
    inputs = [tensors[f"x{i}"].to(dtype, copy=True).requires_grad_() for i in range(3) if f"x{i}" in tensors]
    y = OPERATIONS[name](*inputs)
    y.backward(tensors["dy"].to(dtype).reshape(y.shape))
    return {"y": y.detach(), **{f"dx{i}": x.grad for i, x in enumerate(inputs)}}


def optimizer(name, tensors, dtype):
    w, t = (tensors[key].to(dtype, copy=True).requires_grad_() for key in "wt")
    steps = OPTIMIZERS[name]([w, t])
    for step in range(6):
        w.grad = tensors[f"g{step}"].to(dtype)
        t.grad = w.grad.clone() if step >= 3 else None
        steps.step()
    return {"w6": w.detach(), "t6": t.detach()}


def error(result, wanted):
    largest = wanted.abs().max().item()
    return (result.double() - wanted).abs().max().item() / largest if largest > 1e-37 else 0.0


class Numbers(unittest.TestCase):
    def test_no_result_is_further_from_float64_than_pytorchs(self):
        worst, seen = {}, set()
        for name, tensors in cases():
            run = optimizer if name in OPTIMIZERS else operation
            theirs, wanted = run(name, tensors, torch.float32), run(name, tensors, torch.float64)
            seen.add(name)
            for title, exact in wanted.items():
                # What is not finite in float32 is another test's.
                if not exact.float().isfinite().all() or not all(t.isfinite().all() for t in tensors.values()):
                    continue
                ours = error(tensors[title].reshape(exact.shape), exact)
                pytorchs = error(theirs[title], exact)
                with self.subTest(name=name, result=title, x=tensors.get("x0", tensors.get("g0")).flatten()[:2]):
                    # PyTorch's NaN, where its variance overflows, is no limit.
                    self.assertLessEqual(ours, A_FEW_ULPS if math.isnan(pytorchs) else max(2 * pytorchs, A_FEW_ULPS))
                at = worst.setdefault((name, title), [0.0, 0.0])
                at[:] = max(at[0], ours), max(at[1], pytorchs if math.isfinite(pytorchs) else 0.0)
        self.assertEqual(seen, {*OPERATIONS, *OPTIMIZERS})
        for (name, title), (ours, pytorchs) in worst.items():
            with self.subTest(name=name, result=title, over="all offsets and scales"):
                self.assertLessEqual(ours, max(pytorchs, A_FEW_ULPS))
            print(f"{name:14} {title:4} worst error: ours {ours:.1e}, PyTorch's {pytorchs:.1e}")

    def test_nan_and_infinity_are_pytorchs(self):
        for name, tensors in list(cases())[:3]:
            theirs = operation(name, tensors, torch.float32)
            for title, result in theirs.items():
                ours = tensors[title]
                # A finite gradient is better than the NaN of a square that overflows.
                special = ~(tensors["x0"].abs() < math.inf) | result.isfinite()
                with self.subTest(name=name, result=title):
                    self.assertTrue(torch.equal(ours.isnan()[special], result.isnan()[special]), (ours, result))
                    self.assertTrue(torch.equal(ours.isinf()[special], result.isinf()[special]), (ours, result))


if __name__ == "__main__":
    support.main()
