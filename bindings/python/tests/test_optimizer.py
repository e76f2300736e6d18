"""Optimizers against formulas in numpy, and the forms that options take in Python."""

import gc
import math
import weakref

import numpy as np
import pytest
from support import BFLOAT16, FLOATS, WAIT_SECONDS, Gate, same_bits, sum_of

import kvstore

FLOAT_DTYPES = FLOATS + ([BFLOAT16] if BFLOAT16 else [])
HALVES = [dtype for dtype in FLOAT_DTYPES if dtype.itemsize == 2]
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Reference:
    """What a rule makes of one key, said in numpy and float64."""

    def __init__(self, weight, options):
        self.weight = weight.astype(np.float64)
        self.options = options
        self.steps = 0
        self.first = np.zeros_like(self.weight)
        self.second = np.zeros_like(self.weight)

    def option(self, name, default):
        return self.options.get(name, default)

    def decayed(self, gradient):
        return self.option("wd", 0) * self.weight + self.option("rescale_grad", 1) * gradient

    def clipped(self, gradient):
        limit = self.option("clip_gradient", math.inf)
        return np.clip(gradient, -limit, limit)

    def step(self, gradient):
        self.steps += 1
        self.weight = self.weight + self.change(gradient.astype(np.float64))


class Momentum(Reference):
    """Polyak's heavy ball; the weight decay is not clipped."""

    momentum = 0.9

    def change(self, gradient):
        limited = self.clipped(self.option("rescale_grad", 1) * gradient)
        slope = limited + self.option("wd", 0) * self.weight
        self.first *= self.option("momentum", self.momentum)
        self.first -= self.option("learning_rate", 0.01) * slope
        return self.first


class Sgd(Momentum):
    momentum = 0.0


class Adam(Reference):
    """The algorithm of the paper, with the epsilon of its section 2."""

    def change(self, gradient):
        beta1, beta2 = self.option("beta1", 0.9), self.option("beta2", 0.999)
        slope = self.clipped(self.decayed(gradient))
        self.first = beta1 * self.first + (1 - beta1) * slope
        self.second = beta2 * self.second + (1 - beta2) * slope * slope
        bias = 1 - beta2**self.steps
        mean, variance = self.first / (1 - beta1**self.steps), self.second / bias
        epsilon = self.option("epsilon", 1e-8) / math.sqrt(bias)
        return -self.option("learning_rate", 0.001) * mean / (np.sqrt(variance) + epsilon)


RULES = {
    "sgd": ("sgd", Sgd, {}),
    "sgd, momentum": ("sgd", Sgd, {"learning_rate": 0.1, "momentum": 0.7, "wd": 0.05}),
    "sgd, all": (
        "sgd",
        Sgd,
        {"learning_rate": 0.2, "wd": 0.1, "rescale_grad": 0.5, "clip_gradient": 1.5},
    ),
    "momentum": ("momentum", Momentum, {}),
    "adam": ("adam", Adam, {}),
    "adam, all": (
        "adam",
        Adam,
        {
            "learning_rate": 0.05,
            "beta1": 0.8,
            "beta2": 0.99,
            "epsilon": 1e-3,
            "wd": 0.1,
            "rescale_grad": 0.25,
            "clip_gradient": 1.0,
        },
    ),
}


def pulled(kv, key, like):
    out = np.zeros_like(like)
    kv.pull(key, out=out)
    return out


def is_near(array, expected, units):
    """Whether they differ by at most so many units in the last place (of 1, for numbers below)."""
    unit = EPSILON[array.dtype.name] * np.maximum(1, np.abs(expected))
    return bool(np.all(np.abs(array.astype(np.float64) - expected) <= units * unit))


def pushed(kv, keys, dtype, steps):
    """Pushes random gradients of two devices to keys in turn, in every way there is.

    Gives, push by push, the key, the sum and the new value.
    """
    random = np.random.default_rng(5)
    for step in range(steps):
        key = keys[step % len(keys)]
        out = np.zeros(kv.key_info(key).shape, dtype)
        values = [np.asarray(random.standard_normal(out.shape)).astype(dtype) for _ in range(2)]
        if step % 3 == 0:
            kv.push(key, values)
            kv.pull(key, out=out)
        elif step % 3 == 1:
            kv.pushpull(key, values, out=out)
        else:
            kv.pushpull_async(key, values, out=out).wait(WAIT_SECONDS)
        yield key, sum_of(values, dtype), out


