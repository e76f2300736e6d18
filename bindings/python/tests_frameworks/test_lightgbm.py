"""kvstore.lightgbm: trees beside those of LightGBM's own sockets, errors, ends of a training."""

import ctypes
import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import PREFIX, environment, kvstore_run

lgb = pytest.importorskip("lightgbm")

import kvstore  # noqa: E402
import kvstore.lightgbm  # noqa: E402
from kvstore import _native  # noqa: E402

# Each case is trained over LightGBM's sockets, then over the store, by the same processes.
CASES = """
import hashlib
import json
import re
import socket
import sys

import kvstore
import kvstore.lightgbm
import lightgbm as lgb
import numpy as np

kv = kvstore.create("dist_sync", timeout_ms=120000)
RANK, SIZE = kv.rank, kv.num_workers
MINE = slice(RANK, None, SIZE)
random = np.random.default_rng(5)
ROWS = random.normal(size=(1200, 12))
ROWS[:, 3] = random.integers(0, 9, 1200)
SCORE = ROWS[:, 0] - 2 * ROWS[:, 1] + ROWS[:, 2] * (ROWS[:, 3] > 4) + random.normal(size=1200) / 3
TWO = (SCORE > 0).astype(int)
THREE = np.digitize(SCORE, [-1.5, 1])
BASE = {"num_threads": 1, "verbosity": -1, "seed": 1, "num_leaves": 15}
MULTICLASS = {"objective": "multiclass", "num_class": 3}


def sockets():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = np.array([server.getsockname()[1]])
    ports = [np.zeros_like(port) for _ in range(SIZE)]
    kv.allgather(port, ports)
    machines = ",".join(f"127.0.0.1:{each[0]}" for each in ports)
    return {"machines": machines, "local_listen_port": int(port[0]), "tree_learner": "data"}


def train(labels, rounds=8, rows=ROWS, mine=MINE, dataset=(), **parameters):
    def run(network):
        data = lgb.Dataset(rows[mine], labels[mine], **dict(dataset))
        return lgb.train({**BASE, **network, **parameters}, data, rounds)
    return run


def classifier(network):
    model = lgb.LGBMClassifier(n_estimators=8, n_jobs=1, **{**BASE, **network})
    return model.fit(ROWS[MINE], THREE[MINE]).booster_


def early(network):
    data = lgb.Dataset(ROWS[:900][MINE], TWO[:900][MINE])
    # All ranks evaluate the same rows, so all stop at the same round.
    valid = data.create_valid(ROWS[900:], TWO[900:])
    stop = lgb.early_stopping(3, verbose=False)
    parameters = {**BASE, **network, "objective": "binary", "learning_rate": 0.9}
    booster = lgb.train(parameters, data, 200, valid_sets=[valid], callbacks=[stop])
    assert 0 < booster.best_iteration < 190
    return booster


def ranking(network):
    group = 20
    mine = np.arange(1200).reshape(-1, group)[MINE].ravel()
    data = lgb.Dataset(ROWS[mine], THREE[mine], group=[group] * (len(mine) // group))
    return lgb.train({**BASE, **network, "objective": "lambdarank"}, data, 8)


def once_more(network):
    first = train(TWO, objective="binary")(network)
    if "machines" in network:
        first.free_network()
        network = sockets()
    data = lgb.Dataset(ROWS[MINE], TWO[MINE])
    return lgb.train({**BASE, **network, "objective": "binary"}, data, 4, init_model=first)


SORTED = np.argsort(THREE, kind="stable")
THIRDS = np.array_split(np.arange(1200), SIZE)[RANK]
WIDE = np.random.default_rng(6).normal(size=(400, 2700))
CASES = {
    "binary": train(TWO, objective="binary"),
    "three classes": train(THREE, **MULTICLASS),
    "a rank without a class": train(THREE[SORTED], rows=ROWS[SORTED], mine=THIRDS, **MULTICLASS),
    "one against all": train(THREE, objective="multiclassova", num_class=3),
    "regression": train(SCORE, objective="regression"),
    "absolute errors": train(SCORE, objective="regression_l1"),
    "voting": train(THREE, tree_learner="voting", top_k=3, **MULTICLASS),
    "weights and bagging": train(
        TWO,
        objective="binary",
        dataset={"weight": 1 + np.arange(1200)[MINE] % 3},
        bagging_freq=1,
        bagging_fraction=0.5,
        feature_fraction=0.5,
    ),
    "categories": train(SCORE, objective="regression", dataset={"categorical_feature": [3]}),
    "quantized gradients": train(TWO, objective="binary", use_quantized_grad=True),
    "two features": train(TWO, rows=ROWS[:, :2], objective="binary"),
    # 11 MB: above 10 MB, LightGBM reduces by a ring where ranks are no power of two.
    "many features": train(TWO[:400], 1, rows=WIDE, objective="binary", num_leaves=4),
    "classifier": classifier,
    "early stopping": early,
    "ranking": ranking,
    "a model goes on": once_more,
}


def text_of(booster):
    trees = booster.model_to_string().split("parameters:")[0]
    return len(re.findall("^Tree=", trees, re.M)), hashlib.sha256(trees.encode()).hexdigest()


found = {}
for name, run in CASES.items():
    if name == "many features" and SIZE != 3:
        continue
    own = text_of(run(sockets()))
    with kvstore.lightgbm.network(kv):
        found[name] = own, text_of(run({}))
print("found", json.dumps(found), flush=True)
"""
NAMES = [
    "binary", "three classes", "a rank without a class", "one against all", "regression",
    "absolute errors", "voting", "weights and bagging", "categories", "quantized gradients",
    "two features", "many features", "classifier", "early stopping", "ranking", "a model goes on",
]  # fmt: skip


