"""Dtypes whose values are stored and copied as they are, and never added."""

import numpy as np
import pytest
import safetensors.numpy
from producer import Producer
from support import FLOAT8, OPAQUE, random_array, same_bits

import kvstore


@pytest.fixture
def random():
    return np.random.default_rng(69)


def pulled(kv, key, like):
    out = np.zeros(like.shape, like.dtype)
    kv.pull(key, out=out)
    return out


@pytest.mark.parametrize("dtype", OPAQUE, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 5), (301,)], ids=str)
def test_every_bit_comes_back_and_a_push_replaces(kv, random, dtype, shape):
    first, second = random_array(random, dtype, shape), random_array(random, dtype, shape)
    kv.init("m", first)
    assert same_bits(pulled(kv, "m", first), first)
    kv.push("m", second)
    assert same_bits(pulled(kv, "m", first), second)
    out = np.zeros(shape, dtype)
    kv.pushpull("m", first, out=out)
    assert same_bits(out, first)
    assert kv.key_info("m").dtype == dtype.name
    kv.push("m", [second], priority=1)
    assert same_bits(pulled(kv, "m", first), second)


@pytest.mark.parametrize("dtype", OPAQUE, ids=str)
def test_layouts(kv, random, dtype):
    whole = random_array(random, dtype, (6, 8))
    kv.init(1, whole[::2, ::-2])
    out = np.zeros((8, 6), dtype)
    kv.pull(1, out=out.T[::2, ::2])
    assert same_bits(np.ascontiguousarray(out.T[::2, ::2]), np.ascontiguousarray(whole[::2, ::-2]))


@pytest.mark.parametrize("dtype", OPAQUE, ids=str)
def test_sums_are_refused_in_the_call(kv, random, dtype):
    first, second = random_array(random, dtype, 4), random_array(random, dtype, 4)
    kv.init(["w", "m"], [np.ones(3), first])
    text = rf'push: key .*"m".* is {dtype.name}\[4\]: values of {dtype.name} are not added'
    with pytest.raises(kvstore.UnsupportedError, match=text):
        kv.push("m", [second, second])
    with pytest.raises(kvstore.UnsupportedError, match=f"{text}.*push one"):
        kv.push_async(["w", "m"], [[np.ones(3)], [second, second]])
    with pytest.raises(kvstore.DtypeMismatchError, match=dtype.name):
        kv.set_optimizer("sgd")
    assert same_bits(pulled(kv, "m", first), first)
    assert (pulled(kv, "w", np.ones(3)) == 1).all()


def test_an_updater_gets_them_as_they_are(kv, random):
    seen = {}

    def update(key, merged, stored):
        seen[key] = merged.copy()
        stored[:] = merged[::-1]

    values = {str(dtype): random_array(random, dtype, 5) for dtype in OPAQUE}
    kv.init(values)
    kv.set_updater(update)
    for name, value in values.items():
        kv.push(name, value[::-1])
        assert same_bits(seen[name], np.ascontiguousarray(value[::-1]))
        assert same_bits(pulled(kv, name, value), value)


def test_checkpoints_are_read_by_safetensors(kv, random, tmp_path):
    path = tmp_path / "m.safetensors"
    values = {str(dtype): random_array(random, dtype, (2, 3)) for dtype in OPAQUE}
    kv.init(values)
    kv.save(path)
    other = kvstore.create("local")
    other.load(path)
    assert all(same_bits(pulled(other, name, value), value) for name, value in values.items())
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
        for name in ("bool", "complex64"):
            assert same_bits(file.get_tensor(name), values[name])
        # Without a name in the format: its parts, as an axis more.
        parts = file.get_tensor("complex128")
    assert metadata["kvstore.dtype:complex128"] == "complex128"
    assert same_bits(parts, values["complex128"].view(np.float64).reshape(2, 3, 2))
    kv.push("complex128", values["complex128"] * 0)
    kv.load(path)
    assert same_bits(pulled(kv, "complex128", values["complex128"]), values["complex128"])


def test_files_of_safetensors_with_them_are_loaded(kv, random, tmp_path):
    path = tmp_path / "m.safetensors"
    names = ["bool", "complex64", "uint16", "int16", "uint32", "uint64"]
    values = {name: random_array(random, np.dtype(name), (3, 2)) for name in names}
    safetensors.numpy.save_file(values, path)
    kv.load(path)
    for name, value in values.items():
        assert same_bits(pulled(kv, name, value), value)


@pytest.mark.parametrize("code", range(10, 15))
def test_dlpack_has_numbers_for_the_floats_of_8_bits(kv, code):
    number = code | 8 << 8 | 1 << 16
    kv.init(1, Producer(np.arange(7, dtype=np.uint8), dtype=number))
    out = Producer(np.zeros(7, np.uint8), dtype=number)
    kv.pull(1, out=out)
    assert (out.array == np.arange(7)).all()
    assert kv.key_info(1).dtype.startswith("float8_e")
    with pytest.raises(kvstore.DtypeMismatchError):
        kv.pull(1, out=np.zeros(7, np.uint8))


def test_a_bool_of_python_is_a_bool(kv):
    kv.init(1, np.array([True, False]))
    kv.push(1, [True, True])
    out = np.zeros(2, bool)
    kv.pull(1, out=out)
    assert out.tolist() == [True, True]


def test_dtypes_of_ml_dtypes_are_told_from_untyped_bytes(kv):
    for dtype in FLOAT8:
        kv.init(str(dtype), np.ones(2, dtype))
        with pytest.raises(TypeError, match="cannot be stored"):
            kv.push(str(dtype), np.ones(2, dtype).view("V1"))
