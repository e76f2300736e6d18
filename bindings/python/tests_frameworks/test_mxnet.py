"""kvstore.mxnet in MXNet's own loops: bits beside its stores, and what a script may change."""

import sys

import numpy as np
import pytest
from conftest import kvstore_run

mx = pytest.importorskip("mxnet")
from mxnet import autograd, gluon  # noqa: E402

import kvstore  # noqa: E402
import kvstore.mxnet  # noqa: E402

CONTEXTS = [mx.cpu(index) for index in range(4)]
BATCH = 32


def network(seed=7):
    mx.random.seed(seed)
    np.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(16, activation="relu", in_units=8))
        net.add(gluon.nn.BatchNorm(in_channels=16))
        net.add(gluon.nn.Dense(3, in_units=16))
    net.initialize(mx.init.Xavier(rnd_type="uniform"), ctx=CONTEXTS)
    return net


def batches(count):
    random = np.random.RandomState(3)
    for _ in range(count):
        data = random.uniform(-1, 1, (BATCH, 8)).astype("float32")
        yield data, random.randint(0, 3, BATCH).astype("float32")


def train(store, optimizer, options, steps=6, each=None, **more):
    net = network()
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(options), kvstore=store, **more)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for step, (data, labels) in enumerate(batches(steps)):
        parts = zip(
            gluon.utils.split_and_load(data, CONTEXTS), gluon.utils.split_and_load(labels, CONTEXTS)
        )
        with autograd.record():
            losses = [loss_of(net(x), y) for x, y in parts]
        for loss in losses:
            loss.backward()
        trainer.step(BATCH if step != 3 else BATCH // 2)
        if each is not None:
            each(step, trainer)
    trained = net.collect_params().values()
    return [it.data(CONTEXTS[1]).asnumpy() for it in trained if it.grad_req != "null"], trainer


OPTIMIZERS = [
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    ("nag", {"learning_rate": 0.1, "momentum": 0.9}),
    ("adam", {"learning_rate": 0.01, "wd": 0.001}),
    ("adagrad", {"learning_rate": 0.1}),
    ("rmsprop", {"learning_rate": 0.01}),
    ("rmsprop", {"learning_rate": 0.01, "centered": True}),
    ("adadelta", {"rho": 0.9}),
    ("ftrl", {"learning_rate": 0.1}),
    ("ftml", {"learning_rate": 0.01}),
    ("signum", {"learning_rate": 0.01, "wd_lh": 0.001}),
    ("adamax", {"learning_rate": 0.01}),
    # Not nadam: MXNet's has one schedule of momenta for all parameters, ours one for each.
    ("lamb", {"learning_rate": 0.01}),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:3], ids=lambda it: it[0])
def test_with_update_on_workers_the_bits_are_those_of_device(optimizer):
    ours, _ = train("kvstore", *optimizer, update_on_kvstore=False)
    theirs, _ = train("device", *optimizer, update_on_kvstore=False)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda it: it[0])
def test_the_rule_of_an_optimizer_runs_in_the_store(optimizer):
    ours, trainer = train("kvstore", *optimizer, update_on_kvstore=True)
    theirs, _ = train("device", *optimizer, update_on_kvstore=True)
    assert trainer._update_on_kvstore
    assert isinstance(trainer._kvstore, kvstore.mxnet.Store)
    for a, b in zip(ours, theirs):
        # Steps, not bits: rules are calculated in another order.
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_learning_rates_and_schedules_are_followed():
    def change(step, trainer):
        if step == 1:
            trainer.set_learning_rate(0.02)

    sgd = {"learning_rate": 0.1, "wd": 0.01}
    for options in (sgd, {**sgd, "lr_scheduler": mx.lr_scheduler.FactorScheduler(2, 0.5)}):
        each = change if "lr_scheduler" not in options else None
        made = []
        for store in ("kvstore", "device"):
            if "lr_scheduler" in options:
                options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)
            made.append(train(store, "sgd", options, each=each, update_on_kvstore=True)[0])
        for a, b in zip(*made):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_multipliers_of_parameters_are_followed():
    results = []
    for store in ("kvstore", "device"):
        net = network()
        net[0].weight.lr_mult = 0.5
        net[2].weight.wd_mult = 0
        options = {"learning_rate": 0.1, "wd": 0.1}
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", options, kvstore=store, update_on_kvstore=True
        )
        for data, _ in batches(3):
            with autograd.record():
                losses = [net(x).sum() for x in gluon.utils.split_and_load(data, CONTEXTS)]
            for loss in losses:
                loss.backward()
            trainer.step(BATCH)
        results.append([net[at].weight.data(CONTEXTS[0]).asnumpy() for at in (0, 2)])
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_states_are_saved_and_loaded(tmp_path):
    path = str(tmp_path / "states")
    adam = ("adam", {"learning_rate": 0.01})
    through, _ = train("kvstore", *adam, steps=6, update_on_kvstore=True)

    def save_and_load(step, trainer):
        if step == 2:
            trainer.save_states(path)
            trainer.load_states(path)

    again, _ = train("kvstore", *adam, steps=6, each=save_and_load, update_on_kvstore=True)
    assert all(np.array_equal(a, b) for a, b in zip(through, again))


