"""Stores and threads, the end of the program, fork, memory, logging."""

import gc
import logging
import resource
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from conftest import LIMIT_SECONDS
from support import WAIT_SECONDS, Gate

import kvstore


def test_getters_and_names_of_the_tutorials(kv):
    assert (kv.role, kv.rank, kv.num_workers, kv.num_lost) == ("worker", 0, 1, 0)
    assert kvstore.capable("optimizer") and not kvstore.capable("teleport")
    kv.barrier()
    kv._barrier()
    kv.barrier(timeout=1.5)
    kv.done()
    assert repr(kv) == f"<kvstore.KVStore '{kv.type}'>"


def test_stats(kv):
    kv.init([1, 2], [np.zeros(10)] * 2)
    kv.push(1, np.ones(10))
    kv.pull([1, 2], out=[np.zeros(10), np.zeros(10)])
    stats = kv.stats()
    assert stats["type"] == kv.type
    assert (stats["keys"], stats["bytes"]) == (2, 160)
    assert (stats["pushes"], stats["pulls"]) == (1, 2)
    assert (stats["push_bytes"], stats["pull_bytes"]) == (80, 160)
    assert (stats["updater_calls"], stats["pending"], stats["failed"]) == (0, 0, 0)


def test_the_version_is_that_of_the_library_and_the_package():
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    assert f'version = "{kvstore.__version__}"\n' in project.read_text()


def test_help_has_every_public_name():
    assert set(kvstore.__all__) <= set(dir(kvstore))
    for name in kvstore.__all__:
        thing = getattr(kvstore, name)
        assert thing.__doc__, name
        assert thing.__module__ == "kvstore", name
    for name, thing in vars(kvstore.KVStore).items():
        if not name.startswith("_"):
            assert thing.__doc__, name


def test_stores_do_not_share_keys():
    with kvstore.create() as a, kvstore.create() as b:
        a.init("w", np.zeros(1))
        b.init("w", np.ones(2))
        assert (a.key_info("w").shape, b.key_info("w").shape) == ((1,), (2,))


def test_a_call_that_waits_lets_other_threads_run(kv):
    # The pull waits inside the library for the key that the updater holds; the updater needs the
    # GIL to go on.
    gate = Gate()
    kv.init(1, np.zeros(3))
    kv.set_updater(gate)
    pusher = threading.Thread(target=lambda: kv.push(1, np.ones(3)))
    pusher.start()
    assert gate.entered.wait(WAIT_SECONDS)
    out = np.zeros(3)
    puller = threading.Thread(target=lambda: kv.pull(1, out=out))
    puller.start()
    time.sleep(0.05)
    gate.open()
    for thread in (pusher, puller):
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert out.tolist() == [1, 1, 1]


def test_other_threads_make_progress_during_a_long_push():
    value = np.ones(1 << 22, np.float32)
    steps, stop = [0], threading.Event()

    def work():
        while not stop.wait(0.0001):
            steps[0] += 1

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=work)
    with kvstore.create(threads=1) as kv:
        kv.init(1, value)
        thread.start()
        # From here the other thread runs only while this one gives the GIL away by itself.
        sys.setswitchinterval(LIMIT_SECONDS)
        try:
            before = steps[0]
            for _ in range(10):
                kv.push(1, [value] * 16)
            made = steps[0] - before
        finally:
            sys.setswitchinterval(interval)
            stop.set()
            thread.join(WAIT_SECONDS)
    assert made >= 10


def test_many_threads_lose_no_update(kv):
    keys = [*range(4), *"abcd"]
    kv.init(keys, [np.zeros(100)] * len(keys))
    kv.set_updater(lambda key, merged, stored: np.add(stored, merged, out=stored))

    def work(rank):
        random = np.random.default_rng(rank)
        tickets = []
        for step in range(100):
            mine = [keys[i] for i in random.permutation(len(keys))]
            if step % 3:
                kv.push(mine, [np.ones(100)] * len(keys))
            else:
                tickets.append(kv.push_async(mine, [np.ones(100)] * len(keys)))
            if step % 10 == 0:
                extra = kv.push_async(0, np.zeros(100))
                extra.cancel()
        for ticket in tickets:
            ticket.wait(WAIT_SECONDS)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    outs = [np.zeros(100) for _ in keys]
    kv.pull(keys, out=outs)
    assert all((out == 800).all() for out in outs)


def test_closing_while_other_threads_call():
    for _ in range(20):
        kv = kvstore.create()
        kv.init(1, np.zeros(1000))
        errors = []

        def work(kv=kv, errors=errors):
            try:
                while True:
                    kv.push(1, np.ones(1000))
            except kvstore.ClosedError as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        kv.close()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert len(errors) == 4