def start(kv, dtype, options, rule):
    """Initialises three keys; gives their references."""
    random = np.random.default_rng(3)
    weights = {
        key: np.asarray(random.standard_normal(shape)).astype(dtype)
        for key, shape in {"w": (3, 5), 1: (1000,), "scalar": ()}.items()
    }
    for key, weight in weights.items():
        kv.init(key, weight)
    return {key: rule(weight, options) for key, weight in weights.items()}


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("case", RULES)
def test_rules_follow_their_formulas(kv, case, dtype):
    name, rule, options = RULES[case]
    references = start(kv, dtype, options, rule)
    kv.set_optimizer(name, **options)
    # The key that is pushed most is further in its count than the others.
    for key, gradient, out in pushed(kv, ["w", 1, "w", "scalar"], dtype, 24):
        reference = references[key]
        reference.step(gradient)
        assert is_near(out, reference.weight, 16 if dtype.itemsize > 2 else 2)
        if dtype in HALVES:
            reference.weight = reference.weight.astype(dtype).astype(np.float64)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", RULES)
def test_multi_precision_rounds_only_what_is_seen(kv, case, dtype):
    name, rule, options = RULES[case]
    references = start(kv, dtype, options, rule)
    kv.set_optimizer(name, multi_precision=True, **options)
    for key, gradient, out in pushed(kv, ["w", 1, "w", "scalar"], dtype, 24):
        references[key].step(gradient)
        assert is_near(out, references[key].weight, 1)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_multi_precision_adds_up_what_rounding_would_lose(kv, dtype):
    small = EPSILON[dtype.name] / 8
    one = np.ones(4, dtype)
    for multi_precision, expected in [(False, 1), (True, 1 - 64 * small)]:
        kv.init("w", one)
        kv.set_optimizer("sgd", learning_rate=small, multi_precision=multi_precision)
        for _ in range(64):
            kv.push("w", one)
        wide = np.zeros(4, np.float32)
        kv.pushpull("w", np.zeros(4, dtype), out=wide)
        assert wide.tolist() == [expected] * 4
        kv.remove("w")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_an_out_of_another_dtype_gets_what_is_stored(kv, dtype):
    random = np.random.default_rng(7)
    weight, gradient = (random.standard_normal(1000).astype(dtype) for _ in range(2))
    kv.init("w", weight)
    kv.set_optimizer("sgd", learning_rate=0.1, multi_precision=True)
    wide = np.zeros(1000, np.float32)
    kv.pushpull("w", gradient, out=wide)
    assert same_bits(wide, pulled(kv, "w", weight).astype(np.float32))


def test_the_sum_is_rounded_before_the_rule_sees_it(kv):
    kv.init("w", np.zeros(1, np.float16))
    kv.set_optimizer("sgd", learning_rate=1, multi_precision=True)
    kv.push("w", [np.full(1, number, np.float16) for number in (2048, 1, 1, 1)])
    kv.push("w", np.full(1, -2048, np.float16))
    # 2051 lies between 2050 and 2052.
    assert pulled(kv, "w", np.zeros(1, np.float16))[0] == -4


def test_an_array_without_elements(kv):
    kv.init("w", np.zeros((0, 3)))
    kv.set_optimizer("adam")
    kv.push("w", [np.zeros((0, 3))] * 2)
    assert pulled(kv, "w", np.zeros((0, 3))).shape == (0, 3)


def one_key(kv, number=0.0):
    kv.init("w", number)

    def push(times=1):
        for _ in range(times):
            kv.push("w", 1.0)
        return float(pulled(kv, "w", np.zeros(())))

    return push