def test_module_trains_with_it():
    scores = []
    for store in ("kvstore", "device"):
        mx.random.seed(5)
        np.random.seed(5)
        data = mx.sym.Variable("data")
        net = mx.sym.FullyConnected(data, num_hidden=16, name="fc1")
        net = mx.sym.FullyConnected(mx.sym.relu(net), num_hidden=3, name="fc2")
        net = mx.sym.SoftmaxOutput(net, name="softmax")
        points = np.random.RandomState(2).uniform(-1, 1, (512, 8)).astype("float32")
        labels = points[:, :3].argmax(axis=1).astype("float32")
        numbers = mx.io.NDArrayIter(points, labels, 64)
        module = mx.mod.Module(net, context=CONTEXTS)
        module.fit(
            numbers,
            optimizer="sgd",
            optimizer_params={"learning_rate": 0.5, "momentum": 0.9},
            initializer=mx.init.Xavier(),
            num_epoch=8,
            kvstore=store,
        )
        scores.append(dict(module.score(numbers, "acc"))["accuracy"])
    assert scores[0] > 0.9
    assert abs(scores[0] - scores[1]) < 0.02


class OwnRule(mx.optimizer.SGD):
    """A rule of the user's."""


@pytest.mark.parametrize("outs", [1, 4])
def test_operations_that_read_an_out_end_before_it_is_written(outs):
    with kvstore.create("device") as kv:
        kv.init(0, mx.nd.zeros((700, 700)))
        arrays = [mx.nd.ones((700, 700), ctx=context) for context in CONTEXTS[:outs]]
        # MXNet's threads are busy with them when the pull comes.
        products = [mx.nd.dot(each, each) for each in arrays for _ in range(4)]
        kv.pull(0, arrays)
        assert all((each.asnumpy() == 0).all() for each in arrays)
        assert all((each.asnumpy() == 700).all() for each in products)
        # And those that write it.
        for each in arrays:
            each += mx.nd.dot(products[0], products[0])
        kv.pull(0, arrays)
        assert all((each.asnumpy() == 0).all() for each in arrays)


@pytest.mark.parametrize("sparse", [mx.nd.sparse.csr_matrix, mx.nd.sparse.row_sparse_array])
def test_sparse_arrays_are_refused_by_name(sparse):
    with kvstore.create("local") as kv:
        kv.init(1, mx.nd.zeros((4, 3)))
        array = sparse(mx.nd.ones((4, 3)))
        for call in (kv.push, kv.pull):
            with pytest.raises(TypeError, match=f"key 1: a sparse {type(array).__name__} is no"):
                call(1, array)
        out = mx.nd.ones((4, 3))
        kv.pull(1, out)
        assert (out.asnumpy() == 0).all()


def test_an_optimizer_without_a_rule_is_named():
    store = mx.kv.create("kvstore")
    for optimizer in (mx.optimizer.SGLD(), OwnRule()):
        with pytest.raises(kvstore.UnsupportedError, match=type(optimizer).__name__):
            store.set_optimizer(optimizer)
    with pytest.raises(kvstore.UnsupportedError, match="push_rows"):
        store.row_sparse_pull(1)
    assert store.is_capable("optimizer")
    assert not store.is_capable("telepathy")


JOB = """
import sys
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
import kvstore.mxnet

net = gluon.nn.Dense(3, in_units=4)
net.initialize(mx.init.Constant(0.1))
trainer = gluon.Trainer(
    net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore="kvstore_dist_sync"
)
store = None
for step in range(4):
    data = mx.nd.array(np.full((2, 4), step + 1.0 + mx_rank(trainer)))
    with autograd.record():
        loss = net(data).sum()
    loss.backward()
    trainer.step(4)
    if step == 1:
        trainer.set_learning_rate(0.25)
print("weight", float(net.weight.data()[0, 0].asscalar()))
trainer._kvstore.close()
"""


def test_a_job_of_two_workers_follows_the_learning_rate(tmp_path):
    program = JOB.replace("mx_rank(trainer)", "int(__import__('os').environ['KV_RANK'])")
    (tmp_path / "train.py").write_text(program)
    output = kvstore_run(2, sys.executable, "train.py", folder=tmp_path)
    found = [float(line.split()[-1]) for line in output.splitlines() if "weight" in line]
    # A step takes rate * (sum over workers of 2 * (step + 1 + rank)) / 4 from each weight.
    expected = 0.1
    for step in range(4):
        rate = 0.5 if step < 2 else 0.25
        expected -= rate * sum(2 * (step + 1 + rank) for rank in range(2)) / 4
    assert np.allclose(found, [expected, expected], rtol=1e-6)