def resident_bytes():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_calls_leave_no_memory_behind(kv):
    value, out = np.ones(256), np.zeros(256)

    def use(count):
        for i in range(count):
            kv.push("w", [value, value])
            kv.pull("w", out=out)
            kv.pushpull("w", value, out=out)
            kv.push_async("w", value).wait()
            kv.pull(["w", 1], out=[out, out])
            kv.stats()
            kv.keys()
            kv.init(2 + i % 2, value)
            kv.remove(2 + i % 2)
            with pytest.raises(kvstore.ShapeMismatchError):
                kv.push("w", 1.0)

    kv.init(["w", 1], [value, value])
    kv.set_updater(lambda key, merged, stored: np.copyto(stored, merged))
    use(500)
    gc.collect()
    tracemalloc.start()
    start, resident = tracemalloc.get_traced_memory()[0], resident_bytes()
    use(2000)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    assert grown < 2000 * 32, "more than half an object in each round"
    assert resident_bytes() - resident < 8 << 20


def test_stores_and_updaters_leave_no_memory_behind():
    def use(count):
        for _ in range(count):
            kv = kvstore.create()
            kv.init("w", np.zeros(1 << 16))
            kv.set_updater(lambda key, merged, stored, kv=kv: np.copyto(stored, merged))
            kv.push("w", np.ones(1 << 16))
            ticket = kv.push_async("w", np.ones(1 << 16))
            ticket.wait()

    use(200)  # Cycles wait for the garbage collector: the memory in use has a level to reach.
    resident = resident_bytes()
    open_before, in_use_before = len(kvstore._handle._open_handles), len(kvstore._callbacks._in_use)
    use(400)
    # The values alone would be 200 MiB.
    assert resident_bytes() - resident < 100 << 20
    assert len(kvstore._handle._open_handles) <= open_before
    assert len(kvstore._callbacks._in_use) <= in_use_before


@pytest.mark.filterwarnings("ignore:a kvstore.Ticket was dropped:RuntimeWarning")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_the_garbage_collector_may_run_anywhere(kv):
    # Stores and tickets that are garbage are finalized wherever the collector happens to run: also
    # at the first line of an updater, on a thread of the library.
    def leave_garbage():
        other = kvstore.create()
        other.init(1, np.zeros(4))
        other.set_updater(lambda key, merged, stored: stored.__iadd__(other.num_workers))
        cycle = [other, other.push_async(1, np.ones(4))]
        cycle.append(cycle)

    def update(key, merged, stored):
        leave_garbage()
        stored += merged

    kv.init(1, np.zeros(4))
    kv.set_updater(update)
    thresholds = gc.get_threshold()
    gc.set_threshold(5, 2, 2)
    try:
        for _ in range(20):
            leave_garbage()
            kv.push(1, np.ones(4))
            kv.push_async(1, np.ones(4)).wait(WAIT_SECONDS)
    finally:
        gc.set_threshold(*thresholds)
    out = np.zeros(4)
    kv.pull(1, out=out)
    assert out.tolist() == [40] * 4
    # Updaters of stores that are garbage may still be running, and a collection of theirs makes one
    # that begins beside it return at once.
    handle = kvstore._handle
    deadline = time.monotonic() + WAIT_SECONDS
    while len(handle._open_handles) > 1 or handle.postponed:
        assert time.monotonic() < deadline, (len(handle._open_handles), len(handle.postponed))
        gc.collect()
        kv.pull(1, out=out)  # Frees the stores that such a collection has found.
    assert list(handle._open_handles) == [kv._handle]


def program(body):
    return "import kvstore, numpy as np, threading, time, os, sys, logging\n" + body


EXITS = {
    "pending tickets and a slow updater": """
done = []
def update(key, merged, stored):
    time.sleep(0.02)
    done.append(stored.sum())
kv = kvstore.create()
kv.init(1, np.zeros(4))
kv.set_updater(update)
tickets = [kv.push_async(1, np.ones(4)) for _ in range(10)]
sys.stdout.write("end")
""",
    "a store nobody closed": """
kv = kvstore.create()
kv.init(1, np.zeros(4))
kv.set_updater(lambda key, merged, stored: kv.rank)
kv.push(1, np.ones(4))
sys.stdout.write("end")
""",
    "a thread inside a call": """
kv = kvstore.create()
kv.init(1, np.zeros(1 << 20))
def work():
    try:
        while True:
            kv.push(1, np.ones(1 << 20))
    except kvstore.ClosedError:
        pass
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
sys.stdout.write("end")
""",
    "a logger": """
logging.basicConfig(level=logging.CRITICAL)
kvstore.set_logger(logging.getLogger(), logging.DEBUG)
kv = kvstore.create()
kv.init(1, np.zeros(4))
ticket = kv.push_async(1, np.ones(4))
sys.stdout.write("end")
""",
    "threads that log": """
logger = logging.getLogger("quiet")
logger.propagate = False
logger.addHandler(logging.NullHandler())
kvstore.set_logger(logger, logging.DEBUG)
def work():
    try:
        while True:
            kvstore.create().close()
    except kvstore.ClosedError:
        pass
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
sys.stdout.write("end")
""",
    "threads inside of updaters": """
kv = kvstore.create()
kv.init(range(3), [np.zeros(4)] * 3)
kv.set_updater(lambda key, merged, stored: time.sleep(0.005))
def work(key):
    try:
        while True:
            kv.push(key, np.ones(4))
    except kvstore.ClosedError:
        pass
for key in range(3):
    threading.Thread(target=work, args=(key,), daemon=True).start()
time.sleep(0.1)
sys.stdout.write("end")
""",
    "an updater that does not return": """
kvstore._handle._EXIT_SECONDS = 0.3
kv = kvstore.create()
kv.init(1, np.zeros(4))
kv.set_updater(lambda key, merged, stored: time.sleep(1000))
tickets = [kv.push_async(1, np.ones(4)) for _ in range(3)]
time.sleep(0.1)
sys.stdout.write("end")
""",
    "an exception": """
kv = kvstore.create()
kv.init(1, np.zeros(4))
ticket = kv.push_async(1, np.ones(4))
sys.stdout.write("end")
sys.exit(0)
""",
}


