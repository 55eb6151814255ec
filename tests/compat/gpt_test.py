# SPDX-License-Identifier: Apache-2.0
"""A GPT's weights go from PyTorch's file into ours and back, with strict=True, and both compute the same from them."""
import os
import subprocess
import sys
import tempfile
import unittest

import support
from support import program, torch

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../libtorch/programs")
import torch_ddp  # noqa: E402

F = torch.nn.functional
VOCABULARY, CONTEXT, LAYERS, HEADS, CHANNELS = 37, 16, 2, 4, 32
STEPS, ROWS = 20, 3
OF_GRADIENTS, OF_LOSSES = 1e-5, 1e-4  # of a tensor's largest value; relative


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.project = torch.nn.Linear(CHANNELS, 3 * CHANNELS), torch.nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = (part.view(rows, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / (CHANNELS // HEADS) ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        attended = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v
        return self.project(attended.transpose(1, 2).reshape(rows, length, CHANNELS))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(CHANNELS), torch.nn.LayerNorm(CHANNELS)
        self.attention = Attention()
        self.widen, self.narrow = torch.nn.Linear(CHANNELS, 4 * CHANNELS), torch.nn.Linear(4 * CHANNELS, CHANNELS)
        names = dict(self.named_children())
        # The order of examples/02_char_gpt, which is AdamW's.
        self._modules = type(self._modules)((name, names[name])
                                            for name in ("norm1", "attention", "norm2", "widen", "narrow"))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = torch.nn.Embedding(VOCABULARY, CHANNELS), torch.nn.Embedding(CONTEXT, CHANNELS)
        for i in range(LAYERS):
            self.add_module(f"block{i}", Block())
        self.norm, self.head = torch.nn.LayerNorm(CHANNELS), torch.nn.Linear(CHANNELS, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[:tokens.shape[1]]
        for i in range(LAYERS):
            x = getattr(self, f"block{i}")(x)
        return self.head(self.norm(x))


def gradients_of(model):
    """As they lie in lockstep's memory: a Linear's transposed."""
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return {name: parameter.grad.t().clone() if name in linear else parameter.grad.clone()
            for name, parameter in model.named_parameters()}


class GptFile(unittest.TestCase):
    def assert_close(self, seen, wanted, what, tolerance=OF_GRADIENTS):
        largest = wanted.abs().max().item()
        self.assertGreater(largest, 0, what)
        self.assertEqual(seen.shape, wanted.shape, what)
        self.assertLessEqual((seen - wanted).abs().max().item(), tolerance * largest, what)

    def test_both_ways(self):
        torch.manual_seed(5)
        model = Gpt()
        tokens = torch.randint(VOCABULARY, (STEPS, ROWS, CONTEXT))
        targets = torch.randint(VOCABULARY, (STEPS, ROWS, CONTEXT))
        sizes = {"vocabulary_size": VOCABULARY, "context": CONTEXT, "layers": LAYERS, "heads": HEADS,
                 "channels": CHANNELS}
        with tempfile.TemporaryDirectory() as folder:
            torch_ddp.write(f"{folder}/torch.safetensors", model.state_dict(),
                            {name: str(size) for name, size in sizes.items()})
            torch_ddp.write(f"{folder}/data.safetensors", {"tokens": tokens, "targets": targets})
            subprocess.run([program("compat_gpt"), folder], check=True, timeout=120)
            result = torch_ddp.read(f"{folder}/result.safetensors")
            ours = torch_ddp.read(f"{folder}/ours.safetensors")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
        losses = []
        for step in range(STEPS):
            logits = model(tokens[step])
            loss = F.cross_entropy(logits.flatten(0, 1), targets[step].flatten())
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.item())
            if step == 0:
                self.assert_close(result["logits"].reshape(logits.shape), logits.detach(), "logits")
                for name, gradient in gradients_of(model).items():
                    self.assert_close(result[name], gradient, name)
            optimizer.step()
        self.assert_close(result["losses"], torch.tensor(losses), "losses", OF_LOSSES)
        trained = Gpt()
        trained.load_state_dict(ours, strict=True)
        for step in range(STEPS):  # the steps did the same: so do the models that they led to
            self.assert_close(trained(tokens[step]).detach(), model(tokens[step]).detach(), "logits afterwards", 1e-3)


if __name__ == "__main__":
    support.main()
