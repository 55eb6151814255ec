# SPDX-License-Identifier: Apache-2.0
"""Every operation of PyTorch's TCPStore client, against our server.

COMPAT_SERVER=torch runs them against torch's own server: what passes there too is how the reference behaves, what is
left out there is where ours means to be better, and says so.
"""
import datetime
import gc
import os
import signal
import socket
import struct
import threading

import support
from support import LEGACY, dist, exists_if

REFERENCE = os.environ.get("COMPAT_SERVER") == "torch"
SHORT = datetime.timedelta(milliseconds=200)  # for waits that shall end by their timeout
LONG = datetime.timedelta(seconds=support.PATIENCE)
# What an expired wait raises: DistStoreError in later versions, which is a RuntimeError.
EXPIRED = RuntimeError


def better_than_reference(why):
    """`why` is what torch's own server does instead."""
    assert why
    return exists_if(not REFERENCE)


def needs(method):
    """For operations that came after 1.13."""
    return exists_if(hasattr(dist.TCPStore, method))


class StoreCase(support.Case):
    def setUp(self):
        if REFERENCE:
            self.server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            self.port = self.server.port
        else:
            self.server, self.port = self.serve()
        self.store = self.client()

    def tearDown(self):
        # Before the server is gone: 1.13's clients spin or abort without it.
        del self.store
        gc.collect()

    def client(self, timeout=support.PATIENCE, **arguments):
        return self.connect(self.port, timeout, **arguments)

    def later(self, function, *arguments):
        """Runs it in a thread; the result of a call of what is returned is its result."""
        result = []
        thread = threading.Thread(target=lambda: result.append(function(*arguments)), daemon=True)
        thread.start()

        def join():
            thread.join(support.PATIENCE)
            self.assertFalse(thread.is_alive(), "a call that should have ended still waits")
            self.assertTrue(result, "the call in the thread has failed, see above")
            return result[0]
        return join

    def assert_dead(self, store):
        """The server has closed this client's connection, or will at the next word."""
        with self.assertRaises(RuntimeError):
            for _ in range(2):
                store.add("is anybody there", 1)

    def assert_serves(self):
        """The server is well, seen by a new client."""
        store = self.client()
        store.set("well", "yes")
        self.assertEqual(store.get("well"), b"yes")


