# SPDX-License-Identifier: Apache-2.0
"""Somebody without a job's secret, who reads the packets of one of its hosts and comes to its ports from another.

stranger.py record FILE            keeps in FILE what clients of the store and a rank that connects to another one say,
                                   until the latter has proved itself
stranger.py attack FILES PORT...   comes to each port, "10.77.0.10:29400", in every way that he knows for one of its
                                   kind, in all of them at once; a later file is better than an earlier one. Ports of
                                   loopback are those of launchers and speak as the store's

Of each connection he says "came PORT WAY ADDRESS" once it is there, and what he got, in hex: "challenged PORT WAY
ADDRESS HEX" at the first bytes, "ended PORT WAY ADDRESS HEX" when the other side has ended it. He himself ends none.
"""
import hashlib
import hmac
import pickle
import re
import socket
import struct
import sys
import threading

STORE_PORT = 29400
LOOPBACK, HIS_OWN = "127.0.0.1", "127.0.0.9"
LAST_RANK = 2
WIRE_GREETING = b"lockstep wire 4\n"
HELLO, PROOF, NONCE = 58, 32, 32  # bytes of a rank's greeting
ANOTHER_SECRET = bytes(range(32))
HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n"
RUBBISH = b"\xff" + bytes(i * i % 251 for i in range(200))
TORCH = bytes.fromhex("00cef7853c" "0da2600000")  # VALIDATE, PING


def field(value):
    return struct.pack("<Q", len(value)) + value


def proof(nonce, their_nonce, name, role):
    text = b"lockstep client\0" + nonce + their_nonce + field(name) + field(role)
    return hmac.new(ANOTHER_SECRET, text, hashlib.sha256).digest()


class Flow:
    """What one end of a connection has said, if he was there from its first packet."""

    def __init__(self):
        self.begin, self.parts = None, {}

    def add(self, sequence, is_first, payload):
        if is_first:
            self.begin = sequence + 1
        if payload:
            self.parts[sequence] = payload

    def told(self):
        told = b""
        while self.begin is not None and (part := self.parts.get((self.begin + len(told)) % 2**32)):
            told += part
        return told


def record(path):
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    packets.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    packets.bind(("eth0", 0))
    print("recording", flush=True)
    flows = {}
    while True:
        packet = packets.recv(1 << 17)
        if packet[0] >> 4 != 4 or packet[9] != 6:
            continue
        segment = packet[4 * (packet[0] & 15) : struct.unpack("!H", packet[2:4])[0]]
        source, sink, sequence = struct.unpack("!HHI", segment[:8])
        flow = flows.setdefault((packet[12:20], source, sink), Flow())
        flow.add(sequence, segment[13] & 2, segment[4 * (segment[12] >> 4) :])
        greeting = flow.told()
        if greeting.startswith(WIRE_GREETING) and len(greeting) >= HELLO + PROOF:
            break
    to_store = [flow.told() for (_, _, sink), flow in flows.items() if sink == STORE_PORT]
    from_store = [b"".join(flow.parts.values()) for (_, source, _), flow in flows.items() if source == STORE_PORT]
    with open(path, "wb") as file:
        pickle.dump({"store": next(filter(None, to_store), b""), "rank": greeting, "read": from_store}, file)
    print("recorded", flush=True)


def parts_of_store_hello(told):
    """HELLO's bytes, its nonce, run id and role: an operation, a version, and three values."""
    at, values = 5, []
    for _ in range(3):
        end = at + 8 + struct.unpack_from("<Q", told, at)[0]
        values.append(told[at + 8 : end])
        at = end
    run_id, role, nonce = values
    return told[:at], nonce, run_id, role


class Attack(threading.Thread):
    printing = threading.Lock()

    def __init__(self, port, way, first, answer=None):
        super().__init__()
        self.port, self.way, self.first, self.answer = port, way, first, answer

    def say(self, what, got):
        with self.printing:
            print(what, self.port, self.way, "%s:%d" % self.connection.getsockname(), got.hex(), flush=True)

    def run(self):
        host, port = self.port.split(":")
        self.connection = socket.create_connection((host, int(port)), source_address=(HIS_OWN if host == LOOPBACK else "", 0))
        got = b""
        self.say("came", got)
        try:
            self.connection.sendall(self.first)
            while more := self.connection.recv(1 << 16):
                if not got:
                    self.say("challenged", more)
                    if self.answer:
                        self.connection.sendall(self.answer(more))
                got += more
        except ConnectionError:  # ended before all was read, on either side
            pass
        self.say("ended", got)


def at_store(port, known):
    hello, nonce, run_id, role = parts_of_store_hello(known["store"])

    def wrong_proof(challenge):  # a status, the number of values, the length of one: the nonce
        return b"\x81" + field(proof(nonce, challenge[-NONCE:], run_id, role))

    return [
        Attack(port, "torch", TORCH),
        Attack(port, "greeting", hello),
        Attack(port, "wrong", hello, wrong_proof),
        Attack(port, "replay", known["store"]),
    ]


def at_rank(port, known):
    listening = b"%d" % (int(port.split(":")[0].split(".")[-1]) - 10)
    tickets = [re.search(rb"([0-9a-f]{32}) %s" % re.escape(port.encode()), read) for read in known["read"]]
    ticket = next(found[1] for found in tickets if found)
    nonce = bytes(NONCE)
    hello = WIRE_GREETING + b"%010d" % LAST_RANK + nonce

    def wrong_proof(challenge):
        return proof(nonce, challenge, ticket, b"rank %d to rank %s" % (LAST_RANK, listening))

    return [
        Attack(port, "greeting", hello),
        Attack(port, "wrong", hello, wrong_proof),
        Attack(port, "replay", known["rank"]),
    ]


def attack(paths, ports):
    known = {}
    for path in paths:
        with open(path, "rb") as file:
            known.update({what: told for what, told in pickle.load(file).items() if told})
    attacks = []
    for port in ports:
        attacks += [Attack(port, "silence", b""), Attack(port, "http", HTTP), Attack(port, "rubbish", RUBBISH)]
        is_store = port.startswith(LOOPBACK) or port.endswith(":%d" % STORE_PORT)
        attacks += (at_store if is_store else at_rank)(port, known)
    for one in attacks:
        one.start()
    for one in attacks:
        one.join()


if sys.argv[1] == "record":
    record(sys.argv[2])
else:
    attack(sys.argv[2].split(","), sys.argv[3:])
