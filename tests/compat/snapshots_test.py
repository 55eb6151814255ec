# SPDX-License-Identifier: Apache-2.0
"""The reader in Python of docs/SNAPSHOT_FORMAT.md, as a user copies it, reads what 02_char_gpt and 04_libtorch_mnist save."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

from plain import environment, need, program

need("numpy")
import numpy  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 6


def reader():
    """What the reader defines, and the lines for PyTorch."""
    page = (ROOT / "docs/SNAPSHOT_FORMAT.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 2, f"{len(blocks)} blocks of Python in docs/SNAPSHOT_FORMAT.md"
    names = {}
    exec(blocks[0], names)
    return names, blocks[1]


def train(folder, *flags):
    (folder / "text").write_text("banana cabana abacab\n" * 600)
    subprocess.run(
        [program("lockstep"), "run", "-n", "2", "--", program("02_char_gpt"), "--text", folder / "text", "--layers", "1",
         "--heads", "2", "--embd", "32", "--context", "16", "--batch", "8", "--steps", str(STEPS), "--warmup", "2",
         "--out", folder / "out.safetensors", "--snapshot-dir", folder / "run", "--snapshot-every", "3", *flags],
        check=True, capture_output=True, timeout=300, env=environment())


def load_as_the_page_does(page, lines, snapshot, folder, optimizer):
    """Exports `snapshot` into `folder`, and runs the page's lines there."""
    subprocess.run([program("lockstep"), "snapshots", "export", snapshot, folder / "out"], check=True, capture_output=True,
                   env=environment())
    page["optimizer"] = optimizer
    before = os.getcwd()
    os.chdir(folder)
    try:
        exec(lines, page)
    finally:
        os.chdir(before)


class Reader(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("torch"), "python3-torch is not installed")
    @unittest.skipUnless(os.access(pathlib.Path(os.environ["LOCKSTEP_BIN"]) / "04_libtorch_mnist", os.X_OK), "no LibTorch")
    def test_libtorchs_optimizer_becomes_one_of_pytorch(self):
        import torch
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            run = subprocess.Popen([program("04_libtorch_mnist"), "--snapshot-dir", folder / "run", "--snapshot-every", "2"],
                                   stdout=subprocess.DEVNULL, env=environment())
            deadline = time.monotonic() + 300
            while run.poll() is None and time.monotonic() < deadline and not any((folder / "run").glob("step-*")):
                time.sleep(0.1)
            run.terminate()
            self.assertEqual(run.wait(300), 75)
            page, lines = reader()
            newest = max((folder / "run").glob("step-*"))
            items = page["snapshot"](newest)
            names, model = items["optimizer"][0]["param_groups.0.params"], items["model"][1]
            parameters = [torch.nn.Parameter(torch.from_numpy(model[name].copy())) for name in names]
            load_as_the_page_does(page, lines, newest, folder, torch.optim.SGD(parameters, 0.01, momentum=0.5))
            for parameter, name in zip(parameters, names):
                numpy.testing.assert_array_equal(page["optimizer"].state[parameter]["momentum_buffer"].numpy(),
                                                 items["optimizer"][1][f"state.{name}.momentum_buffer"], err_msg=name)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "python3-torch is not installed")
    def test_an_optimizer_in_shards_becomes_one_of_pytorch(self):
        import torch
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as shares:
            whole, shares = pathlib.Path(whole), pathlib.Path(shares)
            train(whole)
            train(shares, "--shard")
            newest = "run/step-000000000006-g000001"
            self.assertTrue((shares / newest / "optimizer.r0001.safetensors").exists())
            page, lines = reader()
            values, state = page["snapshot"](whole / newest)["optimizer"]
            model = page["snapshot"](shares / newest)["model"][1]
            parameters = [torch.nn.Parameter(torch.from_numpy(model[name].copy())) for name in values["params"]]
            load_as_the_page_does(page, lines, shares / newest, shares, torch.optim.AdamW(parameters))
            for parameter, name in zip(parameters, values["params"]):
                loaded = page["optimizer"].state[parameter]
                self.assertEqual(loaded["step"].item(), STEPS)
                for key in ("exp_avg", "exp_avg_sq"):
                    self.assertEqual(loaded[key].shape, parameter.shape)
                    numpy.testing.assert_array_equal(loaded[key].numpy(), state[f"state.{name}.{key}"], err_msg=name)

    def test_a_snapshot_is_what_the_program_had(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            train(folder)
            names = sorted(path.name for path in (folder / "run").glob("step-*"))
            self.assertEqual(names[-1], "step-000000000006-g000001")
            (page, _), newest = reader(), folder / "run" / names[-1]
            items = page["snapshot"](newest)
            self.assertEqual(sorted(items), ["data", "model", "optimizer"])

            model = items["model"][1]
            out = page["tensors"](folder / "out.safetensors")
            self.assertEqual(sorted(model), sorted(out))
            for name, tensor in out.items():
                self.assertEqual(tensor.dtype, numpy.float32)
                numpy.testing.assert_array_equal(model[name], tensor, err_msg=name)

            values, state = items["optimizer"]
            self.assertEqual(values["steps"], STEPS)
            self.assertEqual(sorted(values["params"]), sorted(model))
            self.assertEqual(sorted(state),
                             sorted(f"state.{name}.{part}" for name in model for part in ("exp_avg", "exp_avg_sq", "step")))
            for name in model:
                self.assertEqual(state[f"state.{name}.exp_avg_sq"].shape, model[name].shape)
                self.assertTrue((state[f"state.{name}.exp_avg_sq"] >= 0).all())
            self.assertEqual(items["data"][0]["consumed"], 8 * STEPS)
            # The members that the page lists, and no others.
            manifest = json.loads((newest / "manifest.json").read_text())
            page = (ROOT / "docs/SNAPSHOT_FORMAT.md").read_text()
            for member in manifest:
                self.assertIn(f"`{member}`", page)


if __name__ == "__main__":
    unittest.main(verbosity=2)