@pytest.fixture(scope="module", params=[2, 3, 4])
def found(request, tmp_path_factory):
    """What each rank has found, and their number."""
    folder = tmp_path_factory.mktemp("cases")
    (folder / "cases.py").write_text(CASES)
    output = kvstore_run(request.param, sys.executable, "cases.py", folder=folder)
    lines = [line.split("found ", 1)[1] for line in output.splitlines() if "| found " in line]
    return request.param, [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", NAMES)
def test_trees_have_the_text_of_lightgbms_own_sockets(found, name):
    processes, ranks = found
    assert len(ranks) == processes
    assert set(ranks[0]) == {each for each in NAMES if each != "many features" or processes == 3}
    if name not in ranks[0]:
        return
    trees, _ = ranks[0][name][0]
    assert trees > 0
    for each in ranks:
        own, ours = each[name]
        assert own == ours
        # By voting, LightGBM writes counts of a rank's own rows into its trees.
        assert name == "voting" or ours == ranks[0][name][0]


# One rank ends its training in another way than the others.
ENDS = """
import json
import os
import signal
import sys
import time

import kvstore
import kvstore.lightgbm
import lightgbm as lgb
import numpy as np

kv = kvstore.create("dist_sync", timeout_ms=3000 if sys.argv[1] == "stuck" else 30000)
random = np.random.default_rng(kv.rank)
ROWS = random.normal(size=(800, 6))
PARAMETERS = {"objective": "multiclass", "num_class": 3, "num_threads": 1, "verbosity": -1}


def data():
    return lgb.Dataset(ROWS, np.digitize(ROWS[:, 0], [-0.5, 0.5]))


def at(environment):
    if kv.rank == 1 and environment.iteration == 4:
        END()


END = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "raise": lambda: [][1],
    "stop": lambda: (_ for _ in ()).throw(lgb.callback.EarlyStopException(3, [])),
    "stuck": lambda: time.sleep(8),
    "interrupt": lambda: signal.raise_signal(signal.SIGINT),
}[sys.argv[1]]
said = {"rank": kv.rank}
try:
    with kvstore.lightgbm.network(kv):
        lgb.train(PARAMETERS, data(), 60, callbacks=[at])
except BaseException as error:
    said["raised"] = type(error).__name__
    said["cause"] = type(error.__cause__).__name__
    said["text"] = str(error)
# The thread trains alone again.
said["alone"] = lgb.train(PARAMETERS, data(), 2).num_trees()
print("said", json.dumps(said), flush=True)
if kv.rank != 1:
    # The launcher ends all a second after the first failure.
    time.sleep(0.2)
"""


def ends(tmp_path, processes, how):
    """What the ranks have said that were still there at the end."""
    (tmp_path / "ends.py").write_text(ENDS)
    command = [PREFIX / "bin" / "kvstore", "run", "-n", processes, "--linger-ms", 60000, "--"]
    ended = subprocess.run(
        [str(part) for part in [*command, sys.executable, "ends.py", how]],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.returncode != 0) == (how in ("kill", "exit")), ended.stdout + ended.stderr
    lines = [line.split("said ", 1)[1] for line in ended.stdout.splitlines() if "| said " in line]
    found = {each["rank"]: each for each in map(json.loads, lines)}
    assert all(each["alone"] == 6 for each in found.values())
    return found


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_rank_that_dies_in_a_training_is_named_on_every_other_rank(tmp_path, processes, how):
    found = ends(tmp_path, processes, how)
    assert sorted(found) == [rank for rank in range(processes) if rank != 1]
    for each in found.values():
        assert (each["raised"], each["cause"]) == ("PeerLostError", "LightGBMError")
        assert "worker 1 at" in each["text"]


def test_a_rank_that_is_stuck_is_named_at_the_deadline(tmp_path):
    found = ends(tmp_path, 3, "stuck")
    for rank in (0, 2):
        assert found[rank]["raised"] == "TimeoutError"
        assert "worker 1" in found[rank]["text"]
    assert found[1]["raised"] in ("TimeoutError", "PeerLostError")


@pytest.mark.parametrize("how", ["raise", "stop"])
def test_a_rank_that_leaves_earlier_is_named_on_every_rank(tmp_path, how):
    found = ends(tmp_path, 4, how)
    assert sorted(found) == [0, 1, 2, 3]
    assert found[1]["raised"] == ("IndexError" if how == "raise" else "DiffersError")
    for rank in (0, 2, 3):
        assert (found[rank]["raised"], found[rank]["cause"]) == ("DiffersError", "LightGBMError")
        assert "worker 1" in found[rank]["text"]
        assert "has left the network, and others still train" in found[rank]["text"]


def test_an_interrupted_rank_ends_and_so_do_the_others(tmp_path):
    found = ends(tmp_path, 3, "interrupt")
    assert found[1]["raised"] == "KeyboardInterrupt"
    for rank in (0, 2):
        assert found[rank]["raised"] == "PeerLostError"
        assert "worker 1 has closed its store" in found[rank]["text"]


# Two workers: each prints one line for each check that holds.
RULES = """
import os
import signal
import threading
import time

import kvstore
import kvstore.lightgbm
import lightgbm as lgb
import numpy as np

kv = kvstore.create("dist_sync", timeout_ms=60000)
rank = kv.rank
ROWS = np.random.default_rng(rank).normal(size=(300, 4))
BASE = {"objective": "binary", "num_threads": 1, "verbosity": -1}


def train(**parameters):
    return lgb.train({**BASE, **parameters}, lgb.Dataset(ROWS, ROWS[:, 0] > 0), 3)


def trees(booster):
    return booster.model_to_string().split("parameters:")[0]


def refused(call, *texts):
    try:
        call()
    except kvstore.InvalidArgumentError as error:
        assert all(text in str(error) for text in texts), str(error)
    else:
        raise AssertionError(f"not refused: {texts}")


def enter():
    with kvstore.lightgbm.network(kv):
        raise AssertionError("entered")


alone = trees(train())
with kvstore.lightgbm.network(kv) as store:
    assert store is kv
    together = trees(train())
    assert together != alone
    refused(enter, "this thread has one open")
    # The refused one has not closed it.
    assert trees(train()) == together
    refused(lambda: train(machines="127.0.0.1:1,127.0.0.1:2"), "machines names hosts")
    refused(lambda: train(num_machine=3), "num_machine is 3, and the store has 2 workers")
    refused(lambda: train(tree="serial"), "tree is", "trains alone")
    assert trees(train(num_machines=2, tree_learner="data")) == together
    # Other calls of the store, and other threads, go on as they do.
    kv.allreduce(np.ones(3))
    others = []
    thread = threading.Thread(target=lambda: others.append(trees(train())))
    thread.start()
    thread.join()
    assert others == [alone]
assert trees(train()) == alone


@kvstore.lightgbm.network(kv)
def decorated():
    return trees(train())


assert decorated() == together
assert decorated() == together

try:
    with kvstore.lightgbm.network(kv):
        raise OSError("mine")
except OSError as error:
    assert str(error) == "mine" and error.__cause__ is None
assert decorated() == together

# A booster goes on only inside.
with kvstore.lightgbm.network(kv):
    booster = lgb.Booster({**BASE}, lgb.Dataset(ROWS, ROWS[:, 0] > 0))
    booster.update()
try:
    booster.update()
except lgb.basic.LightGBMError as error:
    assert "network" in str(error)
else:
    raise AssertionError("trained without a network")

# Ctrl-C ends the wait for a rank that is late.
if rank == 0:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    with kvstore.lightgbm.network(kv):
        time.sleep(2 * rank)
        train()
except KeyboardInterrupt:
    assert rank == 0
except kvstore.TimeoutError as error:
    assert rank == 1 and "worker 0 has given it up: it was interrupted" in str(error), str(error)
else:
    raise AssertionError("not interrupted")

try:
    with kvstore.lightgbm.network(kv):
        kv.close()
        train()
except kvstore.ClosedError:
    print("all rules hold", flush=True)
"""


def test_the_rules_of_a_network(tmp_path):
    (tmp_path / "rules.py").write_text(RULES)
    output = kvstore_run(2, sys.executable, "rules.py", folder=tmp_path)
    assert output.count("all rules hold") == 2


def test_a_local_store_trains_as_without_a_network():
    rows = np.random.default_rng(1).normal(size=(300, 4))

    def trees():
        parameters = {"objective": "binary", "num_threads": 1, "verbosity": -1}
        booster = lgb.train(parameters, lgb.Dataset(rows, rows[:, 0] > 0), 3)
        return booster.model_to_string()

    alone = trees()
    with kvstore.create("local") as kv, kvstore.lightgbm.network(kv):
        assert trees() == alone
    assert (kvstore.lightgbm.rank(), kvstore.lightgbm.size()) == (0, 1)
    with kvstore.lightgbm.network() as kv:
        assert kv is kvstore.lightgbm.store()
        assert trees() == alone
    with pytest.raises(kvstore.InvalidArgumentError, match="has been joined already"):
        kvstore.lightgbm.init(timeout_ms=1)
    kvstore.lightgbm.shutdown()


def test_another_build_of_lightgbm_is_refused_by_its_version():
    libc = ctypes.CDLL(None)._handle
    with kvstore.create("local") as kv:
        with pytest.raises(kvstore.UnsupportedError, match=r"LightGBM 9\.8\.7 does not show"):
            _native.open_lightgbm(kv, (libc, "9.8.7"), (0, 2))
        assert _native.close_lightgbm() is None
