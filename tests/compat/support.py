# SPDX-License-Identifier: Apache-2.0
"""What the tests with PyTorch's client share: servers to connect to, programs that are always ended, a known environment.

Each *_test.py is run by ctest with a Python that may or may not have torch; without it the file is skipped as a whole.
"""
import contextlib
import datetime
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from plain import environment, need, program

need("torch")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 240  # seconds after which something that should come counts as lost: PyTorch 2.x takes long to import
VERSION = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
LEGACY = VERSION < (2, 1)  # the 1.13 era: numbering and manners of the wire before the end of 2023


# A test that has no business with this client or that server does not exist there: it is not skipped, nothing is missing.
def exists_if(condition):
    return (lambda test: test) if condition else (lambda test: None)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Program:
    """A program in a process group of its own, which end() kills. Its output goes into files and can be waited for."""

    def __init__(self, command, env=None, cwd=None):
        self.command = [str(word) for word in command]
        self._files = [tempfile.TemporaryFile(mode="w+b") for _ in range(2)]
        self.process = subprocess.Popen(self.command, env=env or environment(), cwd=cwd, stdin=subprocess.DEVNULL,
                                        stdout=self._files[0], stderr=self._files[1], start_new_session=True)

    def _read(self, file):
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size, 0).decode(errors="replace")

    @property
    def out(self):
        return self._read(self._files[0])

    @property
    def err(self):
        return self._read(self._files[1])

    def said(self):
        return f"{' '.join(self.command)}\nexit code {self.process.poll()}\nstdout:\n{self.out}\nstderr:\n{self.err}"

    def await_output(self, pattern):
        """The first match of `pattern` in either stream."""
        deadline = time.monotonic() + PATIENCE
        while True:
            ended = self.process.poll() is not None  # before the output is read: what it said last counts
            found = re.search(pattern, self.out) or re.search(pattern, self.err)
            if found:
                return found
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"{'ended' if ended else 'silent'} without '{pattern}': {self.said()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)

    def wait(self, timeout=PATIENCE):
        """Its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s: {self.said()}") from None

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for file in self._files:
            file.close()


class Case(unittest.TestCase):
    """A test that ends what it started."""

    def start(self, command, env=None, cwd=None):
        started = Program(command, env, cwd)
        self.addCleanup(started.end)
        return started

    def run_program(self, command, env=None, code=0, timeout=PATIENCE):
        """Runs it to its end, which must be exit code `code`."""
        started = self.start(command, env)
        if started.wait(timeout) != code:
            self.fail(f"wanted exit code {code}: {started.said()}")
        return started

    def serve(self, *flags, env=None):
        """Our server, without a secret unless `flags` or `env` say otherwise. (program, port)"""
        flags = flags or ("--store-auth=off",)
        server = self.start([program("lockstep"), "store", "serve", "--host", "127.0.0.1", "--port", "0", *flags], env)
        return server, int(server.await_output(r"127\.0\.0\.1:(\d+)")[1])

    def serve_torch(self):
        """The same with torch's own server."""
        code = ("import signal, torch.distributed as d\n"
                "s = d.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)\n"
                "print(f'127.0.0.1:{s.port}', flush=True)\n"
                "signal.pause()\n")
        server = self.start([sys.executable, "-c", code])
        return server, int(server.await_output(r"127\.0\.0\.1:(\d+)")[1])

    def start_client(self, port, code):
        """A client of torch's, `store`, in a process of its own: whose server goes may abort or spin in 1.13."""
        return self.start([sys.executable, "-c",
                           "import datetime, torch.distributed as dist\n"
                           f"store = dist.TCPStore('127.0.0.1', {port}, None, False, datetime.timedelta(seconds=5))\n"
                           f"{code}\n"])

    def connect(self, port, timeout=PATIENCE, **arguments):
        """A client of torch's."""
        return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False,
                             timeout=datetime.timedelta(seconds=timeout), **arguments)


def main():
    print(f"torch {torch.__version__} on Python {sys.version.split()[0]}", flush=True)
    unittest.main(verbosity=2)
