# SPDX-License-Identifier: Apache-2.0
"""Tests that PyTorch brings along of its own process groups, whose processes meet through our server.

torch.testing holds them as classes; here they are told another place to meet, nothing else. (Those of the store itself
are not in the package.)
"""
import os
import sys
import tempfile
import types
import unittest

import support

# Debian's package wants this module for its tests and does not bring it.
if "expecttest" not in sys.modules:
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
    sys.modules["expecttest"].ACCEPT = False
if __name__ == "__main__":  # the ranks run this file again, with what is set here
    folder = tempfile.TemporaryDirectory(prefix="lockstep-torch-suite-")
    for part in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(folder.name, part))
    os.environ.update(support.environment(
        BACKEND="gloo", WORLD_SIZE=3, TEMP_DIR=folder.name, LOCKSTEP_BIN=os.environ["LOCKSTEP_BIN"],
        TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT=0))

from torch.testing._internal.distributed import distributed_test  # noqa: E402

# What makes much use of the store: groups made and left, objects handed round, barriers that expire.
CHOSEN = """
    test_barrier test_barrier_group test_barrier_timeout_group test_monitored_barrier_gloo
    test_monitored_barrier_gloo_rank_0_timeout test_monitored_barrier_failure_order test_broadcast_object_list
    test_all_gather_object_default_pg test_all_reduce_sum test_send_recv
""".split()
Base = distributed_test.DistributedTest._DistTestBase


class ThroughOurServer(distributed_test.TestDistBackend, Base):
    def setUp(self):
        self.case = support.Case()
        self.addCleanup(self.case.doCleanups)
        _, port = self.case.serve()
        # The ranks are started from here and inherit it. 2.15 takes only the server of MASTER_PORT for an agent's.
        os.environ.update(COMPAT_PORT=str(port), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        super().setUp()
        self._spawn_processes()

    @property
    def init_method(self):
        return f"tcp://127.0.0.1:{os.environ['COMPAT_PORT']}"


not_run = types.SimpleNamespace(__wrapped__=None)  # setUp of 2.15 asks a test that is not chosen what it wraps
for name in [name for name in dir(Base) if name.startswith("test") and name not in CHOSEN]:
    setattr(ThroughOurServer, name, not_run)
missing = [name for name in CHOSEN if not hasattr(Base, name)]
if __name__ == "__main__":
    if missing:
        sys.exit(f"torch {support.torch.__version__} does not bring {missing}; take them out of CHOSEN")
    support.main()
