"""Checkpoints: training that goes on, and files that the package safetensors reads."""

import json
import os
import struct

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from support import BFLOAT16, DTYPES, Gate, random_array, same_bits

import kvstore
from kvstore import _checkpoint

RULES = ["sgd", "momentum", "adam", "nadam", "groupadagrad", "lamb", "lars", "dcasgd"]


def pulled(kv, key):
    info = kv.key_info(key)
    out = np.empty(info.shape, BFLOAT16 if info.dtype == "bfloat16" else info.dtype)
    kv.pull(key, out=out)
    return out


def same_stores(a, b):
    keys = a.keys()
    return keys == b.keys() and all(same_bits(pulled(a, key), pulled(b, key)) for key in keys)


@pytest.mark.parametrize("rule", RULES)
def test_training_goes_on_as_if_it_had_not_stopped(kv, tmp_path, rule):
    random = np.random.default_rng(3)
    shapes = {7: (3, 4), "weight": (5,), "bias": ()}
    for key, shape in shapes.items():
        kv.init(key, random_array(random, np.dtype(np.float32), shape))
    kv.set_optimizer(rule, wd=0.1, lr_scheduler="factor", step=2, factor=0.5)
    kv.set_hyperparameter("lr_mult", 1 / 3, key="bias")
    gradients = [
        {key: random_array(random, np.dtype(np.float32), shape) for key, shape in shapes.items()}
        for _ in range(8)
    ]
    path = tmp_path / "file"
    for gradient in gradients[:4]:
        kv.push(list(gradient), list(gradient.values()))
    kv.save(path)
    other = kvstore.create(threads=1, isa="scalar")
    other.load(path)
    for gradient in gradients[4:]:
        assert same_stores(kv, other)
        kv.push(list(gradient), list(gradient.values()))
        other.push(list(gradient), list(gradient.values()))
    assert same_stores(kv, other)


def test_safetensors_reads_every_dtype_and_name(kv, tmp_path):
    random = np.random.default_rng(4)
    path = str(tmp_path / "file")
    names = ["weight", "#weight", "gr\u00f6\u00dfe", "", "__metadata__"]
    arrays = {}
    for dtype in DTYPES:
        for shape in [(), (3,), (2, 3), (0, 2)]:
            key = names.pop() if names else len(arrays)
            arrays[key] = np.asarray(random_array(random, dtype, shape), dtype)
            kv.init(key, arrays[key])
    kv.save(path)
    if BFLOAT16 is None:
        pytest.skip("ml_dtypes not installed")
    found = safetensors.numpy.load_file(path)
    in_file = {"#weight": "##weight", "__metadata__": "#name:__metadata__"}
    for key, array in arrays.items():
        name = f"#{key}" if isinstance(key, int) else in_file.get(key, key)
        assert same_bits(found.pop(name), array), name
    assert all(name == "#checksum" or name.startswith("#pad.") for name in found)


def test_safetensors_reads_states_and_options(kv, tmp_path):
    path = str(tmp_path / "file")
    kv.init("w", np.ones((2, 3), np.float16))
    kv.init(3, np.ones(2))
    kv.init("not pushed", np.ones(2, np.float32))
    kv.set_optimizer("adam", learning_rate=1e-3, multi_precision=True, beta1=0.1)
    kv.set_hyperparameter("wd_mult", 0.1, key="w")
    for _ in range(2):
        kv.push(["w", 3], [np.full((2, 3), 0.5, np.float16), np.full(2, 0.5)])
    kv.save(path)
    with safetensors.safe_open(path, "np") as file:
        texts = file.metadata()
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 no dict
    assert texts == {
        "kvstore.format": "1",
        "kvstore.version": kvstore.__version__,
        "kvstore.optimizer": "adam",
        "kvstore.options": "learning_rate=0.001,multi_precision=true,beta1=0.1",
        "kvstore.wd_mult:w": "0.1",
    }
    assert found["#updates"].tolist() == [2, 2, 0]
    assert found["#carried"].tolist() == [0, 0, 0]
    assert found["#state.0:w"].shape == (2, 3)
    assert found["#state.0:w"].dtype == np.float32
    assert found["#state.0:#3"].dtype == np.float64
    # Averages of two gradients of 0.5, with beta1 of 0.1 and beta2 of 0.999.
    assert np.allclose(found["#state.0:w"], 0.5 * (1 - 0.1**2))
    assert np.allclose(found["#state.1:#3"], 0.25 * (1 - 0.999**2))
    assert same_bits(found["#master:w"].astype(np.float16), found["w"])
    assert "#state.0:not pushed" not in found


