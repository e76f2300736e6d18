"""Bound lists: what each call uses, and arrays that are not where they were."""

import gc
import threading
import weakref

import numpy as np
import pytest
from support import DTYPES, OPAQUE, WAIT_SECONDS, Gate, random_array, same_bits, sum_of

import kvstore


def zeros(count=1, size=3):
    return [np.zeros(size, np.float32) for _ in range(count)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_calls_give_the_bits_of_list_calls(kv, dtype):
    random = np.random.default_rng(7)
    keys = [5, "name", 3]
    shapes = [(4, 3), (), (100,)]
    values = [[random_array(random, dtype, shape) for _ in range(3)] for shape in shapes]
    outs = [np.zeros(shape, dtype) for shape in shapes]
    kv.init(keys, outs)
    with kv.bind(keys, values, outs) as bound:
        for _ in range(3):
            for value in (value for of_key in values for value in of_key):
                value[...] = random_array(random, dtype, value.shape)
            expected = [sum_of(of_key, dtype) for of_key in values]
            bound.push()
            bound.pull()
            assert all(map(same_bits, outs, expected))
            for out in outs:
                out[...] = 0
            bound.pushpull()
            assert all(map(same_bits, outs, expected))
    with pytest.raises(kvstore.ClosedError, match="closed"):
        bound.push()
    bound.close()
    assert repr(bound) == "<kvstore.Bound, closed>"


@pytest.mark.parametrize("dtype", OPAQUE, ids=str)
def test_opaque_dtypes(kv, dtype):
    value = random_array(np.random.default_rng(7), dtype, (5,))
    out = np.zeros(5, dtype)
    kv.init(1, out)
    kv.bind(1, value, out).pushpull()
    assert same_bits(value, out)


def test_arrays_of_any_strides_and_of_other_dtypes(kv):
    value, out = np.arange(12.0).reshape(3, 4), np.zeros((3, 8), np.float32)
    kv.init(1, np.zeros((4, 3), np.float32))
    bound = kv.bind(1, value.T, out[:, ::2].T)
    value[1, 2] = 50
    bound.pushpull()
    assert np.array_equal(out[:, ::2], value)


def test_mappings_and_lists_with_one_part(kv):
    first = {"a": np.ones(2), 7: np.ones(3)}
    outs = {7: np.zeros(3), "a": np.zeros(2)}
    kv.init(first)
    for bound in (kv.bind(first, out=outs), kv.bind(value=first, out=outs)):
        first["a"] += 1
        bound.pushpull()
        assert outs["a"].tolist() == first["a"].tolist()
    pulls, pushes = kv.bind(out=outs), kv.bind(first)
    first["a"] += 1
    pushes.push()
    pulls.pull()
    assert outs["a"].tolist() == first["a"].tolist()
    with pytest.raises(kvstore.InvalidArgumentError, match="without outs"):
        pushes.pull()
    with pytest.raises(kvstore.InvalidArgumentError, match="without values"):
        pulls.pushpull()
    pulls = kv.bind(7, out=[outs[7]])
    pulls.pull()
    for arguments in ((), (3,), (None, np.ones(3))):
        with pytest.raises(TypeError, match=r"bind\(\) missing 1 required"):
            kv.bind(*arguments)


def test_what_binding_refuses(kv):
    kv.init(1, np.zeros(3))
    with pytest.raises(kvstore.KeyNotFoundError, match="bind: key 2"):
        kv.bind(2, np.zeros(3))
    with pytest.raises(kvstore.ShapeMismatchError, match="bind: key 1"):
        kv.bind(1, np.zeros(4))
    with pytest.raises(kvstore.InvalidArgumentError, match="key 1: a bound value is an array"):
        kv.bind(1, [1.0, 2.0, 3.0])
    with pytest.raises(kvstore.InvalidArgumentError, match="read-only"):
        kv.bind(1, out=np.broadcast_to(0.0, 3))
    with pytest.raises(TypeError, match="copied or pickled"):
        __import__("copy").copy(kv.bind(1, np.zeros(3)))


def test_a_removed_key_is_an_error_with_its_name(kv):
    keys, values, outs = ["first", "second"], zeros(2), zeros(2)
    kv.init(keys, values)
    bound = kv.bind(keys, values, outs)
    kv.remove("second")
    for value in values:
        value += 1
    with pytest.raises(kvstore.KeyNotFoundError, match="second"):
        bound.pushpull()
    kv.init("second", np.zeros(4))
    with pytest.raises(kvstore.ShapeMismatchError, match="second"):
        bound.push()
    kv.pull("first", out=outs[0])
    assert outs[0].tolist() == [0, 0, 0]
    kv.remove("second")
    kv.init("second", values[1])
    bound.pushpull()
    assert outs[0].tolist() == [1, 1, 1]


def test_memory_that_was_resized_is_not_used(kv):
    value, out = np.zeros(1000), np.zeros(1000)
    kv.init(["a", 2], [value, out])
    bound = kv.bind(["a", 2], [value, value.copy()], [out, out.copy()])
    out.resize(10, refcheck=False)
    bound.push()
    for call in (bound.pull, bound.pushpull):
        with pytest.raises(kvstore.InvalidArgumentError, match="key 'a': the memory of the out"):
            call()
    value.resize(100_000, refcheck=False)
    with pytest.raises(kvstore.InvalidArgumentError, match="key 'a': the memory of the value"):
        bound.push()


def test_other_extents_of_the_same_memory_are_refused(kv):
    value = np.zeros((4, 6))
    kv.init(1, value)
    bound = kv.bind(1, value)
    value.shape = (6, 4)
    with pytest.raises(kvstore.InvalidArgumentError, match="not what was bound"):
        bound.push()
    value.shape = (4, 6)
    bound.push()


def test_a_list_keeps_its_arrays_and_lets_them_go(kv):
    value = np.zeros(3)
    kv.init(1, value)
    bound = kv.bind(1, value)
    alive = weakref.ref(value)
    del value
    gc.collect()
    bound.push()
    assert alive() is not None
    bound.close()
    del bound
    gc.collect()
    assert alive() is None


def test_the_end_of_the_store():
    kv = kvstore.create("local")
    value = np.zeros(3)
    kv.init(1, value)
    bound = kv.bind(1, value, value)
    kv.close()
    with pytest.raises(kvstore.ClosedError):
        bound.push()
    with pytest.raises(kvstore.ClosedError):
        kv.bind(1, value)
    bound.close()


def test_a_list_keeps_its_store():
    kv = kvstore.create("local")
    value, out = np.ones(3), np.zeros(3)
    kv.init(1, out)
    bound = kv.bind(1, value, out)
    del kv
    gc.collect()
    bound.pushpull()
    assert out.tolist() == [1, 1, 1]


def test_threads_take_turns(kv):
    one, out = np.ones((), np.int64), np.zeros((), np.int64)
    kv.init(1, out)
    kv.set_updater(lambda key, merged, stored: stored.__iadd__(merged))
    bound = kv.bind(1, one, out)

    def work():
        for _ in range(100):
            bound.pushpull()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert out == 400


def test_closing_during_a_call_of_another_thread(kv):
    gate, one = Gate(), np.ones(3)
    kv.init(1, np.zeros(3))
    kv.set_updater(gate)
    bound = kv.bind(1, one)
    thread = threading.Thread(target=bound.push)
    thread.start()
    assert gate.entered.wait(WAIT_SECONDS)
    bound.close()
    with pytest.raises(kvstore.ClosedError):
        bound.push()
    gate.open()
    thread.join(WAIT_SECONDS)
    out = np.zeros(3)
    kv.pull(1, out=out)
    assert out.tolist() == [1, 1, 1]


def test_an_updater_may_not_use_it(kv):
    value = np.ones(3)
    kv.init(1, np.zeros(3))
    bound = kv.bind(1, value, value)
    failures = []

    def update(key, merged, stored):
        with pytest.raises(kvstore.ReentrantError) as failure:
            bound.push()
        failures.append(failure)

    kv.set_updater(update)
    bound.push()
    assert len(failures) == 1


def test_a_child_of_fork_cannot_use_it(run):
    result = run(
        "-c",
        """
import os, numpy as np, kvstore
kv, value = kvstore.create("local"), np.ones(3)
kv.init(1, value)
bound = kv.bind(1, value, value)
child = os.fork()
if child == 0:
    try:
        bound.push()
    except kvstore.ForkedError:
        bound.close()
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
bound.pushpull()
""",
    )
    assert (result.returncode, result.stderr) == (0, "")


class TestTorch:
    """Tensors, whose memory PyTorch may replace."""

    @pytest.fixture(autouse=True)
    def _torch(self):
        self.torch = pytest.importorskip("torch")

    def test_tensors_and_parameters(self, kv):
        torch = self.torch
        weight = torch.nn.Parameter(torch.zeros(5))
        gradient, array = torch.zeros(5), np.zeros(5, np.float32)
        kv.init("w", weight)
        bound = kv.bind("w", [gradient, array], weight)
        before = weight._version
        for step in range(3):
            gradient.fill_(step)
            array[...] = 10
            bound.pushpull()
            assert weight.tolist() == [step + 10.0] * 5
        assert weight._version > before

    def test_a_change_of_an_out_is_seen_by_backward(self, kv):
        torch = self.torch
        out = torch.ones(3, requires_grad=True)
        kv.init(1, torch.zeros(3))
        bound = kv.bind(1, out=out)
        loss = (out * out).sum()
        bound.pull()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_replaced_and_freed_memory_is_not_used(self, kv):
        torch = self.torch
        value, out = torch.zeros(1000), torch.zeros(1000)
        kv.init(1, value)
        bound = kv.bind(1, value, out)
        out.data = torch.ones(1000)
        bound.push()
        for call in (bound.pull, bound.pushpull):
            with pytest.raises(kvstore.InvalidArgumentError, match="key 1: the memory of the out"):
                call()
        assert out.tolist() == [1.0] * 1000
        value.untyped_storage().resize_(0)
        with pytest.raises((kvstore.InvalidArgumentError, RuntimeError)):
            bound.push()
        value.untyped_storage().resize_(4000)
        value.resize_(10)
        with pytest.raises(kvstore.InvalidArgumentError, match="the memory of the value"):
            bound.push()

    def test_a_tensor_that_is_transposed_in_place_is_not_read_as_it_was(self, kv):
        torch = self.torch
        value, out = torch.arange(4.0).reshape(2, 2), torch.zeros(2, 2)
        kv.init(1, value)
        bound = kv.bind(1, value, out)
        bound.pushpull()
        value.t_()
        with pytest.raises(kvstore.InvalidArgumentError, match="the memory of the value"):
            bound.pushpull()
        value.t_()
        bound.pushpull()
        assert out.tolist() == [[0, 1], [2, 3]]

    def test_a_torch_without_a_table_is_asked_by_its_methods(self, run):
        result = run(
            "-c",
            """
import torch
if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    del torch.Tensor.__dlpack_c_exchange_api__
import kvstore
kv = kvstore.create("local")
value, column = torch.arange(4.0).reshape(2, 2), torch.ones(4, 1)[::2]
kv.init([1, 2], [value, column])
bound = kv.bind([1, 2], [value, column], [torch.zeros(2, 2), torch.zeros(2, 1)])

def check_refused():
    try:
        bound.push()
    except kvstore.InvalidArgumentError as error:
        assert "key 1: the memory of the value" in str(error)
        return
    raise AssertionError("it was pushed as it was bound")

bound.pushpull()
value.t_()
check_refused()
value.t_()
bound.pushpull()
value.data = torch.ones(2, 2)
check_refused()
""",
        )
        assert (result.returncode, result.stderr) == (0, "")

    def test_other_tensors_than_torch_keep_their_memory(self, kv):
        class Array:
            """What knows DLPack only."""

            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack__(self, **options):
                return self.tensor.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.tensor.__dlpack_device__()

        value, out = np.ones(3), np.zeros(3)
        kv.init(1, out)
        bound = kv.bind(1, Array(value), Array(out))
        value[0] = 5
        bound.pushpull()
        assert out.tolist() == [5, 1, 1]
