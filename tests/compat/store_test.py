# SPDX-License-Identifier: Apache-2.0
"""Every operation of PyTorch's TCPStore client, against our server. What a server does with bytes is tests/golden's and
unit_store_server's.

COMPAT_SERVER=torch runs them against torch's own server: what passes there too is how the reference behaves, what is
left out there is where ours means to be better, and says so.
"""
import datetime
import gc
import os
import signal
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

    def assert_serves(self):
        """The server is well, seen by a new client."""
        store = self.client()
        store.set("well", "yes")
        self.assertEqual(store.get("well"), b"yes")


class SetGet(StoreCase):
    def test_any_key_has_the_last_value(self):
        keys = ["", "/", "//", "a/b", "init/", "a\0b", "\u00e4", " ", "k" * 8191]  # and the "/" that the client puts before
        for value in ("one", "", "a\0b", "\u00e4\u20ac\U0001f600", "\r\n\t", "\0"):
            for key in keys:
                self.store.set(key, value + key[:9])
            for key in keys:
                self.assertEqual(self.client().get(key), (value + key[:9]).encode(), f"key {key!r}")

    def test_every_size_of_value(self):
        for size in (0, 1, 1439, 1440, 1441, 65535, 65536, 1 << 20, 8 << 20):
            value = os.urandom(size // 2 + 1).hex()[:size]
            self.store.set("big", value)
            self.assertEqual(self.store.get("big"), value.encode(), f"{size} bytes")

    @better_than_reference("1.13's has no limits")
    def test_too_big_a_value_or_too_long_a_key_costs_one_client_only(self):
        got = self.later(self.client().get, "key")
        for key, value in (("big", "x" * ((8 << 20) + 1)), ("k" * 9000, "value")):
            bad = self.client()
            with self.assertRaises(RuntimeError):
                bad.set(key, value)
                bad.add("counter", 1)
        self.client().set("key", "value")
        self.assertEqual(got(), b"value")


class Add(StoreCase):
    def test_sums_in_decimal_text(self):
        self.assertEqual([self.store.add("n", delta) for delta in (5, -7, 0, 1 << 40)],
                         [5, -2, -2, (1 << 40) - 2])
        self.assertEqual(self.store.get("n"), str((1 << 40) - 2).encode())
        self.store.set("n", "40")
        self.assertEqual(self.store.add("n", 2), 42)
        for extreme in (2**63 - 1, -(2**63)):
            self.assertEqual(self.store.add(f"extreme {extreme}", extreme), extreme)

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


class CompareSet(StoreCase):
    def test_the_four_cases(self):
        self.assertEqual(self.store.compare_set("key", "wrong", "new"), b"wrong")  # absent, and something expected
        self.assertEqual(self.store.num_keys(), 0)
        self.assertEqual(self.store.compare_set("key", "", "first"), b"first")     # absent, and nothing expected
        self.assertEqual(self.store.compare_set("key", "wrong", "new"), b"first")  # another value
        self.assertEqual(self.store.compare_set("key", "first", "second"), b"second")
        self.assertEqual(self.store.get("key"), b"second")

    @better_than_reference("1.13's does not wake waiters here")
    def test_wakes_a_waiter(self):
        got = self.later(self.store.get, "key")
        other = self.client()
        self.assertEqual(other.compare_set("key", "other", "value"), b"other")  # stores nothing: wakes nobody
        self.assertEqual(other.compare_set("key", "", "value"), b"value")
        self.assertEqual(got(), b"value")


class Wait(StoreCase):
    def test_until_all_have_come_by_set_or_add(self):
        self.store.set("there", "1")
        waited = self.later(self.store.wait, ["a", "there", "a", "b", "c"], LONG)
        other = self.client()
        other.set("c", "1")
        other.add("a", 3)
        other.set("b", "1")
        waited()
        self.store.wait(["a", "b"])
        self.assertEqual(self.store.get("a"), b"3")  # the stream is in step
        self.assertEqual(self.store.num_keys(), 4)

    def test_expires(self):
        for timeout in ((), (SHORT,)):
            store = self.client()
            store.set("a", "1")
            store.set_timeout(SHORT)
            self.assertEqual(store.timeout, SHORT)
            # 1.13 cuts the socket's timeout to whole seconds, and 0 would mean none: the wait takes its own in
            # milliseconds.
            with self.assertRaises(EXPIRED):
                store.wait(["a", "never"], *timeout)
        store = self.client(timeout=1)
        with self.assertRaises(EXPIRED):
            store.get("never")
        self.assert_serves()

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
    def test_says_whether_there_was_one_and_it_may_come_again(self):
        self.store.set("key", "1")
        self.store.set("other", "1")
        self.assertEqual([self.store.num_keys(), self.store.delete_key("key"), self.store.delete_key("key"),
                          self.store.num_keys()], [2, True, False, 1])
        got = self.later(self.client().get, "key")
        self.store.set("key", "2")
        self.assertEqual(got(), b"2")


class Prefix(StoreCase):
    def test_every_operation_within_its_part(self):
        one, two = (dist.PrefixStore(name, self.store) for name in ("one", "two"))
        got = self.later(dist.PrefixStore("one", self.client()).get, "key")
        two.set("key", "2")
        one.set("key", "1")
        self.assertEqual((one.get("key"), two.get("key"), got()), (b"1", b"2", b"1"))
        self.assertEqual(self.store.get("one/key"), b"1")
        self.assertEqual((one.add("n", 1), one.add("n", 1), two.add("n", 1)), (1, 2, 1))
        self.assertEqual(one.compare_set("leader", "", "me"), b"me")
        one.wait(["leader"], LONG)
        self.assertEqual(one.num_keys(), 5)
        self.assertTrue(one.delete_key("leader"))
        inner = dist.PrefixStore("inner", one)
        inner.set("key", "value")
        self.assertEqual(self.client().get("one/inner/key"), b"value")


class ManyClients(StoreCase):
    def test_processes_share_a_counter(self):
        code = "print(sorted(store.add('shared', 1) for _ in range(500)))"
        clients = [self.start_client(self.port, code) for _ in range(4)]
        for client in clients:
            self.assertEqual(client.wait(), 0, client.said())
        sums = [int(number) for client in clients for number in client.out.strip("[]\n").split(", ")]
        self.assertEqual(sorted(sums), list(range(1, 2001)), "each sum is seen once, by one of them")

    def test_two_hundred_clients_meet(self):
        clients = [self.client() for _ in range(200)]
        self.assertEqual([client.add("arrived", 1) for client in clients], list(range(1, 201)))
        waits = [self.later(client.get, "go") for client in clients]
        self.store.set("go", "all")
        self.assertEqual({join() for join in waits}, {b"all"})

    def test_world_size_counts_clients_and_a_client_that_would_share_a_server_is_a_client(self):
        """With a world size, a client announces itself in a key of its own kind. multi_tenant is about servers."""
        for _ in range(3):
            dist.TCPStore("127.0.0.1", self.port, 3, False, LONG)
        self.assertEqual(self.store.num_keys(), 1)
        self.client(multi_tenant=True).set("who", "a client")
        self.assertEqual(self.store.get("who"), b"a client")


class Faults(StoreCase):
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


class Later(StoreCase):
    """What came after 1.13."""

    @needs("append")
    def test_append_wakes_a_waiter(self):
        got = self.later(self.store.get, "log")
        other = self.client()
        other.append("log", "one")
        self.assertEqual(got(), b"one")
        other.append("log", ", two")
        self.assertEqual(self.store.get("log"), b"one, two")
        self.assertTrue(self.store.check(["log"]))
        self.assertFalse(self.store.check(["log", "never"]))

    @needs("multi_get")
    def test_multi_get_waits_and_keeps_the_order(self):
        self.assertTrue(self.store.has_extended_api())
        got = self.later(self.store.multi_get, ["c", "a", "b", "a"])
        other = self.client()
        other.multi_set(["b", "c"], ["", "x" * 100000])
        other.multi_set(["a"], ["1"])
        self.assertEqual(got(), [b"x" * 100000, b"1", b"", b"1"])

    @staticmethod
    def pop_of_others_too(client):
        """Pops one item. Torch's client waits and pops in two requests, so of two clients that wait for one item the second
        finds none, and waits again."""
        while True:
            try:
                return client.queue_pop("q")
            except getattr(dist, "QueueEmptyError", ()):
                pass

    @needs("queue_push")
    def test_queue(self):
        self.assertEqual(self.store.queue_len("q"), 0)
        for item in ("one", "", "three"):
            self.store.queue_push("q", item)
        self.assertEqual(self.store.queue_len("q"), 3)
        self.assertEqual([self.client().queue_pop("q") for _ in range(3)], [b"one", b"", b"three"])
        self.assertEqual(self.store.queue_len("q"), 0)
        popped = [self.later(self.pop_of_others_too, self.client()) for _ in range(4)]
        for number in range(4):
            self.store.queue_push("q", str(number))
        self.assertEqual(sorted(join() for join in popped), [b"0", b"1", b"2", b"3"])
        store = self.client(timeout=1)
        with self.assertRaises(RuntimeError):
            store.queue_pop("q", block=False)
        with self.assertRaises(EXPIRED):
            store.queue_pop("q")
        self.store.queue_push("q", "late")
        self.assertEqual(store.queue_pop("q"), b"late")

    @needs("list_keys")
    def test_list_keys_of_a_clone(self):
        keys = {"a", "b/c", "", "\u00e4"}
        for key in keys:
            self.store.set(key, "1")
        self.assertEqual(set(self.store.clone().list_keys()), keys)

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
