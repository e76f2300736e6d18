"""Arrays of packages without `__dlpack__`, and objects that are no arrays at all."""

import numpy as np
import pytest
from producer import CUDA, Producer

import kvstore


class MxnetArray:
    """Behaves as an NDArray of MXNet 1.9: exported by functions of its own, and a sequence."""

    def __init__(self, array, stype="default", device=None):
        self.producer = Producer(array, **({} if device is None else {"device": device}))
        self.stype, self.exports, self.looked_at = stype, [], 0

    def to_dlpack_for_read(self):
        self.exports.append("read")
        return self.producer.__dlpack__()

    def to_dlpack_for_write(self):
        self.exports.append("write")
        return self.producer.__dlpack__()

    def __len__(self):
        return len(self.producer.array)

    def __getitem__(self, index):
        self.looked_at += 1
        return MxnetArray(self.producer.array[index : index + 1])


class Sequence:
    """A long sequence of objects that counts how often it is looked at."""

    def __init__(self, count=1_000_000):
        self.count, self.looked_at = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError
        self.looked_at += 1
        return self


class Odd:
    """No array, and no sequence either."""


def test_arrays_of_mxnet_are_used_where_they_are(kv):
    value, out = MxnetArray(np.full((2, 3), 2.0)), MxnetArray(np.zeros((2, 3)))
    kv.init(3, value)
    kv.push(3, [value, value])
    kv.pull(3, out=out)
    assert (out.producer.array == 4).all()
    kv.pushpull(3, value)
    assert value.exports == ["read"] * 4 + ["write"]
    assert out.exports == ["write"]
    kv.push_async([3], [[value]]).wait(60)
    out_row = MxnetArray(np.zeros((1, 3)))
    kv.pull_rows(3, [1], out=out_row)
    assert out_row.producer.array.tolist() == [[2] * 3]
    assert value.looked_at == out.looked_at == 0
    assert value.producer.alive == out.producer.alive == 0


def test_arrays_of_mxnet_on_a_gpu_are_refused_with_the_key_if_the_store_is_told_so():
    kv = kvstore.create(cuda=False)
    with pytest.raises(kvstore.UnsupportedError, match=r"init: key 3: .*CUDA"):
        kv.init(3, MxnetArray(np.ones(2), device=CUDA))


@pytest.mark.parametrize("stype", ["row_sparse", "csr"])
def test_sparse_arrays_of_mxnet_are_refused(kv, stype):
    kv.init(3, np.ones((2, 3)))
    with pytest.raises(TypeError, match=r"push: key 3: a sparse MxnetArray .*push_rows\("):
        kv.push(3, MxnetArray(np.ones((2, 3)), stype=stype))
    with pytest.raises(TypeError, match=r"pull: key 3: a sparse MxnetArray .*push_rows\("):
        kv.pull(3, out=MxnetArray(np.ones((2, 3)), stype=stype))


def test_a_sequence_of_objects_is_refused_before_it_is_walked(kv):
    kv.init(3, np.ones(4))
    odd = Sequence()
    for value in (odd, [odd], [[odd]], [odd] * 1_000_000):
        for call in (lambda value=value: kv.push(3, value), lambda value=value: kv.init(4, value)):
            with pytest.raises(TypeError, match=r"(push: key 3|init: key 4): .*Sequence"):
                call()
    with pytest.raises(TypeError, match="Sequence"):
        kv.push_rows(3, odd, np.ones(1))
    assert odd.looked_at <= 8, "numpy has walked it"


def test_a_long_list_of_objects_is_refused_by_its_first_one(kv):
    class Counted(list):
        walked = 0

        def __iter__(self):
            for each in super().__iter__():
                Counted.walked += 1
                yield each

    kv.init(3, np.ones(4))
    with pytest.raises(TypeError, match="push: key 3: a list of Odd is no list of arrays"):
        kv.push(3, Counted([Odd()] * 1_000_000))
    assert Counted.walked <= 2


def test_what_numpy_reads_as_a_whole_is_a_value(kv):
    class Exporter:
        def __array__(self, dtype=None, copy=None):
            return np.full(3, 7, np.int64)

    import array

    kv.init(3, range(3))
    kv.push(3, Exporter())
    kv.push(3, array.array("q", [1, 2, 3]))
    kv.push(3, memoryview(np.arange(3)))
    out = np.zeros(3, np.int64)
    kv.pull(3, out=out)
    assert out.tolist() == [0, 1, 2]
