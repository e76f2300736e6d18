"""Operations in the background."""

import gc
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
from support import WAIT_SECONDS, Gate

import kvstore


@pytest.fixture
def gate(kv):
    """The store's updater: holds everything up until it is opened."""
    gate = Gate()
    kv.init([1, 2], [np.zeros(4)] * 2)
    kv.set_updater(gate)
    yield gate
    gate.open()


def pulled(kv, key):
    out = np.zeros(4)
    kv.pull(key, out=out)
    return out.tolist()


def test_every_method_has_a_background_form(kv):
    outs = [np.zeros(4) for _ in range(3)]
    kv.broadcast_async(1, np.ones(4), out=outs[0]).wait(WAIT_SECONDS)
    kv.push_async(1, [np.full(4, 2.0)] * 2).wait(WAIT_SECONDS)
    kv.pull_async(1, out=outs[1]).wait(WAIT_SECONDS)
    kv.pushpull_async(1, np.full(4, 9.0), out=outs[2]).wait(WAIT_SECONDS)
    assert [out.tolist() for out in outs] == [[1] * 4, [4] * 4, [9] * 4]
    values = np.full(4, 3.0)
    kv.pushpull_async(1, [values, values.copy()]).wait(WAIT_SECONDS)
    assert values.tolist() == [6] * 4


def test_wait_times_out_and_may_be_repeated(kv, gate):
    ticket = kv.push_async(1, np.ones(4))
    assert "pending" in repr(ticket)
    assert not ticket.done()
    start = time.monotonic()
    with pytest.raises(kvstore.TimeoutError):
        ticket.wait(0.25)
    assert 0.2 < time.monotonic() - start < WAIT_SECONDS
    with pytest.raises(TimeoutError):
        ticket.wait(timeout=0)
    gate.open()
    ticket.wait(WAIT_SECONDS)
    ticket.wait()
    assert ticket.done()
    assert "done" in repr(ticket)
    assert gate.calls == [1]


def test_a_timeout_is_a_number_of_seconds(kv):
    kv.init(1, np.zeros(4))
    ticket = kv.push_async(1, np.ones(4))
    for bad in (-1, float("nan")):
        with pytest.raises(kvstore.InvalidArgumentError, match="timeout"):
            ticket.wait(bad)
        with pytest.raises(kvstore.InvalidArgumentError, match="timeout"):
            kv.wait_all(bad)
        with pytest.raises(kvstore.InvalidArgumentError, match="timeout"):
            kv.close(bad)
    ticket.wait(WAIT_SECONDS)


def test_operations_of_a_thread_take_effect_in_call_order(kv):
    kv.init(1, np.zeros(4))
    out = np.zeros(4)
    tickets = [kv.push_async(1, np.full(4, float(i)), priority=i % 7) for i in range(100)]
    kv.pull(1, out=out)
    assert out.tolist() == [99] * 4
    for ticket in tickets:
        ticket.wait(WAIT_SECONDS)


def test_arrays_live_as_long_as_the_operation(kv, gate):
    class Array(np.ndarray):
        """Weak references may follow it."""

    values = [np.full(4, float(i)).view(Array) for i in range(50)]
    followed = [weakref.ref(value) for value in values]
    tickets = [kv.push_async(1, [value]) for value in values]
    del values
    gc.collect()
    noise = [np.full(4, -1.0) for _ in range(1000)]
    assert all(follow() is not None for follow in followed)
    gate.open()
    for ticket in tickets:
        ticket.wait(WAIT_SECONDS)
    assert pulled(kv, 1) == [sum(range(50))] * 4
    assert all(follow() is None for follow in followed)
    assert len(noise) == 1000


def test_an_array_on_loan_cannot_be_resized(kv, gate):
    value = np.ones(4)
    ticket = kv.push_async(1, value)
    with pytest.raises(ValueError, match="resize"):
        value.resize(1 << 20)
    gate.open()
    ticket.wait(WAIT_SECONDS)


def test_a_dropped_ticket_cancels_with_a_warning(kv, gate):
    first = kv.push_async(1, np.ones(4))
    others = [kv.push_async(1, np.full(4, 10.0))]
    assert gate.entered.wait(WAIT_SECONDS)
    with pytest.warns(RuntimeWarning, match="dropped"):
        others.clear()
    gate.open()
    first.wait(WAIT_SECONDS)
    assert pulled(kv, 1) == [1] * 4


