"""Clipping by the norm of all gradients of a push, against numpy in float64 and against PyTorch."""

import math
import threading

import numpy as np
import pytest
from support import output_of_job

import kvstore

SHAPES = {"conv": (8, 3, 5, 5), "bias": (), "empty": (0, 4), "wide": (300, 70), "long": (70_001,)}


def arrays(random, dtype, scale=1.0):
    return [np.asarray(random.standard_normal(shape) * scale, dtype) for shape in SHAPES.values()]


def pulled(kv, like):
    outs = [np.empty_like(array) for array in like]
    kv.pull(list(SHAPES), out=outs)
    return outs


def norm_of(gradients):
    return math.sqrt(sum(float((each.astype(np.float64) ** 2).sum()) for each in gradients))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rescale", [1.0, 1 / 32])
def test_steps_are_those_of_float64(kv, dtype, rescale):
    random = np.random.default_rng(74)
    first = arrays(random, dtype)
    expected = [array.astype(np.float64) for array in first]
    kv.init(list(SHAPES), first)
    kv.set_optimizer("sgd", learning_rate=0.1, rescale_grad=rescale)
    kv.set_clipping(3)
    assert math.isnan(kv.last_norm().norm)
    for scale in [1e-4, 0.01, 1, 100]:
        one, two = arrays(random, dtype, scale), arrays(random, dtype, scale)
        sums = [a + b for a, b in zip(one, two)]
        norm = rescale * norm_of(sums)
        factor = min(1.0, 3 / (norm + 1e-6)) * rescale
        kv.push(list(SHAPES), [list(pair) for pair in zip(one, two)])
        assert kv.last_norm() == pytest.approx((norm, 0), rel=1e-12)
        expected = [w - 0.1 * factor * g.astype(np.float64) for w, g in zip(expected, sums)]
        for mine, wanted in zip(pulled(kv, first), expected):
            assert np.allclose(mine, wanted, rtol=1e-6, atol=1e-6)


def test_what_is_not_finite_is_skipped_or_fails(kv):
    kv.init(["a", "b"], [np.ones(3, np.float32), np.ones(2, np.float32)])
    kv.set_optimizer("adam", learning_rate=0.1)
    kv.set_clipping(float("inf"))
    bad = [np.ones(3, np.float32), np.array([0, np.nan], np.float32)]
    outs = [np.zeros(3, np.float32), np.zeros(2, np.float32)]
    kv.pushpull(["a", "b"], bad, out=outs)
    assert (outs[0] == 1).all() and (outs[1] == 1).all()
    last = kv.last_norm()
    assert isinstance(last, kvstore.LastNorm) and math.isnan(last.norm) and last.skips == 1
    assert kv.last_round("a").round == 0
    kv.set_clipping(1, fail=True)
    with pytest.raises(kvstore.InvalidArgumentError, match=r"push: key .*b.*not finite"):
        kv.push(["a", "b"], bad)
    with pytest.raises(kvstore.InvalidArgumentError, match="not finite"):
        kv.push_async(["a", "b"], bad).wait()
    kv.pull(["a", "b"], out=outs)
    assert (outs[0] == 1).all() and kv.last_norm().skips == 1
    kv.set_clipping(0)
    kv.push("a", np.ones(3, np.float32))
    assert math.isnan(kv.last_norm().norm)


def test_an_updater_gets_the_clipped_sum(kv):
    seen = []
    kv.init("w", np.zeros(2))
    kv.set_updater(lambda key, value, stored: seen.append(value.copy()))
    kv.set_clipping(1)
    kv.push("w", [np.array([1.0, 2.0]), np.array([2.0, 2.0])])
    assert np.allclose(seen, [[0.6, 0.8]], rtol=1e-6)


def test_threads_clip_their_own_calls():
    with kvstore.create("local", threads=2) as kv:
        kv.init(range(4), [np.zeros(1000) for _ in range(4)])
        kv.set_optimizer("test")
        kv.set_clipping(1)

        def work(first, size):
            for _ in range(100):
                kv.push([first, first + 1], [np.full(1000, size), np.full(1000, size)])

        threads = [threading.Thread(target=work, args=each) for each in [(0, 3.0), (2, 5000.0)]]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for key, size in enumerate([3.0, 3.0, 5000.0, 5000.0]):
            norm = size * math.sqrt(2000)
            out = np.empty(1000)
            kv.pull(key, out=out)
            assert np.allclose(out, 100 * size / (norm + 1e-6), rtol=1e-12)


def test_what_cannot_be_clipped_is_refused():
    with kvstore.create("local") as kv:
        for bad in [-1, float("nan"), float("-inf")]:
            with pytest.raises(kvstore.InvalidArgumentError, match="max_norm"):
                kv.set_clipping(bad)
        with pytest.raises((TypeError, kvstore.InvalidArgumentError)):
            kv.set_clipping(None)
        kv.init("w", np.ones((4, 2), np.float32))
        kv.set_optimizer("sgd")
        kv.set_clipping(1)
        with pytest.raises(kvstore.UnsupportedError, match="set_clipping"):
            kv.set_compression("2bit")
        with pytest.raises(kvstore.UnsupportedError, match="rows"):
            kv.push_rows("w", np.array([1]), np.ones((1, 2), np.float32))
        assert kvstore.capable("clipping")


