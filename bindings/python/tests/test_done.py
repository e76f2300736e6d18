"""Functions that are called at the end of operations."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest
from support import WAIT_SECONDS, Gate

import kvstore


class Told:
    """What a function has been told, for a thread that waits."""

    def __init__(self):
        self._event = threading.Event()
        self.tickets = []
        self.thread = None

    def __call__(self, ticket):
        self.tickets.append(ticket)
        self.thread = threading.get_ident()
        self._event.set()

    def wait(self):
        assert self._event.wait(WAIT_SECONDS)
        return self.tickets


@pytest.fixture
def gated():
    """A store whose pushes to key 1 stand behind an event; key 2 is free."""
    going_on = threading.Event()
    kv = kvstore.create("local", threads=1)
    kv.init([1, 2], [np.zeros(1, np.float32)] * 2)

    def add(key, merged, stored):
        if key == 1:
            assert going_on.wait(WAIT_SECONDS)
        stored += merged

    kv.set_updater(add)
    yield kv, going_on
    going_on.set()
    kv.close()


def one():
    return np.ones(1, np.float32)


def test_a_function_is_called_once_with_its_ticket(gated):
    kv, going_on = gated
    first, second, late = Told(), Told(), Told()
    ticket = kv.push_async(1, one())
    ticket.add_done_callback(first)
    ticket.add_done_callback(second)
    assert first.tickets == []
    going_on.set()
    assert first.wait() == [ticket] and second.wait() == [ticket]
    assert first.thread != threading.get_ident()
    ticket.add_done_callback(late)
    assert late.tickets == [ticket] and late.thread == threading.get_ident()
    kv.wait_all()
    assert first.tickets == second.tickets == [ticket]


def test_the_result_is_there_inside_of_the_function(gated):
    kv, going_on = gated
    results = []
    ended = threading.Event()

    def note(ticket):
        assert ticket.done()
        try:
            ticket.wait()
        except kvstore.KVStoreError as error:
            results.append(type(error))
        ended.set()

    blocked = kv.push_async(1, one())
    waiting = kv.push_async(1, one())
    waiting.add_done_callback(note)
    waiting.cancel()
    assert ended.wait(WAIT_SECONDS)
    assert results == [kvstore.CancelledError]
    going_on.set()
    blocked.wait(WAIT_SECONDS)


def test_a_function_queues_operations_and_must_not_wait(gated):
    kv, going_on = gated
    results, told = [], Told()

    def go_on(ticket):
        try:
            kv.push(2, one())
        except kvstore.ReentrantError as error:
            results.append(str(error))
        kv.push_async(2, one()).add_done_callback(told)

    kv.push_async(2, one()).add_done_callback(go_on)
    (second,) = told.wait()
    second.wait()
    assert len(results) == 1 and "on_done" in results[0]
    out = one()
    kv.pull(2, out=out)
    assert out[0] == 2
    going_on.set()


def test_the_function_keeps_a_ticket_that_has_no_other_owner(gated):
    kv, going_on = gated
    told = Told()
    kv.push_async(1, one()).add_done_callback(told)
    gc.collect()
    going_on.set()
    (ticket,) = told.wait()
    ticket.wait()
    gone = weakref.ref(ticket)
    del ticket
    told.tickets.clear()
    kv.wait_all()
    kv.close()
    gc.collect()
    assert gone() is None


def test_what_a_function_raises_is_unraisable_and_others_are_called(gated, monkeypatch):
    kv, going_on = gated
    raised, told = [], Told()
    monkeypatch.setattr(sys, "unraisablehook", lambda args: raised.append(args.exc_value))

    def fail(ticket):
        raise ValueError("not today")

    ticket = kv.push_async(1, one())
    ticket.add_done_callback(fail)
    ticket.add_done_callback(told)
    going_on.set()
    told.wait()
    kv.wait_all()
    ticket.add_done_callback(fail)
    assert [str(error) for error in raised] == ["not today"] * 2


def test_the_end_of_a_store_calls_every_function(kv):
    gate = Gate()
    kv.init(1, np.zeros(1, np.float32))
    kv.set_updater(gate)
    running, waiting = Told(), Told()
    kv.push_async(1, one()).add_done_callback(running)
    assert gate.entered.wait(WAIT_SECONDS)
    kv.push_async(1, one()).add_done_callback(waiting)
    kv.abort()
    (ticket,) = waiting.wait()
    with pytest.raises(kvstore.ClosedError):
        ticket.wait()
    assert running.tickets == []
    gate.open()
    running.wait()


def test_the_end_of_the_program_waits_for_the_functions(run):
    program = """
import numpy as np, time, kvstore
kv = kvstore.create("local")
kv.init(1, np.zeros(1, np.float32))
def add(key, merged, stored):
    time.sleep(0.2)
kv.set_updater(add)
def tell(ticket):
    time.sleep(0.2)
    print("told", ticket.done(), flush=True)
kv.push_async(1, np.ones(1, np.float32)).add_done_callback(tell)
"""
    done = run("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "told True\n", "")
