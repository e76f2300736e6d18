"""Wrong uses, for a type checker: each marked line is an error of these codes, no other line is."""

import array
import asyncio
from fractions import Fraction

import numpy as np

import kvstore

kv = kvstore.create("local")
w = np.ones(3, np.float32)
ticket = kv.push_async(3, w)

# Keys.
kv.push(3.5, w)  # E: call-overload
kv.init(None, w)  # E: call-overload
kv.init(b"weight", w)  # E: call-overload
kv.pull([3, 4.5], [w, w])  # E: list-item
kv.pull({3, 4}, [w, w])  # E: call-overload
kv.push({3: w}, [w])  # E: call-overload
kv.pull(out=w)  # E: call-overload
kv.init({3: "ones"})  # E: dict-item
kv.pushpull({3: w}, out=[w])  # E: call-overload
kv.push(w, w)  # E: call-overload
kv.pull(w, 3)  # E: call-overload
kv.push(("a", None), [w, w])  # E: arg-type
kv.pull_async([[1, 2], [3]], [w, w])  # E: list-item
kv.remove(1.0)  # E: arg-type
kv.remove([None])  # E: list-item
kv.key_info([1, 2])  # E: arg-type
kv.key_device([1, 2])  # E: arg-type
kvstore.set_stream("cuda:0", None)  # E: arg-type
kv.set_hyperparameter("wd_mult", 0, key=0.5)  # E: arg-type
kv.push_rows(3.5, [1], w)  # E: arg-type

# Values.
kv.init(3, "ones")  # E: call-overload
kv.init(3, b"ones")  # E: call-overload
kv.push(3, None)  # E: call-overload
kv.push(3, object())  # E: call-overload
kv.push([3, 4], ["a", "b"])  # E: list-item
kv.push(3, {"w": w})  # E: call-overload
kv.push(3, 1j)  # E: call-overload
kv.push(3, kv)  # E: call-overload
kv.push_async(3, lambda: w)  # E: call-overload
kv.push(3)  # E: call-overload
kv.push(3, w, priority="high")  # E: call-overload
kv.push(3, w, 0.5)  # E: call-overload
kv.broadcast(3, w)  # E: call-overload

# Outs.
kv.pull(3)  # E: call-overload
kv.pull(3, out=None)  # E: call-overload
kv.pull(3, out=0.0)  # E: call-overload
kv.pull(3, out=[1.0, 2.0])  # E: list-item
kv.pull(3, out=array.array("f"))  # E: arg-type
kv.pull_async(3, out="w")  # E: call-overload
kv.pushpull(3, 2.5)  # E: call-overload
kv.pushpull(3.5, w)  # E: call-overload
kv.pushpull_async(3, [1, 2])  # E: list-item
kv.pushpull(3, w, out=3)  # E: call-overload
kv.broadcast(3, w, 1)  # E: call-overload

# Rows.
kv.push_rows("table", 0.5, w)  # E: arg-type
kv.push_rows("table", [0.5], w)  # E: list-item
kv.push_rows("table", "0", w)  # E: arg-type
kv.pull_rows("table", [1], None)  # E: arg-type
kv.row_sparse_pull("table", out=w, row_ids="0")  # E: arg-type

# Settings.
kv.set_updater("add")  # E: arg-type
kv.set_updater(lambda key, merged: None)  # E: arg-type
kv.set_optimizer(kvstore.Status.OK)  # E: arg-type
kv.set_optimizer("sgd", learning_rate=[0.1])  # E: arg-type
kv.set_optimizer(name="sgd")  # E: call-arg
kv.set_hyperparameter("learning_rate", "0.1")  # E: arg-type
kv.set_hyperparameter("learning_rate")  # E: call-arg
kv.set_compression(2)  # E: arg-type
kv.set_gradient_compression("2bit")  # E: arg-type
kvstore.create(3)  # E: arg-type
kvstore.create("local", threads=[4])  # E: arg-type
kvstore.set_logger("stderr")  # E: arg-type
kv.save(3)  # E: arg-type
kv.load(None)  # E: arg-type
kv.load("a", 3)  # E: arg-type
kv.barrier("1 s")  # E: arg-type
kv.rank = 1  # E: misc
size = kv.key_info(3).size  # E: attr-defined
kv.pul(3, w)  # E: attr-defined

# Bound lists.
kv.bind(3)  # E: call-overload
kv.bind("a", None)  # E: call-overload
kv.bind(3, w).push(3)  # E: call-arg
kv.bind(3, w).wait()  # E: attr-defined

# Tickets.
ticket.wait("1 s")  # E: arg-type
ticket.result()  # E: attr-defined
kvstore.Ticket(3)  # E: arg-type, call-arg
with ticket:  # E: attr-defined
    pass


async def coroutine() -> None:
    await kv.push(3, w)  # E: misc
    await kv.push_async("a", None)  # E: call-overload
    print(await kv.push_async(3, w))  # E: func-returns-value


asyncio.run(coroutine)  # E: arg-type
kv.init(3, Fraction(1, 2))  # E: call-overload
