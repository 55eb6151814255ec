# SPDX-License-Identifier: Apache-2.0
"""The same training by PyTorch's DistributedDataParallel over gloo and by lockstep::libtorch, from the same weights."""
import inspect
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [f"{HERE}/programs", f"{HERE}/../compat"]
import support  # noqa: E402  (skips the file where there is no torch)
import torch  # noqa: E402
import torch_ddp  # noqa: E402

TOLERANCE = 1e-5  # per tensor, of its largest value


class PythonDdp(support.Case):
    def train(self, world):
        """(by Python, by lockstep): the state after 20 steps."""
        with tempfile.TemporaryDirectory() as folder:
            start, data, own, theirs = (f"{folder}/{name}.safetensors" for name in ("start", "data", "own", "theirs"))
            torch.manual_seed(3)
            torch_ddp.write(start, torch_ddp.make().state_dict())
            torch_ddp.write(data, {"x": torch.randn(20, 12, 8), "y": torch.randn(20, 12, 2)})
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": support.free_port(), "WORLD_SIZE": world}
            ranks = [self.start([sys.executable, f"{HERE}/programs/torch_ddp.py", start, data, theirs],
                                support.environment(RANK=rank, **shared)) for rank in range(world)]
            for rank in ranks:
                if rank.wait() != 0:
                    self.fail("\n".join(each.said() for each in ranks))
            self.run_program([support.program("lockstep"), "run", "--nproc-per-node", str(world), "--",
                              support.program("libtorch_ddp_program"), start, data, own])
            return torch_ddp.read(theirs), torch_ddp.read(own), torch_ddp.read(start)

    def test_state_after_20_steps(self):
        for world in (1, 2, 3):
            theirs, own, start = self.train(world)
            self.assertEqual(theirs.keys(), own.keys())
            for name, wanted in theirs.items():
                with self.subTest(world=world, tensor=name):
                    self.assertFalse(torch.equal(wanted, start[name]), "nothing was learned")
                    apart = (own[name] - wanted).abs().max().item()
                    self.assertLessEqual(apart, TOLERANCE * wanted.abs().max().item())

    def test_every_argument_is_in_the_migration_table(self):
        with open(f"{HERE}/../../docs/FROM_PYTHON.md", encoding="utf-8") as file:
            named = set(re.findall(r"`(\w+)[=`]", "".join(line for line in file if line.startswith("|"))))
        arguments = set(inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters)
        self.assertGreater(len(arguments), 10)
        self.assertEqual(arguments - named - {"self", "module"}, set())


if __name__ == "__main__":
    support.main()
