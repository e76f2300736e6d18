"""kvstore.jax: trees over processes, inside of jit and outside, and rules of stored parameters."""

import json
import sys

import numpy as np
import pytest
from conftest import kvstore_run

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import kvstore  # noqa: E402
import kvstore.jax  # noqa: E402

JOB = """
import json
import jax
import jax.numpy as jnp
import numpy as np
import kvstore.jax as kj

rank, size = kj.rank(), kj.size()
matrix = jnp.arange(6.0).reshape(2, 3) * (rank + 1)
tree = {"w": matrix, "b": [jnp.float32(rank), jnp.int32([rank])]}
said = {"rank": rank, "size": size}
sums = kj.allreduce(tree, "sum")
one, many = sums["b"]
said["sum"] = [np.asarray(sums["w"]).tolist(), float(one), np.asarray(many).tolist()]
said["mean"] = np.asarray(kj.allreduce({"w": tree["w"]})["w"]).tolist()
said["first"] = float(kj.broadcast({"x": jnp.float32(rank + 5)})["x"])

points = np.random.default_rng(1).normal(size=(64, 3)).astype("float32")
targets = points @ np.float32([1, -2, 3]) + np.float32(0.5)
mine = slice(rank * 64 // size, (rank + 1) * 64 // size)

def loss(parameters, x, y):
    return jnp.mean((x @ parameters["w"] + parameters["b"] - y) ** 2)

@jax.jit
def step(parameters, x, y):
    gradients = kj.allreduce(jax.grad(loss)(parameters, x, y))
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)

parameters = {"w": jnp.zeros(3), "b": jnp.float32(0)}
for _ in range(20):
    parameters = step(parameters, points[mine], targets[mine])
said["jit"] = np.asarray(parameters["w"]).tolist()

begun = {"w": jnp.zeros(3) + rank, "b": jnp.float32(rank)}
optimizer = kj.Optimizer("sgd", begun, learning_rate=0.1)
parameters = optimizer.parameters()
gradient = jax.jit(jax.grad(loss))
for _ in range(20):
    parameters = optimizer.step(gradient(parameters, points[mine], targets[mine]))
said["stored"] = np.asarray(parameters["w"]).tolist()
optimizer.set_hyperparameter("learning_rate", 0.0)
still = optimizer.step(gradient(parameters, points[mine], targets[mine]))
said["still"] = bool((still["w"] == parameters["w"]).all())
print("said", json.dumps(said))
"""


def job(tmp_path, processes):
    (tmp_path / "train.py").write_text(JOB)
    output = kvstore_run(processes, sys.executable, "train.py", folder=tmp_path)
    lines = [line.split("said ", 1)[1] for line in output.splitlines() if "said " in line]
    return sorted((json.loads(line) for line in lines), key=lambda it: it["rank"])


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_trees_are_added_up_and_training_is_that_of_one_process(tmp_path, processes):
    found = job(tmp_path, processes)
    assert [it["rank"] for it in found] == list(range(processes))
    factor = sum(range(1, processes + 1))
    base = np.arange(6.0).reshape(2, 3)
    ranks = sum(range(processes))
    for each in found:
        assert each["size"] == processes
        assert each["sum"] == [(base * factor).tolist(), ranks, [ranks]]
        assert np.allclose(each["mean"], base * factor / processes)
        assert each["first"] == 5
        assert each["still"]
        # The same bits on all.
        assert each["jit"] == found[0]["jit"]
        assert each["stored"] == found[0]["stored"]
    # The gradient of all points, by numpy.
    points = np.random.default_rng(1).normal(size=(64, 3)).astype("float32")
    targets = points @ np.float32([1, -2, 3]) + np.float32(0.5)
    weight, bias = np.zeros(3), 0.0
    for _ in range(20):
        error = points @ weight + bias - targets
        weight, bias = weight - 0.2 * points.T @ error / 64, bias - 0.2 * error.mean()
    assert np.allclose(found[0]["jit"], weight, atol=1e-4)
    assert np.allclose(found[0]["stored"], weight, atol=1e-4)


def test_bad_calls_are_told():
    with pytest.raises(kvstore.InvalidArgumentError, match="op is 'max'"):
        kvstore.jax.allreduce({"a": jnp.ones(2)}, "max")
    refusal = r"\['a'\] is int32: integers have no mean"
    with pytest.raises(kvstore.DtypeMismatchError, match=refusal):
        kvstore.jax.allreduce({"a": jnp.ones(2, "int32")})
    optimizer = kvstore.jax.Optimizer("sgd", {"a": jnp.ones(2)})
    with pytest.raises(kvstore.InvalidArgumentError, match="the gradients are"):
        optimizer.step({"b": jnp.ones(2)})
    assert kvstore.jax.allreduce({}) == {}
    kvstore.jax.shutdown()
