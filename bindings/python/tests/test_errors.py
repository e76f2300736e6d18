"""Mistakes: which exception, which text, and that nothing has changed."""

import builtins
import pickle
import re

import numpy as np
import pytest
from conftest import ROOT

import kvstore


@pytest.fixture
def kv():
    with kvstore.create("local") as store:
        store.init([3, "w"], [np.zeros((2, 3), np.float32), np.ones(4, np.int32)])
        yield store


def text_of(kind, call):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_each_status_has_a_class_that_fits_a_builtin():
    builtin = {
        "INVALID_ARGUMENT": ValueError,
        "UNSUPPORTED": NotImplementedError,
        "OPTION": ValueError,
        "KEY_NOT_FOUND": KeyError,
        "SHAPE_MISMATCH": ValueError,
        "DTYPE_MISMATCH": TypeError,
        "TIMEOUT": builtins.TimeoutError,
        "ROLE": RuntimeError,
        "PEER_LOST": ConnectionError,
        "EVICTED": ConnectionError,
        "REFUSED": ConnectionError,
        "NETWORK": OSError,
        "DEVICE": RuntimeError,
        "OUT_OF_MEMORY": MemoryError,
        "IO": OSError,
        "CORRUPT": ValueError,
        "CALLBACK": RuntimeError,
    }
    for status in kvstore.Status:
        if status is not kvstore.Status.OK:
            error = kvstore._errors.error_for(status, "text")
            assert type(error) is not kvstore.KVStoreError
            assert (error.status, str(error)) == (status, "text")
            assert isinstance(error, builtin.get(status.name, kvstore.KVStoreError))
            copy = pickle.loads(pickle.dumps(error))
            assert (type(copy), copy.status, str(copy)) == (type(error), status, "text")


def test_statuses_are_those_of_the_library():
    for status in kvstore.Status:
        name = kvstore._library.loaded.kv_status_name(status).decode()
        assert name == ("KV_OK" if status == 0 else f"KV_ERR_{status.name}")


def test_everything_in_the_header_is_known():
    header = (ROOT / "include" / "kvstore.h").read_text()
    results = r"(?:kv_status|void|const char \*|uint32_t|int)"
    functions = re.findall(rf"^{results} ?(kv_\w+)\(", header, re.M)
    library = kvstore._library
    polled = {"kv_watch", "kv_next_done", "kv_event_fd"}  # Python has event loops of its own.
    assert {*functions} == {*library.ARGUMENTS, *library.NATIVE, "kv_abi_version", *polled}
    numbers = re.findall(r"^ +KV_(?:ERR_)?(\w+) = (\d+),$", header, re.M)
    statuses = {name: int(number) for name, number in numbers if name in kvstore.Status.__members__}
    assert statuses == {status.name: int(status) for status in kvstore.Status}
    assert len(re.findall(r"^ +KV_ERR_\w+ = ", header, re.M)) == len(statuses) - 1
    assert f"#define KV_ABI_VERSION {kvstore._library.ABI_VERSION}\n" in header


def test_a_status_from_the_future_is_the_base_class():
    error = kvstore._errors.error_for(59, "text")
    assert type(error) is kvstore.KVStoreError
    assert error.status == 59
    assert pickle.loads(pickle.dumps(error)).status == 59


def test_types_of_stores():
    assert kvstore.create().type == "local"
    for alias in ("local", "LOCAL_update_cpu", "local_allreduce_cpu"):
        assert kvstore.create(alias).type == "local"
    for alias in ("device", "Local_AllReduce_Device"):
        assert kvstore.create(alias).type == "device"
    text = text_of(kvstore.InvalidArgumentError, lambda: kvstore.create("nonsense"))
    assert "nonsense" in text
    assert "local" in text
    assert "device" in text
    # A library with the distributed stores misses an option, one without them says so.
    missing = (kvstore.OptionError, kvstore.UnsupportedError)
    with pytest.raises(missing, match=r"kvstore run|not in this build"):
        kvstore.create("dist_sync")
    with pytest.raises(TypeError, match="is a str, not int"):
        kvstore.create(3)


def test_options():
    assert kvstore.create(threads=1, isa="scalar").stats()["isa"] == "scalar"
    assert kvstore.create(threads=3).stats()["threads"] == 3
    assert "threads" in text_of(kvstore.OptionError, lambda: kvstore.create(treads=1))
    text_of(kvstore.OptionError, lambda: kvstore.create(threads="many"))
    text_of(kvstore.OptionError, lambda: kvstore.create(updater_undo="perhaps"))


@pytest.mark.parametrize("key", [-1, np.int64(-1), 2**63, -(2**70)])
def test_integers_out_of_range(kv, key):
    with pytest.raises(kvstore.InvalidArgumentError, match=f"key {key} is out of range"):
        kv.push(key, np.zeros(1))


@pytest.mark.parametrize("key", [1.0, None, b"w", True, np.bool_(True), np.zeros(2), {}])
def test_keys_of_other_types(kv, key):
    with pytest.raises(TypeError, match="a key is an integer or a str"):
        kv.push([key], [np.zeros(1)])
    with pytest.raises(TypeError, match="a key is an integer or a str"):
        kv.remove(key)


def test_names_without_nul(kv):
    with pytest.raises(kvstore.InvalidArgumentError, match="NUL"):
        kv.init("a\0b", np.zeros(1))
    with pytest.raises(ValueError, match="surrogates"):
        kv.init("\udc80", np.zeros(1))


