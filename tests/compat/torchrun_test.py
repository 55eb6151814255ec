# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.run starting programs of ours, and meeting at a server of ours.

-r 1 -t 1 (stdout into files and to the console) is no taste: 1.13's fails on Python 3.11 with any other choice.
"""
import re
import sys

import ddp_test
import support
from support import LEGACY, environment, program

LOG_PREFIX = r"(?m)^\[default(\d)\]: ?"
TWO_RANKS = """Let's use 2 ranks!
In Model: input size [15, 5] output size [15, 2]
In Model: input size [15, 5] output size [15, 2]
Outside: input size [30, 5] output_size [30, 2]
In Model: input size [15, 5] output size [15, 2]
In Model: input size [15, 5] output size [15, 2]
Outside: input size [30, 5] output_size [30, 2]
In Model: input size [15, 5] output size [15, 2]
In Model: input size [15, 5] output size [15, 2]
Outside: input size [30, 5] output_size [30, 2]
In Model: input size [5, 5] output size [5, 2]
In Model: input size [5, 5] output size [5, 2]
Outside: input size [10, 5] output_size [10, 2]
"""


def static(port=None):
    return ["--master_addr", "127.0.0.1", "--master_port", port or support.free_port()]


def c10d(port=None, *conf):
    """Torch's agent hosts the rendezvous, or somebody else at `port` does."""
    where = ["--rdzv_endpoint", f"127.0.0.1:{port or support.free_port()}"]
    # Torch looks for the endpoint's name among this host's. Told to, it doesn't have to guess who hosts.
    return ["--rdzv_backend", "c10d", "--rdzv_id", "job", *where, "--rdzv_conf", f"is_host={0 if port else 1}"]


class TorchrunCase(ddp_test.DdpCase):
    def torchrun(self, rendezvous, command, code=0, **variables):
        """Two ranks. LOCAL_ADDR is what 2.x tells its workers the store is at; the host's own name may mean nothing."""
        flags = ["--nnodes", "1", "--nproc_per_node", "2", "-r", "1", "-t", "1", "--monitor_interval", "0.1"]
        if not LEGACY:
            flags += ["--local_addr", "127.0.0.1"]
        return self.run_program([sys.executable, "-m", "torch.distributed.run", *flags, *rendezvous, *command],
                                environment(**variables), code, timeout=2 * support.PATIENCE)

    def lines_of(self, ran, rank):
        return "".join(f"{line.split(':', 1)[1]}\n" for line in ran.out.splitlines()
                       if line.startswith(f"[default{rank}]:"))

    def tutorial(self, rendezvous, agent_store, **variables):
        ran = self.torchrun(rendezvous, ["--no_python", program("01_tutorial")], **variables)
        self.assertEqual(self.lines_of(ran, 0), TWO_RANKS, ran.said())
        self.assertEqual(self.lines_of(ran, 1), "", ran.said())
        for rank in (0, 1):
            self.assertRegex(ran.err, rf"rank {rank}/2 \(local {rank}/2\) from torchrun, ", ran.said())
        # Rank 0 says whose store it met the others through, because that one has no secret.
        self.assertEqual("lies in torchrun's store at " in ran.err, agent_store, ran.said())

    def agent_store_of(self, rendezvous, **variables):
        """What the agent says to its workers."""
        ran = self.torchrun(rendezvous, ["--no_python", "/usr/bin/env"], **variables)
        return set(re.findall(r"TORCHELASTIC_USE_AGENT_STORE=(\w+)", ran.out))


class Tutorial(TorchrunCase):
    """01_tutorial, a C++ program that was built once and knows nothing of torchrun."""

    def test_static_rendezvous_with_the_agents_store(self):
        self.assertEqual(self.agent_store_of(static()), {"True"})
        self.tutorial(static(), agent_store=True)

    def test_c10d_rendezvous(self):
        self.assertEqual(self.agent_store_of(c10d()), {"False" if LEGACY else "True"})
        self.tutorial(c10d(), agent_store=not LEGACY)

    @support.exists_if(not LEGACY)  # 1.13's agent shares none here: test_c10d_rendezvous
    def test_c10d_rendezvous_without_the_agents_store(self):
        off = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1}
        self.assertEqual(self.agent_store_of(c10d(), **off), {"False"})
        self.tutorial(c10d(), agent_store=False, **off)

    def test_c10d_rendezvous_at_our_server(self):
        _, port = self.serve()
        self.tutorial(c10d(port), agent_store=not LEGACY)


class Failure(TorchrunCase):
    def test_rank_that_exits_is_named(self):
        """By the agent, with its exit code; and by the rank that was left waiting for it."""
        for rendezvous in (static, c10d):
            # Rank 0 lets the agent's SIGTERM pass: it may come before it has noticed anything.
            ran = self.torchrun(rendezvous(), ["--no_python", program("e2e_rank"), "ignore:15@0", "init", "sum",
                                               "exit:7@1", "loop"], code=1)
            self.assertEqual(ran.out.count("sum 3 of 2"), 2, ran.said())
            self.assertRegex(ran.err, r"rank +: 1 \(local_rank: 1\)\s+exitcode +: 7 ", ran.said())
            self.assertRegex(ran.err, r"lockstep rank 0\].*rank 1 .*(ended|exited|left|lost|gone)", ran.said())

    def test_rank_that_is_killed_is_named(self):
        ran = self.torchrun(c10d(), ["--no_python", program("e2e_rank"), "init", "sum", "raise:9@1", "loop"], code=1)
        self.assertRegex(ran.err, r"rank +: 1 \(local_rank: 1\)\s+exitcode +: -9 ", ran.said())


class Python(TorchrunCase):
    """Torch's launcher, torch's program, and our server as the place where agents meet."""

    def test_c10d_rendezvous_at_our_server(self):
        _, port = self.serve()
        ran = self.torchrun(c10d(port), [ddp_test.SCRIPT])
        weights = self.weights(re.sub(LOG_PREFIX, "", ran.out), 2, "own store" if LEGACY else "agent's store")
        self.assertEqual(weights, self.reference())

    def test_two_agents_meet_at_our_server(self):
        _, port = self.serve()
        flags = ["-r", "1", "-t", "1", "--nnodes", "2", "--nproc_per_node", "1", *c10d(port)]
        if not LEGACY:
            flags += ["--local_addr", "127.0.0.1"]
        agents = [self.start([sys.executable, "-m", "torch.distributed.run", *flags, ddp_test.SCRIPT], environment())
                  for _ in range(2)]
        for agent in agents:
            if agent.wait(2 * support.PATIENCE) != 0:
                self.fail("\n".join(each.said() for each in agents))
        output = re.sub(LOG_PREFIX, "", "".join(agent.out for agent in agents))
        weights = self.weights(output, 2, "own store" if LEGACY else "agent's store")
        self.assertEqual(weights, self.reference())


if __name__ == "__main__":
    support.main()