def test_tensors_are_aligned_for_readers_that_map_the_file(kv, tmp_path):
    path = tmp_path / "file"
    for key, dtype in enumerate([np.int8, np.float64, np.uint8, np.float16, np.int64]):
        kv.init(key, np.ones(3, dtype))
    kv.save(path)
    mapped = np.memmap(path, np.uint8, "r")
    (length,) = struct.unpack("<Q", mapped[:8].tobytes())
    assert (8 + length) % 8 == 0
    with safetensors.safe_open(path, "np") as file:
        names = file.offset_keys()
        sizes = {name: file.get_tensor(name).nbytes for name in names}
        places = dict(zip(names, np.cumsum([0, *sizes.values()])))
        for name in names:
            assert places[name] % file.get_tensor(name).itemsize == 0, name


@pytest.mark.parametrize("kind", [str, os.fsencode, lambda path: path])
def test_paths_of_every_kind(kv, tmp_path, kind):
    path = kind(tmp_path / "f\u00efle")
    kv.init(1, np.ones(2))
    kv.save(path)
    other = kvstore.create()
    other.load(path)
    assert same_stores(kv, other)
    for bad in (7, None):
        with pytest.raises(TypeError):
            kv.save(bad)
    for call in (kv.save, kv.load):
        with pytest.raises(kvstore.InvalidArgumentError, match="NUL"):
            call("a\0b")


def test_bad_files_are_refused(kv, tmp_path):
    path = tmp_path / "file"
    kv.init(1, np.ones(2, np.float32))
    kv.save(path)
    good = path.read_bytes()
    with pytest.raises(kvstore.IoError, match="No such file"):
        kv.load(tmp_path / "none")
    with pytest.raises(OSError, match="not a file"):
        kv.load(tmp_path)
    with pytest.raises(kvstore.IoError, match="No such file"):
        kv.save(tmp_path / "none" / "file")
    path.write_bytes(good[:-1])
    with pytest.raises(kvstore.CorruptError, match="cut off"):
        kv.load(path)
    path.write_bytes(good[:-12] + b"\1" + good[-11:])
    with pytest.raises(kvstore.CorruptError, match='tensor "#1" are altered'):
        kv.load(path)
    # One that another program has written again has lost its checksums.
    path.write_bytes(good)
    tensors = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file(tensors, path, {"kvstore.format": "1"})
    with pytest.raises(kvstore.CorruptError):
        kv.load(path)
    assert pulled(kv, 1).tolist() == [1, 1]
    with pytest.raises(kvstore.ShapeMismatchError, match=r"key 1 is float32\[2\] in the file"):
        path.write_bytes(good)
        kv.remove(1)
        kv.init(1, np.ones(3, np.float32))
        kv.load(path)


def test_a_save_comes_after_what_was_started_before_it(kv, tmp_path):
    gate = Gate()
    kv.init(1, np.zeros(2))
    kv.set_updater(gate)
    ticket = kv.push_async(1, np.ones(2))
    assert gate.entered.wait(60)
    gate.open()
    kv.save(tmp_path / "file")
    ticket.wait(60)
    other = kvstore.create()
    other.load(tmp_path / "file")
    assert pulled(other, 1).tolist() == [1, 1]


def test_a_load_drops_the_updater_if_the_file_has_an_optimizer(kv, tmp_path):
    kv.init(1, np.zeros(2))
    kv.set_optimizer("sgd", learning_rate=1)
    kv.save(tmp_path / "file")
    kv.set_updater(lambda key, merged, stored: 1 / 0)
    kv.load(tmp_path / "file")
    kv.push(1, np.ones(2))
    assert pulled(kv, 1).tolist() == [-1, -1]


def weights_of(shapes):
    random = np.random.default_rng(5)
    return {
        name: random_array(random, np.dtype(dtype), shape)
        for name, (dtype, shape) in shapes.items()
    }


SHAPES = {
    "layer.weight": ("float32", (3, 4)),
    "layer.bias": ("float16", (4,)),
    "bn.num_batches_tracked": ("int64", ()),
    "none": ("float64", (0, 2)),
    "#odd name": ("uint8", (3,)),
}


