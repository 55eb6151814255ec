# SPDX-License-Identifier: Apache-2.0
"""A stranger on a host of his own, who stands between the last rank of a job and the store.

stranger.py record FILE   passes on what they say, sends that rank to himself where rank 0 is, and keeps both greetings
stranger.py start FILE    passes it on, but attacks before that rank learns where the others are: they wait for it
stranger.py later FILE    attacks the store

An attack comes to a port in four ways: he replays the greeting of FILE, proves what is wrong, sends rubbish, and says
nothing. Each prints "PORT WAY: " and what he got, in hex.
"""
import os
import pickle
import re
import socket
import sys
import threading

STORE = ("10.77.0.10", 29400)
OWN = "10.77.0.13"
HELLO, PROOF = 52, 32  # bytes of a rank's greeting
held = []  # connections on which he says nothing, to the end


def passed_on(source, sink, change):
    try:
        while data := source.recv(1 << 16):
            sink.sendall(change(data))
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # either has ended
        sink.close()


def reached(target):
    """A rank that comes before the store tries again and again too."""
    while True:
        try:
            return socket.create_connection(target)
        except ConnectionRefusedError:
            pass


def relay(port, target, watch):
    """`watch` makes for each connection what changes the client's bytes, and what changes the server's."""
    listener = socket.create_server((OWN, port))

    def serve():
        while True:
            client = listener.accept()[0]
            server = reached(target)
            to_server, to_client = watch()
            threading.Thread(target=passed_on, args=(client, server, to_server), daemon=True).start()
            threading.Thread(target=passed_on, args=(server, client, to_client), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def place_in(data, host):
    """Where that host's rank listens: a value of the store, its length (8 bytes, least first) before a ticket."""
    address = "10.77.0.%d" % (10 + host)
    found = re.search(rb"(.)\0{7}([0-9a-f]+ %s:\d+)" % re.escape(address.encode()), data, re.DOTALL)
    return (address, int(found[2][: found[1][0]].split(b":")[1])) if found else None


def record(path):
    greetings = {"store": [], "rank": b""}

    def keep(data):
        greetings["rank"] += data[: HELLO + PROOF - len(greetings["rank"])]
        if len(greetings["rank"]) == HELLO + PROOF and not os.path.exists(path):
            with open(path + ".part", "wb") as file:
                pickle.dump(greetings, file)
            os.rename(path + ".part", path)
        return data

    state = {"connections": 0, "rank 0": None}

    def watch():
        state["connections"] += 1
        is_first = state["connections"] == 1

        def from_client(data):
            if is_first:
                greetings["store"].append(data)
            return data

        def from_store(data):
            place = place_in(data, 0)
            if place and not state["rank 0"]:
                state["rank 0"] = place
                relay(place[1], place, lambda: (keep, lambda same: same))
            return data.replace(b"10.77.0.10:", OWN.encode() + b":") if place else data

        return from_client, from_store

    relay(STORE[1], STORE, watch)


def rest_of(connection):
    got = b""
    try:
        while data := connection.recv(1 << 16):
            got += data
    except ConnectionResetError:
        pass
    return got


def say(port, way, got):
    print(f"{port} {way}: {got.hex()}", flush=True)


def attack(port, place, hello, proof, more):
    silent = socket.create_connection(place)
    held.append(silent)
    wrong = bytes(proof[:-1]) + bytes([proof[-1] ^ 1])
    for way, first, then in (
        ("replay", hello, proof + more),
        ("wrong proof", hello, wrong),
        ("rubbish", b"GET / HTTP/1.1\r\n\r\n" + bytes(100), b""),
    ):
        connection = socket.create_connection(place)
        connection.sendall(first)
        got = connection.recv(1 << 16) if then else b""
        connection.sendall(then)
        say(port, way, got + rest_of(connection))
    silent.setblocking(False)
    try:
        say(port, "silence", silent.recv(1 << 16))
    except BlockingIOError:  # he is still waited for, and has got nothing
        say(port, "silence", b"")


def attack_store(greetings):
    hello, proof, *more = greetings["store"]
    attack("store", STORE, hello, proof, b"".join(more))


def start(greetings):
    heard = bytearray()
    attacked = threading.Event()

    def watch():
        def from_store(data):
            heard.extend(data)
            places = [place_in(heard, host) for host in (0, 1)]
            if all(places) and not attacked.is_set():
                attacked.set()
                attack_store(greetings)
                for rank, place in enumerate(places):
                    greeting = greetings["rank"]
                    attack(f"rank {rank}", place, greeting[:HELLO], greeting[HELLO:], b"")
            return data

        return lambda same: same, from_store

    relay(STORE[1], STORE, watch)


mode, path = sys.argv[1:]
if mode == "record":
    record(path)
else:
    with open(path, "rb") as file:
        known = pickle.load(file)
    (start if mode == "start" else attack_store)(known)
if mode != "later":
    print("listening", flush=True)
    threading.Event().wait()