def test_unknown_keys(kv):
    out = np.zeros(1)
    for call in (
        lambda: kv.push(77, out),
        lambda: kv.pull(77, out=out),
        lambda: kv.pushpull(77, out),
        lambda: kv.remove(77),
        lambda: kv.key_info(77),
    ):
        assert "key 77" in text_of(kvstore.KeyNotFoundError, call)
    assert '"typo"' in text_of(kvstore.KeyNotFoundError, lambda: kv.pull("typo", out=out))


def test_a_second_init(kv):
    assert "key 3" in text_of(kvstore.KeyExistsError, lambda: kv.init(3, np.zeros(1)))
    text_of(kvstore.KeyExistsError, lambda: kv.init([8, 8], [np.zeros(1)] * 2))
    text_of(kvstore.KeyExistsError, lambda: kv.init(8, [np.zeros(1)] * 2))
    assert kv.keys() == [3, "w"]


def test_shapes(kv):
    text = text_of(kvstore.ShapeMismatchError, lambda: kv.push(3, np.zeros((3, 2), np.float32)))
    assert text.startswith("push: key 3")
    assert "float32[3,2]" in text
    assert "float32[2,3]" in text
    text = text_of(kvstore.ShapeMismatchError, lambda: kv.pull("w", out=np.zeros((), np.int32)))
    assert text.startswith("pull: key ")
    assert '"w"' in text


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble, "m8[s]"], ids=str)
def test_a_refused_dtype_is_called_by_its_name(kv, dtype):
    name = re.escape(np.dtype(dtype).name)
    with pytest.raises((kvstore.KVStoreError, TypeError), match=rf"\b{name}"):
        kv.init(33, np.zeros(2, dtype))


def test_dtypes(kv):
    text = text_of(kvstore.DtypeMismatchError, lambda: kv.push(3, np.zeros((2, 3), np.int64)))
    assert "int64[2,3]" in text
    for odd in (np.uint16, np.bool_, np.complex64, np.longdouble):
        with pytest.raises(kvstore.KVStoreError) as caught:
            kv.push(3, np.zeros((2, 3), odd))
        assert "key 3" in str(caught.value)
    for odd in ("U3", object, "M8[s]", [("a", "f4")]):
        with pytest.raises(TypeError, match=r"push: key 3: arrays of dtype .* cannot be stored"):
            kv.push(3, np.zeros((2, 3), odd))
    with pytest.raises(TypeError, match="byte order"):
        kv.push(3, np.zeros((2, 3), ">f4"))
    with pytest.raises(TypeError, match="cannot be stored"):
        kv.push(3, "text")


def test_outs_that_cannot_be_written(kv):
    out = np.zeros((2, 3), np.float32)
    out.flags.writeable = False
    text = text_of(kvstore.InvalidArgumentError, lambda: kv.pull(3, out=out))
    assert text == "pull: key 3: an out is a read-only numpy array"
    text_of(kvstore.InvalidArgumentError, lambda: kv.pushpull(3, out))
    for odd in (1.0, None, [1.0], "text", np.float32(1)):
        with pytest.raises(TypeError, match="an out must be a numpy array"):
            kv.pull([3], out=[odd])


def test_outs_that_overlap(kv):
    whole = np.zeros(10, np.float32)
    first, second = whole[:6].reshape(2, 3), whole[4:].reshape(2, 3)
    assert "key 3" in text_of(kvstore.OverlapError, lambda: kv.pull([3, 3], out=[first, second]))
    text_of(kvstore.OverlapError, lambda: kv.pushpull(3, first, out=second))
    row = np.lib.stride_tricks.as_strided(whole, (2, 3), (0, 4))
    text_of(kvstore.OverlapError, lambda: kv.pull(3, out=row))
    assert not whole.any()


def test_layouts_that_cannot_be_described(kv):
    packed = np.zeros((2, 3), np.dtype([("a", "f4"), ("b", "u1"), ("c", "u1")]))
    with pytest.raises(kvstore.InvalidArgumentError, match="strides"):
        kv.push(3, packed["a"])
    misaligned = np.frombuffer(bytearray(25), np.uint8)[1:].view(np.float32).reshape(2, 3)
    assert "align" in text_of(kvstore.InvalidArgumentError, lambda: kv.push(3, misaligned))


def test_lists_that_do_not_fit(kv):
    one = np.zeros((2, 3), np.float32)
    text = text_of(kvstore.InvalidArgumentError, lambda: kv.push([3, "w"], [one]))
    assert text == "push: 2 keys, but 1 arrays or lists"
    with pytest.raises(TypeError, match="a list of keys needs a list of arrays, not ndarray"):
        kv.push([3], one)


def test_a_refused_call_changes_nothing(kv):
    out = np.full((2, 3), 7, np.float32)
    good, bad = np.ones((2, 3), np.float32), np.zeros(9, np.int32)
    text_of(kvstore.ShapeMismatchError, lambda: kv.push([3, "w"], [good, bad]))
    text_of(kvstore.ShapeMismatchError, lambda: kv.pull([3, "w"], out=[out, bad]))
    text_of(kvstore.ShapeMismatchError, lambda: kv.pushpull([3, "w"], [good, bad]))
    text_of(kvstore.KeyExistsError, lambda: kv.init([9, 3], [good, good]))
    text_of(kvstore.KeyNotFoundError, lambda: kv.remove([3, 9]))
    assert (out == 7).all()
    kv.pull(3, out=out)
    assert not out.any()
    assert kv.keys() == [3, "w"]


def test_a_closed_store(kv):
    kv.close()
    assert "closed" in repr(kv)
    assert kv.type == "local"
    for call in (kv.keys, kv.stats, kv.barrier, kv.done, kv.serve, kv.wait_all, lambda: kv.rank):
        assert text_of(kvstore.ClosedError, call) == "the store is closed"
    with pytest.raises(kvstore.ClosedError), kv:
        pass
