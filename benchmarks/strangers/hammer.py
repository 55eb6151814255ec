# SPDX-License-Identifier: Apache-2.0
"""hammer.py FOLDER RATE STORE NETWORK...: comes to every port that somebody listens at in the networks, one connection
after the other: in turns with HTTP, with a greeting of the store's and a wrong proof, and with nothing.

FOLDER/wanted says where, and FOLDER/doing that he does: "nowhere"; "paced", RATE connections a second; "job", as fast
as he can; "elsewhere", as fast, to the port STORE; "end". He looks for ports before each connection, so that he finds
those that are open for a moment. Loopback is not within his reach. At his end he says how often he came to which.
A network is a file to enter it by, such as /run/netns/NAME.
"""
import collections
import ctypes
import os
import socket
import struct
import sys
import time

CLONE_NEWNET = 0x40000000
LISTEN = 10  # a state of TCP
HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n"


def field(value):
    return struct.pack("<Q", len(value)) + value


HELLO = b"\x80" + struct.pack("<I", 1) + field(b"") + field(b"stranger") + field(bytes(32))
WRONG_PROOF = b"\x81" + field(bytes(32))


def enter(network):
    if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns " + network.name)


def asker(path):
    """A socket that asks the kernel for that network's sockets, whatever network this process is in."""
    with open("/proc/self/ns/net") as own, open(path) as network:
        enter(network)
        netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)  # NETLINK_SOCK_DIAG
        enter(own)
    return netlink


def listeners(netlink):
    request = struct.pack("=BBBBI48x", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 1 << LISTEN)
    netlink.send(struct.pack("=IHHII", 16 + len(request), 20, 0x301, 0, 0) + request)  # SOCK_DIAG_BY_FAMILY, a dump
    while True:
        answer = netlink.recv(1 << 16)
        while answer:
            length, kind = struct.unpack_from("=IH", answer)
            if kind != 20:  # its end
                return
            port, address = struct.unpack_from("!H2x4s", answer, 20)
            if address[0] != 127:
                yield socket.inet_ntoa(address), port
            answer = answer[(length + 3) & ~3 :]


def come(place, way):
    with socket.socket() as connection:
        connection.settimeout(0.5)
        # Reset at the end: tens of thousands of ports that linger would slow down himself.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            connection.connect(place)
            if way == 0:
                connection.sendall(HTTP)
                connection.recv(1 << 12)
            elif way == 1:
                connection.sendall(HELLO)
                if connection.recv(1 << 12):
                    connection.sendall(WRONG_PROOF)
        except OSError:  # turned away, or the port has closed
            pass


def main(folder, rate, elsewhere, networks):
    host, port = elsewhere.split(":")
    askers = [asker(path) for path in networks]
    wanted = ""
    counts = collections.Counter()
    seconds = collections.Counter()
    began = due = time.monotonic()
    while wanted != "end":
        now = time.monotonic()
        with open(folder + "/wanted") as file:
            said = file.read()
        if said != wanted:
            seconds[wanted] += now - began
            wanted, began, due = said, now, now
            with open(folder + "/doing.part", "w") as file:
                file.write(said)
            os.rename(folder + "/doing.part", folder + "/doing")
        if wanted == "nowhere" or (wanted == "paced" and now < due):
            time.sleep(0.001)
            continue
        due += 1 / rate
        places = [(host, int(port))] if wanted == "elsewhere" else [at for one in askers for at in listeners(one)]
        for place in places:
            come(place, sum(counts.values()) % 3)
            counts[wanted, "a rank's port" if place[1] not in (29450, int(port)) else "the store"] += 1
    for (where, what), count in sorted(counts.items()):
        print(f"{where}: {count} connections to {what} in {seconds[where]:.1f} s, {count / seconds[where]:.0f} a second")


main(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4:])