def test_files_written_in_python_are_those_of_the_library(kv, tmp_path):
    """The page of the format says enough to write one: the same bytes, which a store loads."""
    kv.init(["b", "#a", "__metadata__", "\u00e9\n"], [np.ones(3, np.float32)] * 4)
    kv.init(["narrow", "odd"], [np.ones((2, 2), np.float16), np.ones(3, np.float64)])
    kv.set_optimizer("nadam", learning_rate=0.1, multi_precision=True)
    kv.set_hyperparameter("wd_mult", 0.5, "b")
    kv.push(
        ["b", "narrow", "odd"], [np.ones(3, np.float32), np.ones((2, 2), np.float16), np.ones(3)]
    )
    path, again = str(tmp_path / "library"), str(tmp_path / "python")
    kv.save(path)
    texts, tensors = _checkpoint.read(path)
    made = [
        (name, each) for name, each in tensors.items() if not name.startswith(("#pad", "#check"))
    ]
    _checkpoint.write(again, texts, made)
    with open(path, "rb") as one, open(again, "rb") as other:
        assert one.read() == other.read()
    assert _checkpoint.key_of("#a") in tensors
    assert _checkpoint.key_of("__metadata__") in tensors
    kv.load(again)


def test_values_of_another_program_are_loaded_by_name(kv, tmp_path):
    weights = weights_of(SHAPES)
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    kv.init(["layer.weight", 7], [np.zeros((3, 4), np.float32), np.ones(2)])
    kv.set_optimizer_for("bn.num_batches_tracked", "none")
    kv.set_optimizer_for("#odd name", "none")
    kv.set_optimizer("sgd", learning_rate=0.5, momentum=0.5)
    kv.push("layer.weight", np.ones((3, 4), np.float32))
    kv.load(tmp_path / "model.safetensors")
    assert kv.keys()[:2] == [7, "layer.weight"]
    assert set(kv.keys()) == {7, *weights}
    assert all(same_bits(pulled(kv, name), array) for name, array in weights.items())
    assert list(pulled(kv, 7)) == [1, 1]
    # The optimizer stays, and the momentum of before does not.
    kv.push("layer.weight", np.ones((3, 4), np.float32))
    expected = weights["layer.weight"] - np.float32(0.5)
    assert same_bits(pulled(kv, "layer.weight"), expected)


def test_floats_of_another_program_become_those_of_the_keys(kv, tmp_path):
    exact = np.array([0.5, -3.25, 1e-3, 65504], np.float16)
    precise = np.array([1 / 3, 1e-30, -2.5, 1e10])
    safetensors.numpy.save_file({"a": exact, "b": precise}, tmp_path / "f.safetensors")
    kv.init(["a", "b"], [np.zeros(4, np.float32), np.zeros(4, np.float32)])
    kv.load(tmp_path / "f.safetensors")
    assert same_bits(pulled(kv, "a"), exact.astype(np.float32))
    assert same_bits(pulled(kv, "b"), precise.astype(np.float32))
    kv.init("c", np.zeros(4, np.int32))
    safetensors.numpy.save_file({"c": exact}, tmp_path / "g.safetensors")
    with pytest.raises(kvstore.DtypeMismatchError, match=r'"c" is float16.4. in the file, int32'):
        kv.load(tmp_path / "g.safetensors")


def test_a_function_or_a_dict_names_the_keys_of_tensors(kv, tmp_path):
    weights = weights_of({"model.a": ("float32", (3,)), "head": ("float32", (2,))})
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(weights, path)
    kv.load(path, lambda name: name[6:] if name.startswith("model.") else None)
    assert kv.keys() == ["a"]
    assert same_bits(pulled(kv, "a"), weights["model.a"])
    kv.load(path, {"head": "größer", "none": "b"})
    assert set(kv.keys()) == {"a", "größer"}
    assert same_bits(pulled(kv, "größer"), weights["head"])

    def fail(name):
        raise LookupError(f"{name} has no place")

    with pytest.raises(kvstore.CallbackError, match=r'tensor "head".*head has no place') as caught:
        kv.load(path, fail)
    assert isinstance(caught.value.__cause__, LookupError)
    with pytest.raises(kvstore.CallbackError, match="the name of a key is a str, not int"):
        kv.load(path, lambda name: 7)
    with pytest.raises(kvstore.CallbackError, match="NUL"):
        kv.load(path, lambda name: "a\0b")
    with pytest.raises(kvstore.InvalidArgumentError, match='are both named "one"'):
        kv.load(path, lambda name: "one")
    with pytest.raises(kvstore.CallbackError, match="Reentrant"):
        kv.load(path, lambda name: kv.barrier())
    with pytest.raises(KeyboardInterrupt):
        kv.load(path, interrupt)
    with pytest.raises(TypeError, match="a function or a dict, not str"):
        kv.load(path, "model.")
    assert set(kv.keys()) == {"a", "größer"}
    kv.save(path)
    with pytest.raises(kvstore.UnsupportedError, match="checkpoint of a store"):
        kv.load(path, {})


