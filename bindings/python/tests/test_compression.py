"""Compression against its formulas in numpy, and the forms that options take in Python."""

import math

import numpy as np
import pytest
from support import WAIT_SECONDS, same_bits

import kvstore

BLOCK = 2048
SHAPE = (3, 1000)


def one_bit(x, threshold=0.5):
    return np.where(x > np.float32(threshold), np.float32(1), np.float32(-1))


def two_bit(x, threshold=0.5):
    step = np.float32(threshold)
    sent = np.where(x >= step, step, np.where(x <= -step, -step, np.float32(0)))
    return np.where(np.isnan(x), np.float32(np.nan), sent)


def fp16(x):
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def bf16(x):
    """Rounded to nearest even at bit 16; of finite numbers."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def int8(x):
    scale = np.float32(np.max(np.abs(x))) / np.float32(127)
    if scale == 0:
        return np.zeros_like(x)
    # Adding zero makes zeros positive.
    return (np.clip(np.rint(x / scale), -127, 127) + np.float32(0)).astype(np.float32) * scale


def top_k(x, ratio=0.01):
    kept = math.ceil(ratio * x.size)
    order = np.argsort(-np.abs(x), kind="stable")[:kept]
    sent = np.zeros_like(x)
    sent[order] = x[order]
    return sent


class Reference:
    """A codec in numpy, block by block, with the residual of one value."""

    def __init__(self, decoded, feedback):
        self.decoded = decoded
        self.feedback = feedback
        self.residual = np.zeros(SHAPE, np.float32)

    def send(self, value):
        x = value + self.residual if self.feedback else value
        flat = x.ravel()
        parts = [self.decoded(flat[at : at + BLOCK]) for at in range(0, flat.size, BLOCK)]
        sent = np.concatenate(parts).reshape(SHAPE)
        self.residual = np.where(np.isfinite(sent), x - sent, np.float32(0))
        return sent


CODECS = {
    "1bit": ("1bit", {}, one_bit, True),
    "1bit, threshold": ("1bit", {"threshold": 0.1}, lambda x: one_bit(x, 0.1), True),
    "2bit": ("2bit", {}, two_bit, True),
    "2bit, threshold": ("2bit", {"threshold": 1.5}, lambda x: two_bit(x, 1.5), True),
    "fp16": ("fp16", {}, fp16, False),
    "fp16, feedback": ("fp16", {"feedback": True}, fp16, True),
    "bf16": ("bf16", {}, bf16, False),
    "int8": ("int8", {}, int8, False),
    "int8, feedback": ("int8", {"feedback": True}, int8, True),
    "topk": ("topk", {}, top_k, True),
    "topk, ratio": ("topk", {"ratio": 0.3, "feedback": False}, lambda x: top_k(x, 0.3), False),
}


def pulled(kv, key, like):
    out = np.full_like(like, 9)
    kv.pull(key, out=out)
    return out


@pytest.mark.parametrize("case", CODECS)
def test_what_arrives_is_what_the_formula_says(case):
    name, params, decoded, feedback = CODECS[case]
    random = np.random.default_rng(3)
    with kvstore.create("device") as kv:
        kv.init(3, np.zeros(SHAPE, np.float32))
        kv.set_compression(name, **params)
        devices = [Reference(decoded, feedback) for _ in range(2)]
        for step in range(6):
            values = [random.standard_normal(SHAPE).astype(np.float32) for _ in devices]
            if step % 2:
                kv.push_async(3, values).wait(WAIT_SECONDS)
            else:
                kv.push(3, values)
            first, second = (device.send(value) for device, value in zip(devices, values))
            assert same_bits(pulled(kv, 3, first), first + second)


def test_random_places_are_as_many_as_asked_for_and_all_come_in_time():
    with kvstore.create() as kv:
        ones = np.ones(1000, np.float32)
        kv.init("w", np.zeros_like(ones))
        kv.set_compression("randomk", ratio=0.25, seed=3)
        total, rounds = np.zeros_like(ones), 59
        for _ in range(rounds):
            kv.push("w", ones)
            sent = pulled(kv, "w", ones)
            assert np.count_nonzero(sent) == 250
            total += sent
        # Nothing is lost: what has not arrived is what was pushed since a place's last turn.
        assert np.all(total <= rounds) and np.all(total > 0)
        assert total.sum() > 1000 * (rounds - 10)


def test_mxnet_form_means_the_same():
    value = np.array([0.2, -0.7, 3], np.float32)
    with kvstore.create("device") as kv:
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        kv.init(0, np.zeros(3, np.float32))
        kv.push(0, value)
        assert pulled(kv, 0, value).tolist() == [0, -0.5, 0.5]
        stats = kv.stats()
        assert stats["compression"] == "2bit"
        assert stats["compression_params"] == "threshold=0.5"
        kv.set_gradient_compression({"type": "none"})
        kv.push(0, value)
        assert same_bits(pulled(kv, 0, value), value)
        with pytest.raises(kvstore.InvalidArgumentError, match="type"):
            kv.set_gradient_compression({"threshold": 0.5})


def test_strided_and_wide_values_are_converted_first():
    wide = np.linspace(-2, 2, 48).reshape(6, 8)[::2, 1::3]
    narrow = np.ascontiguousarray(wide).astype(np.float32)
    with kvstore.create() as kv:
        kv.init([0, 1], [np.zeros_like(narrow)] * 2)
        kv.set_compression("int8", feedback=True)
        for _ in range(3):
            kv.push([0, 1], [wide, narrow])
        assert same_bits(pulled(kv, 0, narrow), pulled(kv, 1, narrow))


def test_optimizers_and_updaters_get_what_arrives():
    value = np.array([0.25, 0.5, -4], np.float32)
    with kvstore.create() as kv:
        kv.init(0, np.zeros(3, np.float32))
        kv.set_compression("2bit")
        kv.set_optimizer("sgd", learning_rate=0.5)
        kv.push(0, value)
        assert pulled(kv, 0, value).tolist() == [0, -0.25, 0.25]
        seen = []

        def update(key, input, stored):
            seen.append(input.copy())

        kv.set_updater(update)
        kv.push(0, value)
        assert [each.tolist() for each in seen] == [[0.5, 0.5, -0.5]]


def test_a_nan_arrives_once():
    value = np.array([np.nan, 1], np.float32)
    zeros = np.zeros(2, np.float32)
    for name in ["2bit", "fp16", "bf16", "int8", "topk"]:
        with kvstore.create() as kv:
            kv.init(0, zeros)
            kv.set_compression(name, ratio=1 if name == "topk" else None)
            kv.push(0, value)
            assert np.isnan(pulled(kv, 0, value)[0]), name
            kv.push(0, zeros)
            assert pulled(kv, 0, value)[0] == 0, name


def test_what_is_wrong_is_refused_and_changes_nothing():
    with kvstore.create() as kv:
        kv.init(0, np.zeros(1, np.float32))
        kv.set_compression("2bit", threshold=2)
        for name, params, text in [
            ("2bits", {}, "did you mean"),
            ("2bit", {"treshold": 1}, "did you mean threshold"),
            ("2bit", {"threshold": 0}, "must be a number above 0"),
            ("topk", {"ratio": 2}, "up to 1"),
            ("1bit", {"feedback": True}, "always on"),
        ]:
            with pytest.raises(kvstore.OptionError, match=text):
                kv.set_compression(name, **params)
        with pytest.raises(TypeError):
            kv.set_compression(None)
        with pytest.raises(TypeError):
            kv.set_compression("2bit", threshold=[1])
        with pytest.raises(kvstore.InvalidArgumentError):
            kv.set_compression("2bit\0")
        kv.push(0, np.full(1, 3, np.float32))
        assert pulled(kv, 0, np.zeros(1, np.float32)) == 2
        with pytest.raises(kvstore.DtypeMismatchError, match="float64"):
            kv.init(1, np.zeros(3))
        kv.init(1, np.zeros(3, np.int64))
        kv.push(1, np.array([1, 2, 3]))
        assert pulled(kv, 1, np.zeros(3, np.int64)).tolist() == [1, 2, 3]
    with pytest.raises(kvstore.ClosedError):
        kv.set_compression("none")
