"""Right uses of every public name, for a type checker; and a program that runs."""

from __future__ import annotations

import array
import asyncio
import logging
import tempfile
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt

import kvstore

Floats = npt.NDArray[np.float32]


class Tensor:
    """An array of another package."""

    def __init__(self) -> None:
        self.data = np.zeros(3, np.float32)

    def __dlpack__(self, stream: Optional[int] = None) -> Any:
        return self.data.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class CudaTensor:
    """An array on a GPU without DLPack."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (3,), "typestr": "<f4", "data": (0x1000, False), "version": 3}


def ones() -> Floats:
    return np.ones(3, np.float32)


def keys_and_values(kv: kvstore.KVStore) -> None:
    w, g = ones(), ones()
    names: list[str] = ["weight", "bias"]
    mixed: list[Union[int, str]] = [3, "mixed"]
    grads: list[Floats] = [g, g]
    kv.init(1, w)
    kv.init(np.int64(2), [1.0, 2, 3])
    kv.init(names, [w, g])
    kv.init(mixed, (w, Tensor()))
    kv.init([4, "four"], [w, w])
    kv.init(range(5, 7), [array.array("f", [1, 2]), memoryview(array.array("f", [1, 2]))])
    kv.init("matrix", [[1.5, 2], [3, 4]])
    kv.init(["scalar", "number", "numpy's"], [1.0, 2.5, np.float32(1)])
    named: dict[str, Floats] = {"layer.weight": w}
    kv.init(named)
    kv.init({8: w, "eight": [w]})
    kv.push(named)
    kv.pull(out=named)
    kv.pushpull(named)
    kv.pushpull(named, out=named, priority=1)
    kv.broadcast({"nine": w}, out={"nine": g})
    kv.pull_async(out=named).wait()
    kv.push(1, w)
    kv.push(1, grads, priority=1)
    kv.push(names, [grads, g])
    kv.push(("weight", 3), ((w, g), Tensor()))
    kv.push(names, [grads, grads], 2)
    kv.push("matrix", [[1.0, 2], [3, 4]])
    kv.pull(1, w)
    kv.pull(1, out=[w, g], priority=3)
    kv.pull(names, out=[[w, ones()], g])
    kv.pull(range(1, 2), out=grads[:1])
    kv.pull(3, Tensor())
    kv.pull(1, w[:].reshape(3))
    kv.pushpull(1, w)
    kv.pushpull(names, [[w, ones()], [g, ones()]])
    kv.pushpull(2, [1.0, 2, 3], out=np.zeros(3))
    kv.pushpull("scalar", 3.0, np.zeros(()), 1)
    kv.broadcast("broadcast", w, out=[g])
    kv.remove("broadcast")
    kv.remove([3, "mixed"])
    every: list[Union[int, str]] = kv.keys()
    assert "weight" in every
    info: kvstore.KeyInfo = kv.key_info("weight")
    dtype: str = info.dtype
    shape: tuple[int, ...] = info.shape
    assert (dtype, shape) == ("float32", (3,))
    digest: kvstore.KeyDigest = kv.digest("weight")
    both: tuple[int, int] = digest.value, digest.state
    assert digest.round >= 0 and both
    digests = kv.digest(["weight", 2])
    assert isinstance(digests, list)
    last: kvstore.KeyRound = kv.last_round("weight")
    taking_part: tuple[int, float] = last.contributors, last.total_weight
    assert last.round >= 0 and taking_part
    device: str = kv.key_device("weight")
    assert device == "cpu"


def rows(kv: kvstore.KVStore) -> None:
    table, two = np.zeros((10, 4), np.float32), np.ones((2, 4), np.float32)
    ids: npt.NDArray[np.int64] = np.array([1, 3])
    kv.init(["table", "other"], [table, table])
    kv.push_rows("table", [3, 1], two)
    kv.push_rows("table", ids, two, priority=1)
    kv.push_rows(["table", "other"], [ids, [0, 9]], [two, two])
    kv.pull_rows("table", (1, 3), out=two)
    kv.pull_rows(["table"], [ids], [two], 1)
    kv.row_sparse_pull("table", out=two, row_ids=ids)
    kv.push_rows_async("table", [[0], [1]], np.ones((2, 1, 4), np.float32)).wait()
    kv.pull_rows_async("table", ids, two, priority=1).wait()


def update(key: Union[int, str], merged: Floats, stored: Floats) -> None:
    stored += merged


def update_on_gpu(key: Any, merged: kvstore.DeviceArray, stored: kvstore.DeviceArray) -> None:
    numbers: tuple[int, int] = (stored.stream, stored.shape[0])
    texts: tuple[str, str] = (stored.device, stored.dtype.name)
    print(numbers, texts, merged.__cuda_array_interface__["data"][0], merged.__dlpack_device__())


def settings(kv: kvstore.KVStore) -> None:
    kv.set_updater(update)
    kv.set_updater(update_on_gpu)
    kv.set_updater(lambda key, merged, stored: None)
    kv.set_updater(None)
    kv.set_optimizer("adam", learning_rate=1e-3, multi_precision=True, wd=None)
    kv.set_optimizer("sgd", lr=np.float32(0.1))
    kv.set_optimizer_for(["weight", 1], "sgd", lr=np.float32(0.1))
    kv.set_optimizer_for(["weight", 1], "store")
    kv.set_hyperparameter("learning_rate", 1)
    kv.set_hyperparameter("wd_mult", np.float32(0.5), key="weight")
    kv.set_hyperparameter("lr_mult", 0.5, key=1)
    kv.set_compression("topk", ratio=0.05)
    kv.set_compression("none")
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.set_gradient_compression({"type": "none"})


def checkpoints(kv: kvstore.KVStore, folder: str) -> None:
    kv.save(Path(folder) / "model.safetensors")
    kv.save(f"{folder}/model.safetensors")
    kv.load(Path(folder) / "model.safetensors")
    kv.load(f"{folder}/model.safetensors".encode())


def tickets(kv: kvstore.KVStore) -> None:
    w = ones()
    all_of_them: list[kvstore.Ticket] = [
        kv.push_async(1, w),
        kv.push_async([1, "weight"], [w, [w, w]], priority=-1),
        kv.pull_async(1, out=ones()),
        kv.pushpull_async(1, w.copy()),
        kv.pushpull_async(1, 1.5 * w, out=ones()),
        kv.broadcast_async("another", w, ones()),
    ]
    for ticket in all_of_them:
        ticket.wait(timeout=30)
        done: bool = ticket.done()
        assert done
        ticket.cancel()
        ticket.add_done_callback(lambda ended: ended.wait())
    kv.wait_all()
    kv.wait_all(timeout=1.5)


async def coroutines() -> None:
    async with kvstore.create("local") as kv:
        kv.init(1, ones())
        await kv.push_async(1, ones())
        out = ones()
        pulls = [kv.pull_async(1, out=out)]
        for pull in pulls:
            await pull


def job(kv: kvstore.KVStore) -> None:
    place: tuple[str, str, int, int] = (kv.type, kv.role, kv.rank, kv.num_workers)
    assert place == ("local", "worker", 0, 1)
    kv.barrier()
    kv.barrier(timeout=2.5)
    stats: dict[str, Any] = kv.stats()
    assert stats
    try:
        kv.serve()
    except kvstore.RoleError as error:
        status: kvstore.Status = error.status
        assert status == kvstore.Status.ROLE
    kv.set_weight(4)
    kv.set_weight(0.5)
    kv.clear_weight()
    kv.set_clipping(1)
    kv.set_clipping(0.5, fail=True)
    kv.set_clipping(0)
    last_norm: kvstore.LastNorm = kv.last_norm()
    norm: float = last_norm.norm
    skips: int = last_norm.skips
    assert norm != norm and skips == 0
    kv.begin()
    outcome: kvstore.Commit = kv.commit()
    assert outcome == kvstore.Commit.KEPT
    kv.begin()
    kv.rollback()
    kv.done()
    kv.resume()
    kv.resume(timeout=1.5)
    group: kvstore.KVStore = kv.group("alone", [0])
    kv.group("range", range(1)).close()
    group.close()


def bound_lists(kv: kvstore.KVStore) -> None:
    w, g = ones(), ones()
    grads: list[Floats] = [g, g]
    with kv.bind(1, grads, w) as bound:
        bound.push()
        bound.pull()
        bound.pushpull()
    is_closed: bool = bound.closed
    assert is_closed
    lists: list[kvstore.Bound] = [
        kv.bind(["weight", 1], [grads, g]),
        kv.bind(("weight", 1), out=[w, [ones(), ones()]]),
        kv.bind({"weight": g}, out={"weight": w}),
        kv.bind({"weight": g}),
        kv.bind(out={"weight": w}),
    ]
    for each in lists:
        each.close()


def stores(folder: str) -> None:
    kvstore.set_logger(logging.getLogger("kvstore"), level=logging.DEBUG)
    kvstore.set_logger(None)
    if folder == "a folder on a machine with a GPU":
        kvstore.set_stream(0, None)
        kvstore.create("device").pushpull(1, CudaTensor(), out=CudaTensor())
        handle: int = kvstore.stream(0)
        kvstore.set_stream(0, handle)
    with kvstore.create("local", threads=2, updater_undo=True, timeout_ms="60000") as kv:
        keys_and_values(kv)
        bound_lists(kv)
        rows(kv)
        tickets(kv)
        checkpoints(kv, folder)
        job(kv)
    kv.close(timeout=1)
    other = kvstore.KVStore("device", threads=np.int64(1))
    other.init([1, "weight"], [ones(), ones()])
    settings(other)
    other.abort()
    version: str = kvstore.__version__
    is_capable: bool = kvstore.capable("dist")
    lost: int = kvstore.create("local").num_lost
    assert version and is_capable and lost == 0


def load_model(kv: kvstore.KVStore) -> None:
    kv.load("model.safetensors", {"tensor": "key"})
    kv.load("model.safetensors", lambda name: None if name == "head" else name[6:])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as its_path:
        stores(its_path)
    asyncio.run(coroutines())
