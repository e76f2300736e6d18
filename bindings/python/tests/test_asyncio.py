"""Operations in coroutines."""

import asyncio
import os
import threading

import numpy as np
import pytest

import kvstore


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_awaited_operations_have_taken_effect():
    async def program():
        async with kvstore.create("local") as kv:
            kv.init(3, np.ones(4, np.float32))
            out = np.zeros(4, np.float32)
            await kv.push_async(3, np.full(4, 2, np.float32))
            await kv.pull_async(3, out=out)
            return kv, out

    kv, out = run(program())
    assert out.tolist() == [2, 2, 2, 2]
    with pytest.raises(kvstore.KVStoreError):
        kv.pull(3, out=out)  # The block has closed the store.


def test_an_awaited_operation_raises_what_it_failed_with():
    async def program():
        async with kvstore.create("local") as kv:
            kv.init(3, np.ones(4, np.float32))

            def fail(key, merged, stored):
                raise ValueError("not today")

            kv.set_updater(fail)
            ticket = kv.push_async(3, np.ones(4, np.float32))
            with pytest.raises(kvstore.CallbackError, match="not today"):
                await ticket
            with pytest.raises(kvstore.CallbackError):
                await ticket

    run(program())


def adding_behind(gate):
    """An updater that adds once the gate is open."""

    def add(key, merged, stored):
        assert gate.wait(60)
        stored += merged

    return add


def test_other_coroutines_run_while_one_waits_and_a_cancelled_one_ends_no_operation():
    going_on = threading.Event()

    async def program():
        async with kvstore.create("local", threads=2) as kv:
            kv.init(3, np.ones(1, np.float32))
            kv.set_updater(adding_behind(going_on))
            ticket = kv.push_async(3, np.ones(1, np.float32))

            async def await_ticket():
                await ticket

            waiting = asyncio.ensure_future(await_ticket())
            for _ in range(5):
                await asyncio.sleep(0.001)
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not ticket.done()
            going_on.set()
            await ticket
            out = np.zeros(1, np.float32)
            kv.pull(3, out=out)
            return out[0]

    assert run(program()) == 2


def test_a_block_that_raises_aborts_its_store():
    async def program():
        async with kvstore.create("local") as kv:
            store.append(kv)
            raise KeyError("mine")

    store = []
    with pytest.raises(KeyError, match="mine"):
        run(program())
    with pytest.raises(kvstore.KVStoreError):
        store[0].keys()


def test_ten_thousand_operations_are_awaited_without_threads_of_their_own():
    going_on = threading.Event()

    async def program():
        async with kvstore.create("local", threads=2) as kv:
            kv.init(3, np.ones(1, np.float32))
            kv.set_updater(adding_behind(going_on))
            one = np.ones(1, np.float32)
            tickets = [kv.push_async(3, one) for _ in range(10_000)]
            before = len(os.listdir("/proc/self/task"))
            waits = [asyncio.ensure_future(_finish(ticket)) for ticket in tickets]
            await asyncio.sleep(0)
            assert len(os.listdir("/proc/self/task")) <= before + 1
            going_on.set()
            await asyncio.gather(*waits)
            out = np.zeros(1, np.float32)
            kv.pull(3, out=out)
            return out[0]

    assert run(program()) == 10_001


async def _finish(ticket):
    await ticket


def test_a_wait_has_a_deadline_and_goes_on_after_it():
    going_on = threading.Event()

    async def program():
        async with kvstore.create("local", threads=2) as kv:
            kv.init(3, np.ones(1, np.float32))

            def wait(key, merged, stored):
                assert going_on.wait(60)

            kv.set_updater(wait)
            ticket = kv.push_async(3, np.ones(1, np.float32))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(_finish(ticket), 0.05)
            assert not ticket.done()
            going_on.set()
            await ticket

    run(program())


def test_a_loop_that_is_closed_before_the_end_is_left_alone():
    going_on = threading.Event()
    kv = kvstore.create("local", threads=2)
    kv.init(3, np.ones(1, np.float32))

    def wait(key, merged, stored):
        assert going_on.wait(60)

    kv.set_updater(wait)
    ticket = kv.push_async(3, np.ones(1, np.float32))

    async def begin():
        waiting = asyncio.ensure_future(_finish(ticket))
        await asyncio.sleep(0.01)
        assert not waiting.done()

    asyncio.run(begin())
    going_on.set()
    ticket.wait(60)
    kv.close()