def test_options_in_every_form(kv):
    push = one_key(kv)
    third = 1 / 3
    for rate in (third, str(third), np.float64(third), np.array(third)):
        for other in ({}, {"wd": None}, {"multi_precision": False}, {"clip_gradient": math.inf}):
            before = push(0)
            kv.set_optimizer("SGD", learning_rate=rate, **other)
            assert push() == before - third
    kv.set_optimizer("sgd", learning_rate=np.float32(0.1), multi_precision=np.True_, momentum="0")
    before = push(0)
    assert push() == before - float(np.float32(0.1))
    kv.set_optimizer("sgd", learning_rate=3)
    kv.set_hyperparameter("multi_precision", True)
    assert push() == before - float(np.float32(0.1)) - 3


def test_numbers_arrive_unchanged(kv):
    push = one_key(kv)
    for rate in (0.1, 5e-324, 1e22 / 7, 2.0**-1022, 1.7976931348623157e308):
        kv.set_updater(None)
        kv.push("w", 0.0)
        kv.set_optimizer("sgd", learning_rate=rate)
        assert push() == -rate
        kv.set_hyperparameter("learning_rate", rate)
        kv.set_hyperparameter("rescale_grad", -1)
        assert push() == 0


def test_a_new_optimizer_begins_anew_and_a_changed_one_goes_on(kv):
    push = one_key(kv)
    kv.set_optimizer("sgd", learning_rate=1, momentum=0.5)
    assert push(2) == -1 - 1.5
    kv.set_hyperparameter("learning_rate", 2)
    assert push() == -2.5 - (0.75 + 2)
    kv.set_optimizer("sgd", learning_rate=1, momentum=0.5)
    assert push() == -5.25 - 1
    kv.remove("w")
    kv.init("w", 0.0)
    assert push() == -1
    kv.set_updater(None)
    assert push() == 1


def test_single_keys_have_factors(kv):
    kv.set_optimizer("sgd", learning_rate=0.5, wd=0.5)
    kv.set_hyperparameter("wd_mult", 0, key="bias")
    kv.set_hyperparameter("lr_mult", 2, key=7)
    kv.init(["bias", 7, 0], [np.ones(2)] * 3)
    kv.push(["bias", 7, 0], [np.ones(2)] * 3)
    values = {key: pulled(kv, key, np.zeros(2))[0] for key in ("bias", 7, 0)}
    assert values == {"bias": 0.5, 7: -0.5, 0: 0.25}
    kv.remove("bias")
    kv.init("bias", np.ones(2))
    kv.push("bias", np.ones(2))
    assert pulled(kv, "bias", np.zeros(2))[0] == 0.5
    kv.set_optimizer("sgd", learning_rate=0.5, wd=0.5)
    kv.push("bias", np.ones(2))
    assert pulled(kv, "bias", np.zeros(2))[0] == 0.5 - 0.5 * 1.25


def test_queued_pushes_keep_what_was_set_when_they_were_called(kv):
    gate = Gate()
    kv.init("w", np.zeros(1))
    kv.set_updater(gate)
    tickets = [kv.push_async("w", np.ones(1))]
    assert gate.entered.wait(WAIT_SECONDS)
    kv.set_optimizer("sgd", learning_rate=1)
    for rate in (10, 100, 1000):
        tickets.append(kv.push_async("w", np.ones(1)))
        kv.set_hyperparameter("learning_rate", rate)
    gate.open()
    for ticket in tickets:
        ticket.wait(WAIT_SECONDS)
    assert pulled(kv, "w", np.zeros(1))[0] == 1 - 1 - 10 - 100


def test_wrong_options_are_refused_and_change_nothing(kv):
    push = one_key(kv)
    with pytest.raises(kvstore.InvalidArgumentError, match="no optimizer is set"):
        kv.set_hyperparameter("learning_rate", 1)
    with pytest.raises(kvstore.InvalidArgumentError, match="no optimizer is set"):
        kv.set_hyperparameter("lr_mult", 1, key="w")
    kv.set_optimizer("sgd", learning_rate=0.5)
    for call, text in [
        (lambda: kv.set_optimizer("sdg"), "sgd"),
        (lambda: kv.set_optimizer("adam", learning=1), "learning_rate"),
        (lambda: kv.set_optimizer("adam", beta1=1), "beta1 is 1"),
        (lambda: kv.set_optimizer("adam", beta1="half"), "beta1"),
        (lambda: kv.set_optimizer("adam", wd=math.nan), "NaN"),
        (lambda: kv.set_optimizer("sgd", multi_precision=2), "multi_precision"),
        (lambda: kv.set_hyperparameter("momentun", 0.5), "momentum"),
        (lambda: kv.set_hyperparameter("learning_rate", -1), "-1"),
        (lambda: kv.set_hyperparameter("lr_mult", 1), "single keys"),
        (lambda: kv.set_hyperparameter("lr", 1, key="w"), "lr_mult"),
    ]:
        with pytest.raises(kvstore.OptionError, match=text):
            call()
    assert push() == -0.5


