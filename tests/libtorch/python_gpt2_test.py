# SPDX-License-Identifier: Apache-2.0
"""GPT-2 in Python and examples/05_libtorch_gpt2, from one file as Hugging Face publishes them: the same loss."""
import math
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [f"{HERE}/programs", f"{HERE}/../compat"]
import support  # noqa: E402  (skips the file where there is no torch)
import torch  # noqa: E402
import torch_ddp  # noqa: E402

F = torch.nn.functional
LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 2, 2, 32, 64, 256  # the example's size "tiny"
TOLERANCE = 1e-5  # of the largest value


def published_weights():
    """Names and shapes of Hugging Face's GPT2Model, whose Conv1D has its weight as [in, out]."""
    torch.manual_seed(11)

    def random(*shape):
        return torch.randn(*shape) * 0.2

    weights = {"wte.weight": random(VOCABULARY, WIDTH), "wpe.weight": random(CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        for name, inner, outer in (("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH),
                                   ("mlp.c_fc", WIDTH, 4 * WIDTH), ("mlp.c_proj", 4 * WIDTH, WIDTH)):
            weights[f"h.{layer}.{name}.weight"] = random(inner, outer)
            weights[f"h.{layer}.{name}.bias"] = random(outer)
        for name in ("ln_1", "ln_2"):
            weights[f"h.{layer}.{name}.weight"] = 1 + random(WIDTH)
            weights[f"h.{layer}.{name}.bias"] = random(WIDTH)
    weights["ln_f.weight"], weights["ln_f.bias"] = 1 + random(WIDTH), random(WIDTH)
    return weights


def logits_of(weights, tokens):
    """GPT-2, from its definition."""
    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear(x, name):
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    rows, length = tokens.shape
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    x = weights["wte.weight"][tokens] + weights["wpe.weight"][:length]
    for layer in range(LAYERS):
        q, k, v = (part.view(rows, length, HEADS, WIDTH // HEADS).transpose(1, 2)
                   for part in linear(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn").split(WIDTH, 2))
        scores = (q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)).masked_fill(later, float("-inf"))
        attended = (scores.softmax(3) @ v).transpose(1, 2).reshape(rows, length, WIDTH)
        x = x + linear(attended, f"h.{layer}.attn.c_proj")
        y = linear(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))
        x = x + linear(y, f"h.{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ weights["wte.weight"].T


class PythonGpt2(support.Case):
    def files(self, folder):
        """(prefix of the names, path): with what published files have beside the parameters."""
        weights = published_weights()
        mask = torch.ones(CONTEXT, CONTEXT).tril().view(1, 1, CONTEXT, CONTEXT)
        masks = {f"h.{layer}.attn.bias": mask for layer in range(LAYERS)}
        torch_ddp.write(f"{folder}/model.safetensors", {**weights, **masks})
        masks.update({f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(LAYERS)})
        prefixed = {f"transformer.{name}": tensor for name, tensor in {**weights, **masks}.items()}
        torch_ddp.write(f"{folder}/lm.safetensors", {**prefixed, "lm_head.weight": weights["wte.weight"]})
        return weights, (("", f"{folder}/model.safetensors"), ("transformer.", f"{folder}/lm.safetensors"))

    def test_validation_loss_and_what_it_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            weights, files = self.files(folder)
            tokens = torch.randint(VOCABULARY, (10 * CONTEXT + 1,))
            with open(f"{folder}/text", "wb") as file:
                file.write(bytes(tokens.tolist()))
            logits = logits_of(weights, tokens[:-1].view(10, CONTEXT))
            wanted = F.cross_entropy(logits.view(-1, VOCABULARY), tokens[1:]).item()
            for prefix, path in files:
                with self.subTest(prefix=prefix):
                    run = self.run_program(
                        [support.program("lockstep"), "run", "-n", "2", "--", support.program("05_libtorch_gpt2"),
                         "--weights", path, "--steps", "0", "--sample", "0", "--data", f"{folder}/text",
                         "--validation", f"{folder}/text", "--batch-tokens", CONTEXT, "--out", f"{folder}/out"])
                    loss = float(re.search(r"validation loss ([0-9.]+)", run.out)[1])
                    self.assertAlmostEqual(loss, wanted, delta=TOLERANCE * wanted)
                    written = torch_ddp.read(f"{folder}/out")
                    self.assertEqual(written.keys(), weights.keys())
                    for name, tensor in weights.items():
                        self.assertTrue(torch.equal(written[name], tensor), name)

    def test_weights_of_another_size_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            weights, _ = self.files(folder)
            narrow = {name: tensor for name, tensor in weights.items() if not name.startswith("h.1.")}
            torch_ddp.write(f"{folder}/narrow", narrow)
            run = self.run_program([support.program("05_libtorch_gpt2"), "--weights", f"{folder}/narrow"], code=2)
            self.assertIn("missing 'h.1.ln_1.weight'", run.err)


if __name__ == "__main__":
    support.main()