def test_no_warning_after_wait_all(kv):
    kv.init(1, np.zeros(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tickets = [kv.push_async(1, np.ones(4)) for _ in range(5)]
        kv.wait_all(WAIT_SECONDS)
        del tickets
        gc.collect()


def test_cancel_withdraws_what_has_not_begun(kv, gate):
    first = kv.push_async(1, np.ones(4))
    second = kv.push_async(1, np.full(4, 10.0))
    assert gate.entered.wait(WAIT_SECONDS)
    second.cancel()
    second.cancel()
    assert second.done()
    for _ in range(2):
        with pytest.raises(kvstore.CancelledError):
            second.wait()
    gate.open()
    first.wait(WAIT_SECONDS)
    first.cancel()
    first.wait()
    assert pulled(kv, 1) == [1] * 4


def test_failures_are_told_by_wait_every_time(kv):
    kv.init(1, np.zeros(4))

    def update(key, merged, stored):
        raise OSError("disk full")

    kv.set_updater(update)
    ticket = kv.push_async(1, np.ones(4))
    for _ in range(2):
        with pytest.raises(kvstore.CallbackError, match="OSError: disk full"):
            ticket.wait(WAIT_SECONDS)
    assert ticket.done()
    assert "failed" in repr(ticket)


def test_wait_all_tells_the_first_failure_once(kv):
    kv.init(1, np.zeros(4))

    def update(key, merged, stored):
        raise OSError(f"number {merged[0]:g}")

    kv.set_updater(update)
    tickets = [kv.push_async(1, np.full(4, float(i))) for i in range(3)]
    with pytest.raises(kvstore.CallbackError, match="number 0"):
        kv.wait_all(WAIT_SECONDS)
    kv.wait_all(WAIT_SECONDS)
    assert len(tickets) == 3


def test_wait_all_times_out(kv, gate):
    ticket = kv.push_async(1, np.ones(4))
    with pytest.raises(kvstore.TimeoutError):
        kv.wait_all(0.05)
    gate.open()
    kv.wait_all(WAIT_SECONDS)
    assert ticket.done()


def test_a_call_refused_by_its_checks_starts_nothing(kv):
    kv.init(1, np.zeros(4))
    with pytest.raises(kvstore.ShapeMismatchError):
        kv.push_async(1, np.ones(5))
    assert kv.stats()["pending"] == 0


def test_several_threads_may_wait_for_one_ticket(kv, gate):
    ticket = kv.push_async(1, np.ones(4))
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(ticket.wait(WAIT_SECONDS))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert results == [None] * 4


def test_a_ticket_inside_the_updater_is_refused_and_stays(kv):
    kv.init([1, 2], [np.zeros(4)] * 2)
    ticket = kv.push_async(2, np.ones(4))
    errors = []

    def update(key, merged, stored):
        for call in (ticket.wait, ticket.done, ticket.cancel):
            try:
                call()
            except kvstore.ReentrantError as error:
                errors.append(error)

    kv.set_updater(update)
    kv.push(1, np.ones(4))
    ticket.wait(WAIT_SECONDS)
    assert len(errors) == 3


def test_a_ticket_dropped_inside_an_updater_is_cancelled_later(kv):
    kv.init([1, 2], [np.zeros(4)] * 2)
    tickets = [kv.push_async(2, np.ones(4))]

    def update(key, merged, stored):
        tickets.clear()

    kv.set_updater(update)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        kv.push(1, np.ones(4))
    kv.wait_all(WAIT_SECONDS)
    assert kv.stats()["pending"] == 0
    assert not kvstore._handle.postponed
    assert not kv._handle._loans_until_free


def test_close_finishes_what_is_pending(kv, gate):
    tickets = [kv.push_async(1, np.ones(4)) for _ in range(3)]
    with pytest.raises(kvstore.TimeoutError):
        kv.close(0.05)
    gate.open()
    kv.close(WAIT_SECONDS)
    kv.close()
    for ticket in tickets:
        ticket.wait()
    assert gate.calls == [1, 1, 1]
    with pytest.raises(kvstore.ClosedError):
        kv.push(1, np.ones(4))


def test_close_tells_a_failure_nobody_waited_for(kv):
    kv.init(1, np.zeros(4))

    def update(key, merged, stored):
        raise OSError("disk full")

    kv.set_updater(update)
    ticket = kv.push_async(1, np.ones(4))
    with pytest.raises(kvstore.CallbackError, match="disk full"):
        kv.close(WAIT_SECONDS)
    kv.close()
    with pytest.raises(kvstore.CallbackError, match="disk full"):
        ticket.wait()


def test_abort_fails_what_is_pending(kv, gate):
    first = kv.push_async([1, 2], [np.ones(4)] * 2)
    second = kv.push_async(1, np.ones(4))
    assert gate.entered.wait(WAIT_SECONDS)
    kv.abort()
    kv.abort()
    with pytest.raises(kvstore.ClosedError):
        second.wait(WAIT_SECONDS)
    gate.open()
    with pytest.raises(kvstore.ClosedError):
        first.wait(WAIT_SECONDS)
    assert gate.calls == [1]
    with pytest.raises(kvstore.ClosedError):
        kv.keys()


def test_abort_inside_an_updater(kv):
    kv.init([1, 2], [np.zeros(4)] * 2)
    kv.set_updater(lambda key, merged, stored: kv.abort())
    ticket = kv.push_async([1, 2], [np.ones(4)] * 2)
    with pytest.raises(kvstore.ClosedError):
        ticket.wait(WAIT_SECONDS)
    with pytest.raises(kvstore.ClosedError):
        kv.push(1, np.ones(4))


def test_leaving_a_block_by_an_exception_aborts():
    gate = Gate()
    with pytest.raises(ZeroDivisionError), kvstore.create() as kv:
        kv.init(1, np.zeros(4))
        kv.set_updater(gate)
        tickets = [kv.push_async(1, np.ones(4)) for _ in range(2)]
        assert gate.entered.wait(WAIT_SECONDS)
        1 / 0  # noqa: B018  The exception is the point.
    gate.open()
    with pytest.raises(kvstore.ClosedError):
        tickets[1].wait(WAIT_SECONDS)