class SetGet(StoreCase):
    def test_value_comes_back(self):
        self.store.set("key", "value")
        self.assertEqual(self.store.get("key"), b"value")
        self.assertEqual(self.client().get("key"), b"value")

    def test_last_write_counts(self):
        for value in ("one", "", "three"):
            self.store.set("key", value)
            self.assertEqual(self.store.get("key"), value.encode())

    def test_bytes_are_bytes(self):
        for value in ("a\0b", "\u00e4\u20ac\U0001f600", "\r\n\t", "\0"):
            self.store.set(f"key of {value!r}", value)
            self.assertEqual(self.store.get(f"key of {value!r}"), value.encode())

    def test_keys_of_any_text(self):
        keys = ["", "/", "//", "a/b", "init/", "a\0b", "\u00e4", " "]
        for number, key in enumerate(keys):
            self.store.set(key, str(number))
        for number, key in enumerate(keys):
            self.assertEqual(self.store.get(key), str(number).encode(), f"key {key!r}")

    def test_every_size_of_value(self):
        for size in (0, 1, 1439, 1440, 1441, 65535, 65536, 1 << 20, 8 << 20):
            value = os.urandom(size // 2 + 1).hex()[:size]
            self.store.set("big", value)
            self.assertEqual(self.store.get("big"), value.encode(), f"{size} bytes")

    @better_than_reference("1.13's has no limits")
    def test_too_big_a_value_costs_one_client_only(self):
        waiter = self.client()
        got = self.later(waiter.get, "key")
        with self.assertRaises(RuntimeError):
            self.store.set("big", "x" * ((8 << 20) + 1))
            self.store.get("big")
        other = self.client()
        other.set("key", "value")
        self.assertEqual(got(), b"value")

    @better_than_reference("1.13's has no limits")
    def test_too_long_a_key_costs_one_client_only(self):
        with self.assertRaises(RuntimeError):
            self.store.set("k" * 9000, "value")
            self.store.add("counter", 1)
        self.assert_serves()

    def test_long_key(self):
        key = "k" * 8191  # and the "/" that the client puts before it
        self.store.set(key, "value")
        self.assertEqual(self.store.get(key), b"value")

    def test_get_waits_for_the_key(self):
        got = self.later(self.store.get, "key")
        self.client().set("key", "value")
        self.assertEqual(got(), b"value")

    def test_get_of_a_key_that_never_comes(self):
        store = self.client(timeout=1)
        with self.assertRaises(EXPIRED):
            store.get("never")
        self.assert_serves()

    def test_many_keys(self):
        for number in range(5000):
            self.store.set(f"key{number}", str(number))
        for number in range(0, 5000, 97):
            self.assertEqual(self.store.get(f"key{number}"), str(number).encode())
        self.assertEqual(self.store.num_keys(), 5000)


class Add(StoreCase):
    def test_sums(self):
        self.assertEqual([self.store.add("n", delta) for delta in (5, -7, 0, 1 << 40)],
                         [5, -2, -2, (1 << 40) - 2])

    def test_sum_is_decimal_text(self):
        self.store.add("n", 35)
        self.assertEqual(self.store.get("n"), b"35")
        self.store.add("n", -36)
        self.assertEqual(self.store.get("n"), b"-1")

    def test_adds_to_text_that_is_a_number(self):
        self.store.set("n", "40")
        self.assertEqual(self.store.add("n", 2), 42)

    def test_extremes(self):
        self.assertEqual(self.store.add("max", 2**63 - 1), 2**63 - 1)
        self.assertEqual(self.store.add("min", -(2**63)), -(2**63))

    def test_no_number_costs_one_client_only(self):
        self.store.set("text", "no number")
        bad = self.client()
        with self.assertRaises(RuntimeError):
            bad.add("text", 1)
        self.assertEqual(self.store.get("text"), b"no number")

    @better_than_reference("the sum wraps around")
    def test_overflow_costs_one_client_only(self):
        self.store.add("n", 2**63 - 1)
        bad = self.client()
        with self.assertRaises(RuntimeError):
            bad.add("n", 1)
        self.assertEqual(self.store.add("n", 0), 2**63 - 1)

    def test_wakes_a_waiter(self):
        got = self.later(self.store.get, "n")
        self.client().add("n", 3)
        self.assertEqual(got(), b"3")


class CompareSet(StoreCase):
    def test_the_four_cases(self):
        self.assertEqual(self.store.compare_set("key", "wrong", "new"), b"wrong")  # absent, and something expected
        self.assertEqual(self.store.num_keys(), 0)
        self.assertEqual(self.store.compare_set("key", "", "first"), b"first")     # absent, and nothing expected
        self.assertEqual(self.store.compare_set("key", "wrong", "new"), b"first")  # another value
        self.assertEqual(self.store.compare_set("key", "first", "second"), b"second")
        self.assertEqual(self.store.get("key"), b"second")

    def test_one_of_many_wins(self):
        results = [self.later(self.client().compare_set, "leader", "", str(number)) for number in range(8)]
        winners = {join() for join in results}
        self.assertEqual(winners, {self.store.get("leader")})

    @better_than_reference("1.13's does not wake waiters here")
    def test_wakes_a_waiter(self):
        got = self.later(self.store.get, "key")
        other = self.client()
        self.assertEqual(other.compare_set("key", "other", "value"), b"other")  # stores nothing: wakes nobody
        self.assertEqual(other.compare_set("key", "", "value"), b"value")
        self.assertEqual(got(), b"value")


class Wait(StoreCase):
    def test_for_what_is_there(self):
        self.store.set("a", "1")
        self.store.set("b", "1")
        self.store.wait(["a", "b"])
        self.store.wait(["a", "a", "b"], LONG)

    def test_until_all_have_come(self):
        waited = self.later(self.store.wait, ["a", "b", "c"], LONG)
        other = self.client()
        for key in ("c", "a", "b"):
            other.set(key, "1")
        waited()
        self.assertEqual(self.store.num_keys(), 3)

    def test_same_key_twice(self):
        waited = self.later(self.store.wait, ["a", "a"], LONG)
        self.client().set("a", "1")
        waited()
        self.store.set("b", "after it the stream is in step")
        self.assertEqual(self.store.get("b"), b"after it the stream is in step")

    def test_many_waiters_of_one_key(self):
        clients = [self.client() for _ in range(32)]
        values = [self.later(client.get, "go") for client in clients]
        self.store.set("go", "now")
        self.assertEqual([join() for join in values], [b"now"] * 32)
        self.assertEqual([client.add("n", 1) for client in clients], list(range(1, 33)))

    def test_expires(self):
        store = self.client()
        with self.assertRaises(EXPIRED):
            store.wait(["never"], SHORT)
        self.assert_serves()

    def test_expires_when_only_some_have_come(self):
        store = self.client()
        store.set("a", "1")
        with self.assertRaises(EXPIRED):
            store.wait(["a", "never"], SHORT)

    def test_default_timeout(self):
        store = self.client()
        store.set_timeout(SHORT)
        self.assertEqual(store.timeout, SHORT)
        # 1.13 cuts the socket's timeout to whole seconds, and 0 would mean none: the wait takes its own in milliseconds.
        with self.assertRaises(EXPIRED):
            store.wait(["never"])

    def test_key_that_was_deleted_again_is_missing(self):
        self.store.set("key", "1")
        self.store.delete_key("key")
        with self.assertRaises(EXPIRED):
            self.client().wait(["key"], SHORT)

    @exists_if(LEGACY)  # later clients cancel their wait
    @better_than_reference("answers, and the late reply to the wait becomes part of a later one")
    def test_poisoned_stream_is_closed(self):
        """1.13's client does not take back a wait that has expired. Its next reply could be the old wait's."""
        store = self.client()
        with self.assertRaises(EXPIRED):
            store.wait(["late"], SHORT)
        with self.assertRaises(RuntimeError):
            store.add("n", 42)
        self.client().set("late", "1")
        self.assertEqual(self.client().add("n", 1), 1)  # the 42 was refused, not carried out unseen
        self.server.await_output(r"closed 127\.0\.0\.1:\d+: .*WAIT")

    @exists_if(not LEGACY)  # 1.13's does not cancel, see above
    def test_cancelled_wait_leaves_the_stream_in_step(self):
        store = self.client()
        for _ in range(20):
            with self.assertRaises(EXPIRED):
                store.wait(["late"], datetime.timedelta(milliseconds=10))
        self.client().set("late", "1")
        self.assertEqual(store.add("n", 42), 42)
        self.assertEqual(store.get("late"), b"1")


class Delete(StoreCase):
    def test_says_whether_there_was_one(self):
        self.store.set("key", "1")
        self.assertTrue(self.store.delete_key("key"))
        self.assertFalse(self.store.delete_key("key"))
        self.assertFalse(self.store.delete_key("never"))

    def test_counts(self):
        counts = [self.store.num_keys()]
        for key in ("a", "b"):
            self.store.set(key, "1")
            counts.append(self.store.num_keys())
        self.store.delete_key("a")
        counts.append(self.store.num_keys())
        self.assertEqual(counts, [0, 1, 2, 1])

    def test_may_come_again(self):
        self.store.set("key", "1")
        self.store.delete_key("key")
        got = self.later(self.client().get, "key")
        self.store.set("key", "2")
        self.assertEqual(got(), b"2")


class Prefix(StoreCase):
    def test_parts_do_not_meet(self):
        one, two = (dist.PrefixStore(name, self.store) for name in ("one", "two"))
        one.set("key", "1")
        two.set("key", "2")
        self.assertEqual((one.get("key"), two.get("key")), (b"1", b"2"))
        self.assertEqual(self.store.get("one/key"), b"1")
        self.assertEqual((one.add("n", 1), one.add("n", 1), two.add("n", 1)), (1, 2, 1))

    def test_in_a_prefix(self):
        inner = dist.PrefixStore("inner", dist.PrefixStore("outer", self.store))
        inner.set("key", "value")
        self.assertEqual(self.client().get("outer/inner/key"), b"value")

    def test_every_operation(self):
        store = dist.PrefixStore("job", self.store)
        self.assertEqual(store.compare_set("leader", "", "me"), b"me")
        store.wait(["leader"], LONG)
        self.assertEqual(store.num_keys(), 1)
        self.assertTrue(store.delete_key("leader"))
        with self.assertRaises(EXPIRED):
            store.wait(["leader"], SHORT)

    def test_waits_across_clients(self):
        got = self.later(dist.PrefixStore("job", self.client()).get, "key")
        dist.PrefixStore("job", self.store).set("key", "value")
        self.assertEqual(got(), b"value")


class ManyClients(StoreCase):
    def test_processes_share_a_counter(self):
        code = "print(sorted(store.add('shared', 1) for _ in range(500)))"
        clients = [self.start_client(self.port, code) for _ in range(4)]
        for client in clients:
            self.assertEqual(client.wait(), 0, client.said())
        sums = [int(number) for client in clients for number in client.out.strip("[]\n").split(", ")]
        self.assertEqual(sorted(sums), list(range(1, 2001)), "each sum is seen once, by one of them")
        self.assertEqual(self.store.add("shared", 0), 2000)

    def test_two_hundred_clients_meet(self):
        clients = [self.client() for _ in range(200)]
        self.assertEqual(clients[0].add("arrived", 0), 0)
        self.assertEqual([client.add("arrived", 1) for client in clients], list(range(1, 201)))
        waits = [self.later(client.get, "go") for client in clients]
        self.store.set("go", "all")
        self.assertEqual({join() for join in waits}, {b"all"})

    def test_coming_and_going(self):
        for number in range(300):
            self.assertEqual(self.client().add("visits", 1), number + 1)

    def test_world_size_counts_clients(self):
        """With a world size, a client announces itself in a key of its own kind."""
        for _ in range(3):
            dist.TCPStore("127.0.0.1", self.port, 3, False, LONG)
        self.assertEqual(self.store.num_keys(), 1)

    def test_client_that_would_share_a_server(self):
        """multi_tenant is about servers in one process; a client with it is a client."""
        jobs = [dist.PrefixStore(f"job{number}", self.client(multi_tenant=True)) for number in range(3)]
        for number, job in enumerate(jobs):
            job.set("who", str(number))
        self.assertEqual([job.get("who") for job in jobs], [b"0", b"1", b"2"])

    def test_port_is_taken(self):
        for multi_tenant in (False, True):
            with self.assertRaisesRegex(RuntimeError, "(?i)address already in use|listen"):
                dist.TCPStore("127.0.0.1", self.port, None, True, LONG, wait_for_workers=False,
                              multi_tenant=multi_tenant)
        self.assert_serves()


class Faults(StoreCase):
    def raw(self, data):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=support.PATIENCE)
        self.addCleanup(connection.close)
        connection.sendall(data)
        return connection

    @better_than_reference("1.13's waits for the rest, and everybody with it")
    def test_half_a_request_delays_nobody(self):
        key = b"/k"
        whole = bytes([0]) + struct.pack("<Q", len(key)) + key + struct.pack("<Q", 3) + b"abc"
        for size in range(1, len(whole)):
            self.raw(whole[:size])
        self.assert_serves()

    @better_than_reference("1.13's tries to allocate it")
    def test_absurd_lengths_cost_one_connection_only(self):
        for length in (2**31, 2**40, 2**63, 2**64 - 1):
            connection = self.raw(bytes([0]) + struct.pack("<Q", length))
            self.assertEqual(connection.recv(1), b"", f"a key of {length} bytes was not refused")
        self.assert_serves()

    @better_than_reference("2.x's reads on after what it does not understand")
    def test_noise_costs_one_connection_only(self):
        for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\xff" * 64):
            try:
                self.raw(noise).recv(1)
            except ConnectionError:
                pass
        self.assert_serves()

    def test_client_killed_while_it_waits(self):
        for _ in range(2):
            victim = self.start_client(self.port, "store.set('waiting', '1'); store.get('key')")
            self.store.get("waiting")
            self.store.delete_key("waiting")
            os.kill(victim.process.pid, signal.SIGKILL)
            victim.wait()
        self.store.set("key", "value")
        self.assertEqual(self.store.get("key"), b"value")

    def test_server_killed_while_a_client_waits(self):
        server, port = self.serve_torch() if REFERENCE else self.serve()
        waiter = self.start_client(port, "store.set_timeout(datetime.timedelta(hours=1))\n"
                                         "print('asks', flush=True); store.get('never')")
        waiter.await_output("asks")
        server.process.kill()
        self.assertNotEqual(waiter.wait(), 0)

    def test_nobody_listens(self):
        with self.assertRaises((RuntimeError, TimeoutError)):
            self.connect(support.free_port(), timeout=1)


