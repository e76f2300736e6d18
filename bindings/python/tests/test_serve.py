"""Servers and schedulers: roles, serve(), and what ends it."""

import re
import threading

import numpy as np
import pytest
from conftest import ROOT
from support import WAIT_SECONDS, Gate
from test_life import program

import kvstore
from kvstore._call import library

# In the place of kv_serve() a call of the library that, too, only kv_abort() ends: the wait for a
# push that stands behind another one, in whose updater the gate is shut.
SERVING = """
gate, entered = threading.Event(), threading.Event()
def update(key, merged, stored):
    entered.set()
    gate.wait(60)
kv = kvstore.create()
kv.init(1, np.zeros(4))
kv.set_updater(update)
tickets = [kv.push_async(1, np.ones(4)) for _ in range(2)]
entered.wait(60)
library = kvstore._call.library
library.kv_serve = lambda store: library.kv_wait(store, tickets[1]._operation.ticket, -1)
"""


def test_the_names_of_roles_are_those_of_the_header():
    header = (ROOT / "include" / "kvstore.h").read_text()
    roles = re.findall(r"^ +KV_ROLE_(\w+) = (\d+),$", header, re.M)
    assert {int(number): name.lower() for name, number in roles} == kvstore._store._ROLES


def test_a_worker_does_not_serve(kv):
    with pytest.raises(kvstore.RoleError, match="worker"):
        kv.serve()
    kv.init(1, np.zeros(4))
    kv.close()
    with pytest.raises(kvstore.ClosedError):
        kv.serve()


def test_an_updater_does_not_serve(kv):
    def update(key, merged, stored):
        with pytest.raises(kvstore.ReentrantError):
            kv.serve()

    kv.init(1, np.zeros(4))
    kv.set_updater(update)
    kv.push(1, np.ones(4))
    kv.push_async(1, np.ones(4)).wait(WAIT_SECONDS)


@pytest.mark.parametrize("end", [kvstore.KVStore.close, kvstore.KVStore.abort])
def test_another_thread_ends_it(monkeypatch, end):
    gate, errors = Gate(), []
    kv = kvstore.create()
    kv.init([1, 2], [np.zeros(4)] * 2)
    kv.set_updater(gate)
    tickets = [kv.push_async(1, np.ones(4)) for _ in range(2)]
    assert gate.entered.wait(WAIT_SECONDS)
    serving = threading.Event()

    def stand_in(store):
        serving.set()
        return library.kv_wait(store, tickets[1]._operation.ticket, -1)

    monkeypatch.setattr(library, "kv_serve", stand_in)

    def serve():
        try:
            kv.serve()
        except kvstore.ClosedError as error:
            errors.append(error)

    server = threading.Thread(target=serve)
    server.start()
    assert serving.wait(WAIT_SECONDS)
    out = np.ones(4)
    kv.pull(2, out=out)
    assert not out.any()
    closer = threading.Thread(target=end, args=(kv,))
    closer.start()
    server.join(WAIT_SECONDS)
    gate.open()
    closer.join(WAIT_SECONDS)
    assert not server.is_alive()
    assert not closer.is_alive()
    assert len(errors) == 1


def test_ctrl_c_ends_it(run):
    result = run(
        "-c",
        program(f"""
import signal
{SERVING}
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    kv.serve()
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - start < 5)
gate.set()
try:
    kv.pull(1, out=np.zeros(4))
except kvstore.ClosedError:
    print("closed")
"""),
    )
    expected = "interrupted True\nclosed\n"
    assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")


def test_the_end_of_the_program_ends_it(run):
    result = run(
        "-c",
        program(f"""
{SERVING}
def serve():
    try:
        kv.serve()
    except kvstore.ClosedError:
        os.write(1, b"closed")
        gate.set()
threading.Thread(target=serve, daemon=True).start()
while not kv._handle._serving:
    time.sleep(0.001)
time.sleep(0.1)
"""),
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "closed", "")
