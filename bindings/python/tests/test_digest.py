"""Digests, computed by numpy from docs/use/semantics.md alone."""

import json
import random

import numpy as np
import pytest

import kvstore

# The function of docs/use/semantics.md for a byte, for all bytes.
_TABLE = np.zeros(256, dtype=np.uint64)
for _byte in range(256):
    _sum = _byte
    for _ in range(8):
        _sum = (_sum >> 1) ^ (0x9A6C9329AC4BC9B5 if _sum & 1 else 0)
    _TABLE[_byte] = _sum


def digest_of(data):
    """The digest of bytes."""
    total, table = 2**64 - 1, [int(number) for number in _TABLE]
    for byte in data:
        total = (total >> 8) ^ table[(total ^ byte) & 0xFF]
    return total ^ (2**64 - 1)


def digest_of_array(array):
    little = array.astype(array.dtype.newbyteorder("<"))
    return digest_of(little.tobytes())


def test_vectors_of_the_document():
    assert digest_of(b"") == 0
    assert digest_of(b"123456789") == 0xAE8B14860A799888
    assert digest_of(bytes(4096)) == 0x6482D367EB22B64E
    assert digest_of(b"\xff" * 4096) == 0xC0DDBA7302ECA3AC


def test_numpy_computes_the_digests_of_200_random_keys():
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    store = kvstore.create("local")
    dtypes = ["float32", "float64", "float16", "int8", "uint8", "int32", "int64"]
    arrays, rounds = {}, {}
    for number in range(200):
        key = number if number % 2 else f"layer.{number}"
        shape = tuple(int(extent) for extent in rng.integers(0, 12, size=rng.integers(0, 4)))
        dtype = dtypes[number % len(dtypes)]
        low = 0 if dtype == "uint8" else -100
        array = np.asarray(rng.integers(low, 100, size=shape)).astype(dtype)
        store.init(key, array)
        rounds[key] = int(rng.integers(0, 3))
        for _ in range(rounds[key]):
            array = np.asarray(rng.integers(low, 100, size=shape)).astype(dtype)
            # Elements in another order of memory have the digest of their row-major order.
            store.push(key, array.T.copy().T if array.ndim > 1 else array)
        arrays[key] = array
    keys = list(arrays)
    random.Random(seed).shuffle(keys)
    for key, digest in zip(keys, store.digest(keys)):
        assert digest == (rounds[key], digest_of_array(arrays[key]), 0), key
        assert store.digest(key) == digest
    store.close()


def test_numpy_computes_the_digest_of_a_state(tmp_path):
    store = kvstore.create("local")
    store.init("w", np.ones(100, np.float16))
    store.set_optimizer("adam", learning_rate=0.1, multi_precision=True)
    store.push("w", np.linspace(0, 1, 100).astype(np.float16))
    store.save(tmp_path / "file")
    load_file = pytest.importorskip("safetensors.numpy").load_file
    tensors = load_file(str(tmp_path / "file"))
    states = [tensors[name + "w"] for name in ("#state.0:", "#state.1:", "#master:")]
    state = digest_of(b"".join(array.astype("<f4").tobytes() for array in states))
    assert store.digest("w") == (1, digest_of_array(tensors["w"]), state)
    store.close()


def test_what_is_refused():
    store = kvstore.create("local")
    store.init(1, np.zeros(3, np.float32))
    assert store.digest([]) == []
    with pytest.raises(kvstore.KeyNotFoundError, match="key 9"):
        store.digest([1, 9])
    with pytest.raises(kvstore.InvalidArgumentError):
        store.digest(-1)
    assert isinstance(store.digest(1), kvstore.KeyDigest)
    store.close()
    with pytest.raises(kvstore.ClosedError):
        store.digest(1)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_push_in_place_is_logged_as_it_was(tmp_path, threads):
    pushed = np.arange(40_000, dtype=np.float32)
    array = pushed.copy()
    store = kvstore.create(
        "local", digests="all", digest_log=str(tmp_path), threads=threads
    )
    store.init(1, np.zeros_like(array))
    store.set_optimizer("sgd", learning_rate=0.5)
    # The result overwrites the value that is pushed.
    store.pushpull(1, array, out=array)
    store.close()
    np.testing.assert_array_equal(array, -0.5 * pushed)
    [log] = tmp_path.iterdir()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    [line] = [line for line in lines if "round" in line]
    assert int(line["value"][0], 16) == digest_of_array(array)
    assert [int(push[1], 16) for push in line["pushes"]] == [digest_of_array(pushed)]