def interrupt(name):
    raise KeyboardInterrupt


def write(path, header, data=b"", announced=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", announced or len(text)) + text + data)
    return path


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_bfloat16_and_any_order_of_the_header(kv, tmp_path):
    bits = np.array([0x3F80, 0xC000, 0x7F7F], np.uint16)
    header = {"b": entry("F32", [1], 6, 10), "a": entry("BF16", [3], 0, 6)}
    data = bits.tobytes() + np.float32(1.5).tobytes()
    kv.init("a", np.zeros(3, np.float32))
    kv.load(write(tmp_path / "odd.safetensors", header, data))
    assert same_bits(pulled(kv, "a"), (bits.astype(np.uint32) << 16).view(np.float32))
    assert pulled(kv, "b") == np.float32(1.5)


def shards(folder):
    weights = weights_of(SHAPES)
    first = ["layer.weight", "none"]
    rest = [name for name in weights if name not in first]
    parts = {"model-1.safetensors": first, "model-2.safetensors": rest}
    for file, names in parts.items():
        safetensors.numpy.save_file({name: weights[name] for name in names}, folder / file)
    places = {name: file for file, names in parts.items() for name in names}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 9}, "weight_map": places}))
    return index, places, weights


def test_the_index_of_several_files_is_loaded_as_one(kv, tmp_path):
    index, _, weights = shards(tmp_path)
    kv.load(index)
    assert set(kv.keys()) == set(weights)
    assert all(same_bits(pulled(kv, name), array) for name, array in weights.items())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda places: places.update(more="model-1.safetensors"), '"more" of the index is not'),
        (lambda places: places.update(none="model-2.safetensors"), '"none" of the index is not'),
        (lambda places: places.update(none="../model-1.safetensors"), "only files beside itself"),
        (lambda places: places.update(none="/etc/passwd"), "only files beside itself"),
        (lambda places: places.update(none=".."), "only files beside itself"),
        (lambda places: places.update(none=""), "only files beside itself"),
        (lambda places: places.clear(), "without tensors"),
        (lambda places: places.update(none=7), "no index of files"),
    ],
)
def test_an_index_that_lies_is_refused(kv, tmp_path, change, says):
    index, places, _ = shards(tmp_path)
    change(places)
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(kvstore.CorruptError, match=says):
        kv.load(index)
    index.write_text("[1")
    with pytest.raises(kvstore.CorruptError, match="no index of files"):
        kv.load(index)
    assert kv.keys() == []


def test_a_missing_part_of_a_model_is_named(kv, tmp_path):
    index, _, _ = shards(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(kvstore.IoError, match=r"model-2\.safetensors: cannot read it"):
        kv.load(index)
    kv.save(tmp_path / "model-2.safetensors")
    with pytest.raises(kvstore.CorruptError, match=r"model-2\.safetensors: it is a checkpoint"):
        kv.load(index)


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        ({"a": entry("F32", [2], 0, 8)}, 7, "cut off"),
        ({"a": entry("F32", [2], 0, 8)}, 9, "longer than it was"),
        ({"a": entry("F32", [2], 0, 4)}, 4, "cannot lie from byte 0 to 4"),
        ({"a": entry("F32", [2], 8, 16)}, 16, "cannot lie from byte 8"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, 12, "byte 4 to 12"),
        ({"a": entry("F32", [-2], 0, 8)}, 8, "cannot lie"),
        ({"a": entry("F32", [2**62, 2**62], 0, 8)}, 8, "cannot lie"),
        ({"a": entry("F99", [2], 0, 8)}, 8, "unknown dtype"),
        ({"a": {**entry("F32", [2], 0, 8), "more": 1}}, 8, "damaged"),
        (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},' * 2 + b'"c":1}', 0, "damaged"),
        (b'{"a\\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "NUL"),
    ],
)
def test_a_file_of_another_program_that_lies_is_refused(kv, tmp_path, header, data, says):
    with pytest.raises(kvstore.CorruptError, match=says):
        kv.load(write(tmp_path / "bad.safetensors", header, bytes(data)))
    assert kv.keys() == []


def test_dtypes_that_no_key_can_have_are_named(kv, tmp_path):
    header = {"packed": entry("F4", [4], 0, 2)}
    with pytest.raises(kvstore.UnsupportedError, match='its tensor "packed" is F4'):
        kv.load(write(tmp_path / "m.safetensors", header, bytes(2)))
    for header in ({}, {"__metadata__": {"format": "pt"}}):
        with pytest.raises(kvstore.UnsupportedError, match="if it has tensors"):
            kv.load(write(tmp_path / "empty.safetensors", header))
