# SPDX-License-Identifier: Apache-2.0
"""A hundred steps of lockstep's fused optimizers, and of Python's with fused=True: the same bits, with each option."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [f"{HERE}/programs", f"{HERE}/../compat"]
import support  # noqa: E402  (skips the file where there is no torch)
import torch  # noqa: E402
import torch_ddp  # noqa: E402

STEPS = 100
ADAM = [{"lr": 1e-2}, {"lr": 1e-2, "beta1": 0.8, "beta2": 0.95}, {"lr": 1e-2, "eps": 1e-3}, {"lr": 1e-2, "weight_decay": 0.1},
        {"lr": 1e-2, "amsgrad": 1}, {"lr": 3e-3, "beta1": 0.85, "beta2": 0.98, "eps": 1e-6, "weight_decay": 0.2, "amsgrad": 1}]
CASES = {
    "AdamW": ADAM, "Adam": ADAM,
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "weight_decay": 0.1}, {"lr": 0.1, "momentum": 0.9, "nesterov": 1},
            {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05}]}


def python_optimizer(name, parameters, options):
    options = dict(options)
    if name != "SGD":
        options["betas"] = (options.pop("beta1", 0.9), options.pop("beta2", 0.999))
        options.setdefault("weight_decay", 0)
    for flag in "amsgrad", "nesterov":
        if flag in options:
            options[flag] = bool(options[flag])
    return getattr(torch.optim, name)(parameters, fused=True, **options)


class PythonOptimizers(support.Case):
    def make(self, dtype=torch.float32, bad=()):
        """Parameters, and gradients of each step, those of the steps `bad` with an Inf."""
        torch.manual_seed(7)
        parameters = [torch.randn(shape).to(dtype) for shape in ((33, 20), (7,), (2, 3, 5))]
        gradients = [torch.randn(STEPS, *p.shape).mul(0.1).to(dtype) for p in parameters]
        for step in bad:
            gradients[1][step, 3] = float("inf")
        return parameters, gradients

    def own(self, name, options, parameters, gradients):
        with tempfile.TemporaryDirectory() as folder:
            tensors = {f"{letter}{i}": tensor for letter, all_of in (("p", parameters), ("g", gradients))
                       for i, tensor in enumerate(all_of)}
            torch_ddp.write(f"{folder}/in", tensors)
            # A status of 77 means that this LibTorch has no fused operators.
            done = subprocess.run([support.program("libtorch_optimizers_program"), f"{folder}/in", f"{folder}/out", name,
                                   *(f"{key}={value}" for key, value in options.items())],
                                  env=support.environment(), capture_output=True, text=True)
            if done.returncode == 77:
                print(f"SKIPPED: LibTorch {torch.__version__} has no fused operators")
                sys.stdout.flush()
                os._exit(77)
            self.assertEqual(done.returncode, 0, done.stderr)
            result = torch_ddp.read(f"{folder}/out")
            return [result[f"p{i}"] for i in range(len(parameters))]

    def compare(self, dtype=torch.float32, scale=None, bad=()):
        for name, cases in CASES.items():
            for options in cases:
                # Python's SGD reads a momentum buffer that nothing has written where the first step is left out. FusedSGD
                # refuses dampening there.
                if scale and "dampening" in options:
                    continue
                with self.subTest(optimizer=name, **options):
                    start, gradients = self.make(dtype, bad)
                    own = self.own(name, {**options, "scale": scale} if scale else options, start, gradients)
                    parameters = [p.float().clone().requires_grad_() for p in start]
                    optimizer = python_optimizer(name, parameters, options)
                    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1, growth_interval=10, enabled=bool(scale))
                    for step in range(STEPS):
                        scaler.scale(torch.zeros(()))
                        for p, g in zip(parameters, gradients):
                            p.grad = g[step].float() * scaler.get_scale()
                        scaler.step(optimizer)
                        scaler.update()
                    for one, other, before in zip(own, parameters, start):
                        wanted = other.to(dtype)
                        self.assertFalse(torch.equal(wanted, before), "nothing was learned")
                        self.assertTrue(torch.equal(one, wanted), f"apart by {(one - wanted).abs().max().item()}")

    def test_float32(self):
        self.compare()

    def test_with_a_scaler_and_steps_that_are_left_out(self):
        self.compare(scale=1024, bad=(3, 4, 50))

    def test_bfloat16_by_float32_masters(self):
        self.compare(torch.bfloat16)


if __name__ == "__main__":
    support.main()
