# SPDX-License-Identifier: Apache-2.0
"""PyTorch's client at a server of ours that has a secret: it gets nothing, and the log says why."""
import secrets

import support
from support import environment, program

REFUSED = r"torch client refused: use --torch-store"


class Secret(support.Case):
    def setUp(self):
        self.server, self.port = self.serve("--store-auth=on",
                                            env=environment(LOCKSTEP_STORE_SECRET=secrets.token_hex(32)))

    def test_client_is_refused_and_logged(self):
        client = self.start_client(self.port, "store.set('key', 'value'); print(store.get('key'))")
        self.assertNotEqual(client.wait(), 0, client.said())
        self.assertNotIn("value", client.out)
        self.assertRegex(client.err, r"(?i)reset|closed|recv|broken pipe|failed", client.said())
        line = self.server.await_output(rf"(?m)^.*{REFUSED}.*$")[0]
        self.assertRegex(line, r"127\.0\.0\.1:\d+", "the log does not say who was refused")

    def test_job_with_the_secret_goes_on(self):
        """A torch client at the launcher's own store, while its ranks work."""
        code = ("import os, subprocess, sys\n"
                "where = os.environ['LOCKSTEP_STORE'].rsplit(':', 1)\n"
                "client = ('import torch.distributed as d, datetime; s = d.TCPStore(%r, %s, None, False, '\n"
                "          'datetime.timedelta(seconds=5)); s.set(\"k\", \"v\"); s.get(\"k\")' % (where[0], where[1]))\n"
                "refused = subprocess.run([sys.executable, '-c', client], capture_output=True).returncode\n"
                "assert refused != 0, 'the client was served'\n"
                f"os.execv({program('e2e_rank')!r}, ['e2e_rank', 'init', 'sum'])\n")
        ran = self.run_program([program("lockstep"), "run", "--nproc-per-node", "2", "--", support.sys.executable, "-c",
                                code])
        self.assertEqual(ran.out.count("sum 3 of 2"), 2, ran.said())
        self.assertRegex(ran.out + ran.err, REFUSED)


if __name__ == "__main__":
    support.main()