class Later(StoreCase):
    """What came after 1.13."""

    @needs("append")
    def test_append(self):
        self.store.append("log", "one")
        self.store.append("log", ", two")
        self.assertEqual(self.store.get("log"), b"one, two")

    @needs("append")
    def test_append_wakes_a_waiter(self):
        got = self.later(self.store.get, "log")
        self.client().append("log", "one")
        self.assertEqual(got(), b"one")

    @needs("check")
    def test_check(self):
        self.store.set("a", "1")
        self.assertTrue(self.store.check(["a"]))
        self.assertFalse(self.store.check(["a", "b"]))

    @needs("multi_get")
    def test_multi(self):
        self.assertTrue(self.store.has_extended_api())
        self.store.multi_set(["a", "b", "c"], ["1", "", "x" * 100000])
        self.assertEqual(self.store.multi_get(["c", "a", "b", "a"]), [b"x" * 100000, b"1", b"", b"1"])

    @needs("multi_get")
    def test_multi_get_waits(self):
        got = self.later(self.store.multi_get, ["a", "b"])
        other = self.client()
        other.multi_set(["b"], ["2"])
        other.multi_set(["a"], ["1"])
        self.assertEqual(got(), [b"1", b"2"])

    @needs("queue_push")
    def test_queue(self):
        self.assertEqual(self.store.queue_len("q"), 0)
        for item in ("one", "", "three"):
            self.store.queue_push("q", item)
        self.assertEqual(self.store.queue_len("q"), 3)
        self.assertEqual([self.client().queue_pop("q") for _ in range(3)], [b"one", b"", b"three"])
        self.assertEqual(self.store.queue_len("q"), 0)

    @needs("queue_push")
    def test_queue_pop_waits(self):
        popped = [self.later(self.client().queue_pop, "q") for _ in range(4)]
        for number in range(4):
            self.store.queue_push("q", str(number))
        self.assertEqual(sorted(join() for join in popped), [b"0", b"1", b"2", b"3"])

    @needs("queue_push")
    def test_queue_pop_of_nothing(self):
        store = self.client(timeout=1)
        with self.assertRaises(RuntimeError):
            store.queue_pop("empty", block=False)
        with self.assertRaises(EXPIRED):
            store.queue_pop("empty")
        self.store.queue_push("empty", "late")
        self.assertEqual(store.queue_pop("empty"), b"late")

    @needs("list_keys")
    def test_list_keys(self):
        keys = {"a", "b/c", "", "\u00e4"}
        for key in keys:
            self.store.set(key, "1")
        self.assertEqual(set(self.store.list_keys()), keys)

    @needs("clone")
    def test_clone(self):
        self.store.set("key", "value")
        self.assertEqual(self.store.clone().get("key"), b"value")

    @needs("barrier")
    def test_barrier(self):
        clients = [self.client() for _ in range(8)]
        for name in ("one", "two"):
            passed = [self.later(client.barrier, name, 8, LONG) for client in clients[1:]]
            clients[0].barrier(name, 8, LONG)
            for join in passed:
                join()

    def test_every_operation_is_tested(self):
        """A version with an operation that these tests do not know must not pass them unnoticed."""
        tested = {"add", "append", "barrier", "check", "clone", "compare_set", "delete_key", "get", "has_extended_api",
                  "list_keys", "multi_get", "multi_set", "num_keys", "queue_len", "queue_pop", "queue_push", "set",
                  "set_timeout", "timeout", "wait"}
        no_operations = {"host", "port", "libuvBackend"}
        public = {name for name in dir(dist.TCPStore) if not name.startswith("_")}
        print(f"operations of this client: {', '.join(sorted(public - no_operations))}")
        self.assertEqual(public - tested - no_operations, set())


if __name__ == "__main__":
    support.main()
