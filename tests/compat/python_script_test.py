# SPDX-License-Identifier: Apache-2.0
"""A PyTorch script that knows nothing of lockstep, under `lockstep run`: verdicts, restarts, `lockstep top`."""
import json
import os
import re
import signal
import socket
import sys
import tempfile

import support
from support import HERE, environment, program

SCRIPT = f"{HERE}/programs/train.py"
ENDLESS = ("--steps", str(10**9))


class Job(support.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.checkpoint = f"{self.folder}/checkpoint"

    def launch(self, *flags, script=(), ranks=2):
        """Each process of the job has a variable of this test's, by which left() finds it."""
        self.mark = f"PYTHON_SCRIPT_TEST={self.folder}"
        name, value = self.mark.split("=")
        # A shell without job control starts what is in the background with SIGINT ignored, which children inherit.
        return self.start(["env", "--default-signal=INT", program("lockstep"), "run", "-n", str(ranks), *flags, "--",
                           sys.executable, SCRIPT, self.checkpoint, *script], environment(**{name: value}))

    def begin(self, *flags, script=ENDLESS, ranks=2):
        """(the job, the ranks' pids) once all have done ten steps."""
        job = self.launch(*flags, script=script, ranks=ranks)
        return job, [self.pid(job, rank) for rank in range(ranks)]

    def pid(self, job, rank):
        return int(job.await_output(rf"rank {rank} of \d, pid (\d+), has begun at step 0")[1])

    def end(self, job, code):
        if job.wait() != code:
            self.fail(f"wanted exit code {code}: {job.said()}")
        self.assertEqual(self.left(), [], "processes are left")

    def left(self):
        """The processes of the job that still run, DataLoader's workers too."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if self.mark.encode() in file.read().split(b"\0"):
                        found.append(pid)
            except OSError:
                pass  # it has ended, or is another user's
        return found

    def lockstep(self, command, job, *flags):
        run_id = next(run["run_id"] for run in json.loads(self.run_program([program("lockstep"), "ps", "--json"]).out)
                      if run["pid"] == job.process.pid)
        return self.run_program([program("lockstep"), command, *flags, run_id]).out

    def assertSays(self, job, pattern):
        self.assertRegex(job.err, pattern, job.said())


class Verdict(Job):
    def test_success(self):
        job = self.launch(script=("--steps", "40"))
        self.end(job, 0)
        self.assertEqual(len(re.findall(r"has done 40 steps", job.out)), 2, job.said())
        self.assertNotIn("lockstep run:", job.err)

    def test_exception_is_the_reason(self):
        """With record or without: both write the traceback to stderr."""
        for flags, script in (((), ()), (("--log-dir", f"{self.folder}/logs"), ("--record",))):
            job = self.launch(*flags, script=(*ENDLESS, "--rank", "1", *script), ranks=2)
            self.end(job, 1)
            self.assertSays(job, r"lockstep run: rank 1 failed first: it exited with code 1: ValueError: sample 20 has no "
                                 r"label; .*exit code 1\n")
        with open(f"{self.folder}/logs/verdict.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["first_failure"]["cause"], "ValueError: sample 20 has no label")

    def test_port_in_use(self):
        """An error of torch's connections that no other rank is the reason of."""
        with socket.create_server(("", 0)) as taken:
            job = self.launch("--master-port", str(taken.getsockname()[1]))
            self.end(job, 1)
        self.assertSays(job, r"lockstep run: rank 0 failed first: it exited with code 1: .*failed to listen")

    def test_exception_of_all(self):
        """Rank 0 ends right after rank 1, since the launcher waits a moment only."""
        os.mkdir(self.checkpoint)  # torch.load() finds no file
        job = self.launch(script=("--does", "together"))
        self.end(job, 1)
        self.assertSays(job, r"lockstep run: all 2 ranks failed with the same error: IsADirectoryError: ")

    def test_survivor_that_ends_first_is_not_named(self):
        """Rank 1 closes its connections and lives on until rank 0 has ended for want of them."""
        job = self.launch(script=(*ENDLESS, "--rank", "1", "--does", "linger"))
        self.end(job, 1)
        self.assertSays(job, r"RuntimeError: .*gloo/transport/")
        self.assertSays(job, r"lockstep run: rank 1 failed first: it .*; 1 other rank ended after it")

    def test_rank_that_leaves_is_named(self):
        job = self.launch(script=(*ENDLESS, "--rank", "1", "--does", "leave"))
        self.end(job, 1)
        self.assertSays(job, r"lockstep run: rank 1 failed first: it exited with code 0 while the others still needed it")

    @support.exists_if(not support.LEGACY)  # whose timeout can't be changed later
    def test_hung(self):
        """The other waits in gloo until the script's own timeout, and then the one that they waited for is named."""
        job, _ = self.begin(script=(*ENDLESS, "--rank", "1", "--does", "hang"))
        self.end(job, 75)
        self.assertSays(job, r"RuntimeError: .*gloo/transport/.*Timed out")
        self.assertSays(job, r"lockstep run: rank 1 failed first: it did not arrive where the others waited for it")


class Restarts(Job):
    def test_resume_from_the_scripts_checkpoint(self):
        job, pids = self.begin("--max-restarts", "1")
        job.await_output("has trained for 30 s")  # then another start follows (docs/RUN.md, Restarts)
        os.kill(pids[1], signal.SIGKILL)
        self.assertEqual(job.await_output(r"restart (\d) of 1 \(--max-restarts\)")[1], "1")
        job.await_output(r"rank 1 of 2, pid \d+, has begun at step [1-9]\d*0, start 1\n")
        os.kill(job.process.pid, signal.SIGTERM)
        self.end(job, 143)


class OtherTerminals(Job):
    def test_top_has_the_processes(self):
        job, pids = self.begin()
        for rank, pid in enumerate(pids):
            self.assertRegex(self.lockstep("top", job, "--once"),
                             rf"(?m)^{rank} +\S+ +no group .* \d+(M|\.\dG) +\d+\.\d s +{pid} ")
        rows = json.loads(self.lockstep("top", job, "--json"))["ranks"]
        self.assertTrue(all(row["cpu_s"] > 0.1 and row["resident_bytes"] > 1e7 for row in rows), rows)
        self.assertRegex(self.lockstep("inspect", job),
                         rf"rank 1 \(host .*, pid {pids[1]}\): no group\n +thread {pids[1]} ")


if __name__ == "__main__":
    support.main()