@pytest.mark.parametrize("name", EXITS)
def test_the_program_ends_quietly_with(run, name):
    start = time.monotonic()
    result = run("-X", "faulthandler", "-c", program(EXITS[name]))
    assert (result.returncode, result.stdout, result.stderr) == (0, "end", "")
    assert time.monotonic() - start < 60


def test_pending_operations_are_finished_at_the_end(run):
    result = run(
        "-c",
        program("""
kv = kvstore.create()
kv.init(1, np.zeros(4))
def update(key, merged, stored):
    time.sleep(0.05)
    os.write(1, b"x")
kv.set_updater(update)
tickets = [kv.push_async(1, np.ones(4)) for _ in range(5)]
"""),
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "xxxxx", "")


def test_a_child_of_fork_cannot_use_the_store(run):
    result = run(
        "-W",
        "ignore",
        "-c",
        program("""
kv = kvstore.create()
kv.init(1, np.zeros(4))
ticket = kv.push_async(1, np.ones(4))
child = os.fork()
if child == 0:
    told = []
    out = np.zeros(4)
    for call in (lambda: kv.push(1, out), lambda: kv.pull(1, out=out), kv.keys, ticket.wait,
                 lambda: kv.init("w", out), kv.close):
        try:
            call()
        except kvstore.ForkedError as error:
            told.append("fork" in str(error))
    own = kvstore.create()
    own.init(1, np.ones(4))
    own.set_updater(lambda key, merged, stored: np.copyto(stored, merged * 3))
    own.push_async(1, np.ones(4)).wait(30)
    own.pull(1, out=out)
    own.close()
    del kv, ticket
    print(told, out.tolist(), flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
ticket.wait(30)
kv.close()
print("parent")
"""),
    )
    expected = f"{[True] * 6} {[3.0] * 4}\nparent\n"
    assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")


def test_ctrl_c_reaches_a_wait(run):
    result = run(
        "-c",
        program("""
import signal
gate = threading.Event()
kv = kvstore.create()
kv.init(1, np.zeros(4))
kv.set_updater(lambda key, merged, stored: gate.wait(60))
ticket = kv.push_async(1, np.ones(4))
for call in (ticket.wait, kv.wait_all, kv.close):
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted")
gate.set()
ticket.wait(30)
"""),
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\n" * 3, "")


def test_finalizers_need_no_module(kv, monkeypatch):
    """An interpreter that ends clears modules in an order of its own."""
    kv.init(1, np.zeros(10))
    ticket, bound = kv.pull_async(1, out=np.zeros(10)), kv.bind([1], [np.ones(10)])
    ticket.wait()
    failures = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: failures.append(failure.exc_value))
    with monkeypatch.context() as cleared:
        cleared.setattr(kvstore._call, "thread", None)
        cleared.setattr(kvstore._call._native, "is_between_calls", None)
        del ticket, bound
    assert failures == []


def test_logger(caplog):
    logger = logging.getLogger("test of kvstore")
    try:
        with caplog.at_level(logging.DEBUG, logger.name):
            kvstore.set_logger(logger)
            kvstore.create().close()
        assert {record.levelno for record in caplog.records} <= {logging.DEBUG, logging.INFO}
        assert any(record.levelno == logging.INFO for record in caplog.records)
        caplog.clear()
        with caplog.at_level(logging.DEBUG, logger.name):
            kvstore.set_logger(logger, logging.WARNING)
            kvstore.create().close()
            assert not caplog.records
            kvstore.set_logger(logger, logging.CRITICAL + 1)
            kvstore.set_logger(None)
            kvstore.create().close()
        assert not caplog.records
    finally:
        kvstore.set_logger(None)
    assert not kvstore._callbacks._loggers


def test_another_library_is_refused_at_import(run, monkeypatch):
    monkeypatch.setenv("KVSTORE_LIBRARY", "libm.so.6")
    result = run("-c", "import kvstore")
    assert result.returncode == 1
    assert "ImportError: the library libm.so.6 has no function kv_abi_version" in result.stderr


def test_a_library_with_another_binary_interface_is_refused_at_import(run, monkeypatch, tmp_path):
    source, library = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text("unsigned kv_abi_version(void) { return 99; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("KVSTORE_LIBRARY", str(library))
    result = run("-c", "import kvstore")
    assert result.returncode == 1
    assert "has binary interface 99, this package needs 0" in result.stderr