JOB = """
import math, sys
import numpy as np
import kvstore

kv = kvstore.create("dist_sync")
rank, workers = kv.rank, kv.num_workers
shapes = {"w": (300, 40), "b": (40,), "e": (7, 3)}

def gradients(rank, step):
    random = np.random.default_rng([rank, step])
    size = [1, 1e-4, 50][step % 3]
    return {name: random.standard_normal(shape) * size for name, shape in shapes.items()}

weights = {name: np.ones(shape) for name, shape in shapes.items()}
kv.init(weights)
kv.set_optimizer("sgd", learning_rate=0.1)
kv.set_clipping(2.0)
clipped = 0
for step in range(6):
    kv.push(gradients(rank, step))
    sums = gradients(0, step)
    for other in range(1, workers):
        for name, gradient in gradients(other, step).items():
            sums[name] += gradient
    norm = math.sqrt(sum(float((gradient * gradient).sum()) for gradient in sums.values()))
    assert math.isclose(kv.last_norm().norm, norm, rel_tol=1e-12), (kv.last_norm(), norm)
    factor = min(1, 2 / (norm + 1e-6))
    clipped += factor < 1
    out = {name: np.empty(shape) for name, shape in shapes.items()}
    kv.pull(out=out)
    for name, weight in weights.items():
        weight -= 0.1 * factor * sums[name]
        assert np.allclose(out[name], weight, rtol=1e-9, atol=1e-12), (step, name)
assert 0 < clipped < 6, clipped
bad = gradients(rank, 0)
if rank == 1:
    bad["b"][3] = math.nan
kv.push(bad)
after = {name: np.empty(shape) for name, shape in shapes.items()}
kv.pull(out=after)
assert all((after[name] == out[name]).all() for name in shapes)
assert kv.last_norm().skips == 1
kv.barrier(timeout=30)
kv.close()
print("done", rank)
"""


@pytest.mark.parametrize("workers", [2, 3])
def test_a_job_clips_the_sums_of_its_rounds(workers):
    output = output_of_job(JOB, workers)
    assert output.count("done") == workers, output


RULES = {
    "sgd": ({"learning_rate": 0.1}, "SGD", {"lr": 0.1}),
    "momentum": ({"learning_rate": 0.1, "momentum": 0.9}, "SGD", {"lr": 0.1, "momentum": 0.9}),
    "adamw": (
        {"learning_rate": 0.01, "wd": 0.1, "epsilon": 0.01},
        "AdamW",
        {"lr": 0.01, "weight_decay": 0.1, "eps": 0.01},
    ),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_are_those_of_pytorch(kv, rule, dtype):
    torch = pytest.importorskip("torch")
    options, theirs, their_options = RULES[rule]
    random = np.random.default_rng(75)
    first = arrays(random, dtype)
    weights = [torch.nn.Parameter(torch.from_numpy(array.copy())) for array in first]
    optimizer = getattr(torch.optim, theirs)(weights, **their_options)
    kv.init(list(SHAPES), first)
    kv.set_optimizer(rule, **options)
    kv.set_clipping(2)
    clipped = 0
    for scale in [1, 1e-4, 3, 0.02, 1000, 0.001]:
        gradients = arrays(random, dtype, scale)
        for weight, gradient in zip(weights, gradients):
            weight.grad = torch.from_numpy(gradient.copy())
        norm = float(torch.nn.utils.clip_grad_norm_(weights, 2))
        optimizer.step()
        kv.push(list(SHAPES), gradients)
        assert kv.last_norm().norm == pytest.approx(norm, rel=1e-6)
        clipped += norm > 2
        tolerance = {"float32": 1e-6, "float64": 1e-12}[dtype]
        for mine, weight in zip(pulled(kv, first), weights):
            wanted = weight.detach().numpy()
            assert np.allclose(mine, wanted, rtol=tolerance, atol=tolerance)
    assert clipped == 4


def test_gradients_of_bfloat16_step_a_master_of_float32(kv):
    torch = pytest.importorskip("torch")
    random = torch.Generator().manual_seed(76)
    value = torch.randn(3000, generator=random).bfloat16()
    master = torch.nn.Parameter(value.float())
    optimizer = torch.optim.SGD([master], lr=0.1, momentum=0.9)
    kv.init("w", value)
    kv.set_optimizer("momentum", learning_rate=0.1, momentum=0.9, multi_precision=True)
    kv.set_clipping(1)
    for _ in range(5):
        gradient = torch.randn(3000, generator=random).bfloat16()
        master.grad = gradient.float()
        torch.nn.utils.clip_grad_norm_([master], 1)
        optimizer.step()
        kv.push("w", gradient)
    out = torch.empty(3000)
    kv.pull("w", out=out)
    # At most one step of bfloat16 where the masters differ at a border.
    assert torch.allclose(out, master.detach(), rtol=2**-8, atol=1e-6)
    assert (out == master.detach().bfloat16().float()).float().mean() > 0.99
