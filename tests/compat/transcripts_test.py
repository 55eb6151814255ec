# SPDX-License-Identifier: Apache-2.0
"""The transcripts of tests/golden, sent over sockets: to our server, and with COMPAT_SERVER=torch to torch's own.

They say what PyTorch does. This holds them to it: torch's server must give every answer that is written there, but for the
conversations that say "PyTorch differs". Of torch's two eras that is the one of the version at hand.
"""
import os
import re
import select
import socket
import struct

import support
from support import LEGACY, dist

REFERENCE = os.environ.get("COMPAT_SERVER") == "torch"
GOLDEN = os.path.join(support.HERE, "..", "golden")
PROBES = {  # a client that asks something, and how long the answer is
    "current": (bytes.fromhex("00cef7853c") + b"\x0d" + struct.pack("<I", 7), 4),
    "legacy": (b"\x06", 8),
}


def conversations(dialect):
    """[(name, whether torch differs, [[client, verb, line, bytes]])]"""
    found, remarks, steps = [], "", None
    with open(os.path.join(GOLDEN, dialect + ".txt"), encoding="utf-8") as file:
        for line in file.read().splitlines():
            if line.startswith("#"):
                remarks += line
            elif line.startswith("    "):
                steps[-1][3] += bytes.fromhex(line)
            elif re.match("(conversation|exchange) ", line):
                kind, name = line.split(" ", 1)
                steps = []
                if kind == "conversation":
                    found.append((name, "PyTorch differs" in remarks, steps))
            elif not line:
                remarks = ""
            elif not line.startswith("dialect "):
                client, verb = line.split(" ")[:2]
                steps.append([client, verb, line, b""])
    return found


class Player:
    """The clients of one conversation."""

    def __init__(self, case, port, dialect):
        self.case, self.port, self.dialect, self.sockets = case, port, dialect, {}

    def connect(self):
        client = socket.create_connection(("127.0.0.1", self.port), support.PATIENCE)
        self.case.addCleanup(client.close)
        return client

    @staticmethod
    def receive(client, size):
        received = b""
        while len(received) < size:
            more = client.recv(size - len(received))
            if not more:
                break
            received += more
        return received

    @staticmethod
    def has_bytes(client):
        """Something to read at this moment, which is not its end."""
        if not select.select([client], [], [], 0)[0]:
            return False
        try:
            return client.recv(1, socket.MSG_PEEK) != b""
        except ConnectionResetError:
            return False

    def settle(self):
        """Until the server has served what was sent: who came to it later has his answer."""
        request, size = PROBES[self.dialect]
        with self.connect() as probe:
            probe.sendall(request)
            self.case.assertEqual(len(self.receive(probe, size)), size, "the server has closed another client")

    def play(self, name, verb, line, data):
        if name not in self.sockets:
            self.sockets[name] = self.connect()
        client = self.sockets[name]
        if verb == ">":
            client.sendall(data)
            self.settle()
        elif verb == "<":
            self.case.assertEqual(self.receive(client, len(data)).hex(" "), data.hex(" "), line)
        elif verb == "silent":
            self.case.assertFalse(self.has_bytes(client), line)
        elif verb == "closed":
            try:
                self.case.assertEqual(client.recv(1), b"", line)
            except ConnectionResetError:
                pass  # it closed without having read the rest
        else:
            self.case.fail(f"what is '{verb}' in '{line}'?")


class Transcripts(support.Case):
    def play(self, dialect):
        played = 0
        for name, differs, steps in conversations(dialect):
            if REFERENCE and differs:
                continue
            with self.subTest(name, dialect=dialect):
                if REFERENCE:
                    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
                    port = server.port
                else:
                    server, port = self.serve()
                player = Player(self, port, dialect)
                for step in steps:
                    player.play(*step)
                for left, client in player.sockets.items():
                    self.assertFalse(player.has_bytes(client), f"client {left} was sent more than is written there")
            played += 1
        self.assertGreater(played, 5)

    # A torch at hand serves the dialect of its era alone.
    if not (REFERENCE and LEGACY):
        def test_current(self):
            self.play("current")

    if not (REFERENCE and not LEGACY):
        def test_legacy(self):
            self.play("legacy")


if __name__ == "__main__":
    support.main()
