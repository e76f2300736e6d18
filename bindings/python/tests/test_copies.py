"""Copies of stores and tickets: refused, with a sentence that says what to do instead."""

import copy
import dataclasses
import multiprocessing
import pickle

import numpy as np
import pytest
from support import WAIT_SECONDS

import kvstore
from kvstore import _callbacks, _native
from kvstore._handle import Handle

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "the oldest pickle": lambda thing: pickle.dumps(thing, protocol=0),
    "a dict": lambda thing: copy.deepcopy({"a": [thing]}),
    "asdict": lambda thing: dataclasses.asdict(Holder(thing)),
}


@dataclasses.dataclass
class Holder:
    """What a program keeps its things in."""

    thing: object


class Dataset:
    """What a loader of data hands to its worker processes."""

    def __init__(self, kv):
        self.kv = kv

    def __len__(self):
        return 2

    def __getitem__(self, index):
        out = np.zeros(4)
        self.kv.pull(1, out=out)
        return out


def visit(dataset):
    """What a worker process does."""
    return dataset[0]


@pytest.mark.parametrize("way", COPIES)
def test_a_store_is_not_copied(kv, way):
    kv.init(1, np.ones(4))
    with pytest.raises(TypeError, match=r"KVStore .*kvstore\.create\(\) in each process"):
        COPIES[way](kv)
    out = np.zeros(4)
    kv.pull(1, out=out)
    assert out.tolist() == [1] * 4


@pytest.mark.parametrize("way", COPIES)
def test_a_ticket_is_not_copied(kv, way):
    kv.init(1, np.ones(4))
    ticket = kv.push_async(1, np.ones(4))
    with pytest.raises(TypeError, match=r"Ticket .*wait for it where it was made"):
        COPIES[way](ticket)
    ticket.wait(WAIT_SECONDS)


@pytest.mark.parametrize("way", COPIES)
def test_nothing_that_holds_a_pointer_of_the_library_is_copied(kv, way):
    kv.init(1, np.ones(4))
    handle = kv._handle
    operation = _native.Call("push").prepare(kv, 1, np.ones(4))
    for thing in (handle, operation, _callbacks.Updater(print, {})):
        name = type(thing).__name__
        with pytest.raises(TypeError, match=f"{name} cannot be copied|cannot pickle .*{name}"):
            COPIES[way](thing)
    assert isinstance(handle, Handle)


def test_a_spawned_process_gets_no_store(kv):
    kv.init(1, np.ones(4))
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=visit, args=(Dataset(kv),), daemon=True)
    try:
        with pytest.raises(TypeError, match=r"kvstore\.create\(\) in each process"):
            process.start()
    finally:
        if process.pid is not None:
            process.join(WAIT_SECONDS)


def test_a_worker_of_a_data_loader_gets_no_store(kv):
    data = pytest.importorskip("torch.utils.data")
    kv.init(1, np.ones(4))
    loader = data.DataLoader(Dataset(kv), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(TypeError, match=r"kvstore\.create\(\) in each process"):
        next(iter(loader))


def test_infos_and_errors_are_copied(kv):
    kv.init(1, np.ones(4))
    info = kv.key_info(1)
    assert pickle.loads(pickle.dumps(info)) == copy.deepcopy(info) == info
    with pytest.raises(kvstore.KeyNotFoundError) as caught:
        kv.pull(2, out=np.zeros(4))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (kvstore.KeyNotFoundError, str(caught.value))
