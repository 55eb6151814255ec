# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training by PyTorch over gloo, whose processes meet through our server."""
import re
import sys

import support
from support import HERE, environment, program

SCRIPT = f"{HERE}/programs/ddp.py"
LINE = r"(?m)^(?:\[rank \d\] )?rank (\d) of (\d), (own store|agent's store): weights ([0-9a-f]{64})$"


class DdpCase(support.Case):
    def train_by_hand(self, port, agent_store, world=2):
        """The script once per rank, as a shell would start it. Returns the hash of the weights, equal on all ranks."""
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": world}
        if agent_store:
            shared.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT=0)
        ranks = [self.start([sys.executable, SCRIPT], environment(RANK=rank, **shared)) for rank in range(world)]
        for rank in ranks:
            if rank.wait() != 0:
                self.fail("\n".join(each.said() for each in ranks))
        return self.weights("".join(rank.out for rank in ranks), world, "agent's store" if agent_store else "own store")

    def weights(self, output, world, where):
        lines = re.findall(LINE, output)
        self.assertEqual(sorted(line[:3] for line in lines), [(str(rank), str(world), where) for rank in range(world)],
                         output)
        self.assertEqual(len({line[3] for line in lines}), 1, f"the ranks' weights differ: {output}")
        return lines[0][3]

    def reference(self):
        """What torch's own store yields."""
        return self.train_by_hand(support.free_port(), agent_store=False)


class Ddp(DdpCase):
    def test_weights_are_those_of_torchs_own_store(self):
        _, port = self.serve()
        self.assertEqual(self.train_by_hand(port, agent_store=True), self.reference())


class LockstepRun(DdpCase):
    def lockstep_run(self, *flags, script=(), code=0):
        return self.run_program([program("lockstep"), "run", *flags, "--nproc-per-node", "2", "--", sys.executable,
                                 SCRIPT, *script], environment(), code)

    def test_script_runs_unchanged(self):
        ran = self.lockstep_run()
        self.assertEqual(self.weights(ran.out, 2, "own store"), self.reference())

    def test_script_runs_unchanged_over_our_store(self):
        ran = self.lockstep_run("--torch-store")
        self.assertEqual(self.weights(ran.out, 2, "agent's store"), self.reference())

    def test_failed_rank_is_named(self):
        for flags in ((), ("--torch-store",)):
            ran = self.lockstep_run(*flags, script=("--fail-rank", "1"), code=7)
            self.assertRegex(ran.err, r"rank 1 failed first: it exited with code 7", ran.said())


if __name__ == "__main__":
    support.main()