def test_wrong_types_are_refused(kv):
    for call, text in [
        (lambda: kv.set_optimizer(kv), "the name of an optimizer is a str, not KVStore"),
        (lambda: kv.set_optimizer("sgd", wd=[1]), "wd is a list, not a number"),
        (lambda: kv.set_hyperparameter("wd", "much"), "wd is a str, not a number"),
        (lambda: kv.set_hyperparameter(3, 1), "the name of a hyperparameter is a str, not int"),
        (lambda: kv.set_hyperparameter("lr_mult", 1, key=1.5), "a key is an integer or a str"),
    ]:
        with pytest.raises(TypeError, match=text):
            call()
    for call in (
        lambda: kv.set_optimizer("sgd\0"),
        lambda: kv.set_optimizer("sgd", wd="0\0"),
        lambda: kv.set_optimizer("sgd", **{"wd\0": 1}),
        lambda: kv.set_hyperparameter("wd\0", 1),
    ):
        with pytest.raises(kvstore.InvalidArgumentError, match="NUL"):
            call()
    kv.close()
    with pytest.raises(kvstore.ClosedError):
        kv.set_optimizer("sgd")
    with pytest.raises(kvstore.ClosedError):
        kv.set_hyperparameter("wd", 1)


def test_keys_of_integers_are_refused(kv):
    kv.init("count", np.ones(1, np.int64))
    with pytest.raises(kvstore.DtypeMismatchError, match="count"):
        kv.set_optimizer("sgd")
    kv.remove("count")
    kv.set_optimizer("sgd")
    with pytest.raises(kvstore.DtypeMismatchError, match="sgd"):
        kv.init(["w", "count"], [np.ones(1), np.ones(1, np.int64)])
    assert kv.keys() == []


def test_an_optimizer_takes_the_place_of_an_updater(kv):
    gate = Gate()
    follow = weakref.ref(gate)
    push = one_key(kv)
    kv.set_updater(gate)
    del gate
    kv.set_optimizer("sgd", learning_rate=1)
    assert push() == -1
    gc.collect()
    assert follow() is None


def test_single_keys_have_rules_of_their_own(kv):
    kv.init(["w", "e", "counter"], [np.ones(3), np.ones(3), np.zeros(3, np.int64)])
    kv.set_optimizer_for("counter", "none")
    kv.set_optimizer("sgd", learning_rate=0.25)
    kv.set_optimizer_for(["e", "unknown"], "sgd", learning_rate=0.5)
    kv.set_hyperparameter("learning_rate", 1, key="e")
    kv.push({"w": np.full(3, 0.5), "e": np.full(3, 0.5), "counter": np.full(3, 7, np.int64)})
    out = {"w": np.empty(3), "e": np.empty(3), "counter": np.empty(3, np.int64)}
    kv.pull(out=out)
    assert {name: list(array) for name, array in out.items()} == {
        "w": [0.875] * 3, "e": [0.5] * 3, "counter": [7] * 3,
    }  # fmt: skip
    kv.set_optimizer_for("e", "store")
    kv.push("e", np.full(3, 2.0))
    kv.pull("e", out=out["e"])
    assert list(out["e"]) == [0] * 3
    with pytest.raises(kvstore.OptionError, match="did you mean sgd"):
        kv.set_optimizer_for("e", "sdg")
    with pytest.raises(kvstore.DtypeMismatchError, match="counter"):
        kv.set_optimizer_for("counter", "adam")
