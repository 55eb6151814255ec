# SPDX-License-Identifier: Apache-2.0
"""The measurements of benchmarks/store, of PyTorch's TCPStore: same arguments, same numbers on one line.

The server is in this process, as rank 0 of a job has it, and is the one that this version of torch takes by default.
"""
import datetime
import multiprocessing
import os
import resource
import sys
import time

import torch.distributed as dist

fork = multiprocessing.get_context("fork")
PATIENCE = datetime.timedelta(seconds=60)
VALUE = "12345678"


def serve():
    return dist.TCPStore("127.0.0.1", 0, None, True, PATIENCE, wait_for_workers=False)


def connect(port):
    return dist.TCPStore("127.0.0.1", port, None, False, PATIENCE, wait_for_workers=False)


def percentile(values, fraction):
    return sorted(values)[int(len(values) * fraction)]


class Clients:
    """`body(index, gate, port, *arguments)` in processes of their own; gate() lets all of them on at once.

    They are forked before the server exists: its threads would not be forked with them, but the locks that they hold.
    """

    def __init__(self, count, body, *arguments):
        self.results, self.ready, self.gate = fork.Queue(), fork.Semaphore(0), fork.Event()
        self.port, self.started = fork.Value("i"), fork.Event()
        self.processes = [fork.Process(target=self._run, args=(index, body, arguments)) for index in range(count)]
        for process in self.processes:
            process.start()
        self.server = serve()

    def _run(self, index, body, arguments):
        try:
            self.started.wait()
            self.results.put(body(index, self._pass_gate, self.port.value, *arguments))
        except Exception as error:  # also into the queue: who waits for a result must hear of it
            self.results.put(error)
            self.ready.release()

    def _pass_gate(self):
        self.ready.release()
        self.gate.wait()

    def get_ready(self):
        self.port.value = self.server.port
        self.started.set()
        for _ in self.processes:
            self.ready.acquire()

    def finish(self):
        """Opens the gate. What the clients have returned."""
        self.gate.set()
        rows = [self.results.get() for _ in self.processes]
        for process in self.processes:
            process.join()
        for row in rows:
            if isinstance(row, Exception):
                raise row
        return rows


def ops_client(index, gate, port, operation, count):
    store = connect(port)
    keys = [f"k{index}_{i}" for i in range(64)]
    for key in keys:
        store.set(key, VALUE)
    once = {"set": lambda i: store.set(keys[i & 63], VALUE), "get": lambda i: store.get(keys[i & 63]),
            "add": lambda i: store.add(f"c{index}", 1)}[operation]
    times = []
    gate()
    begun = time.perf_counter()
    for i in range(count):
        at = time.perf_counter()
        once(i)
        times.append(time.perf_counter() - at)
    ended = time.perf_counter()
    if operation == "add":
        assert store.add(f"c{index}", 0) == count
    return begun, ended, percentile(times, 0.5), percentile(times, 0.99)


def ops(operation, clients, count):
    processes = Clients(int(clients), ops_client, operation, int(count))
    processes.get_ready()
    rows = processes.finish()
    seconds = max(row[1] for row in rows) - min(row[0] for row in rows)
    return (f"{int(clients) * int(count) / seconds:.0f} {max(row[2] for row in rows) * 1e6:.1f} "
            f"{max(row[3] for row in rows) * 1e6:.1f}")


def wake_client(_, gate, port, trials):
    store, times = connect(port), []
    gate()
    for i in range(trials):
        store.add("waiting", 1)
        store.get(f"w{i}")
        times.append(time.perf_counter())
    return times


def wake(trials):
    waiter, set_at = Clients(1, wake_client, int(trials)), []
    waiter.get_ready()
    waiter.gate.set()
    store = connect(waiter.server.port)
    for i in range(int(trials)):
        while store.add("waiting", 0) <= i:
            pass
        time.sleep(0.003)  # its get comes right after; when it has reached the server nobody can tell from here
        set_at.append(time.perf_counter())
        store.set(f"w{i}", "1")
    times = [(woken - at) * 1e6 for woken, at in zip(waiter.finish()[0], set_at)]
    return f"{percentile(times, 0.5):.1f} {percentile(times, 0.99):.1f}"


def join_client(_, gate, port, count):
    gate()
    times = [time.perf_counter()]
    store = connect(port)
    times.append(time.perf_counter())
    for name in ("first", "second"):
        if store.add(name, 1) == count:
            store.set(f"go {name}", "1")
        store.wait([f"go {name}"])
        times.append(time.perf_counter())
    return times


def join(clients):
    processes = Clients(int(clients), join_client, int(clients))
    processes.get_ready()
    rows = processes.finish()
    begun, left = min(row[0] for row in rows), max(row[2] for row in rows)
    return (f"{(max(row[1] for row in rows) - begun) * 1e3:.1f} {(left - begun) * 1e3:.1f} "
            f"{(max(row[3] for row in rows) - left) * 1e3:.1f}")


def connections_client(_, gate, port, count):
    begun = time.perf_counter()
    stores = [connect(port) for _ in range(count)]
    connected = time.perf_counter()
    for store in stores:
        if store.add("all", 1) == count:
            store.set("go", "1")
    for store in stores:
        store.wait(["go"])
    times = connected - begun, time.perf_counter() - connected
    gate()  # keeps them open while the memory is looked at
    return times


def resident_mb():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:"))


def connections(count):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    client = Clients(1, connections_client, int(count))
    before = resident_mb()
    client.get_ready()
    after = resident_mb()
    (connect_s, barrier_s), = client.finish()
    return f"{connect_s:.2f} {barrier_s:.2f} {after - before:.1f}"


if __name__ == "__main__":
    print({"ops": ops, "wake": wake, "join": join, "connections": connections}[sys.argv[1]](*sys.argv[2:]), flush=True)
    os._exit(0)  # the server's last clients are gone; its threads have nothing to tidy
