"""Five rounds of pushes and pulls, in one process or in a job of many. Only the type differs.

Usage: rounds.py [TYPE]

    python rounds.py                   one process, the only worker
    python rounds.py dist_sync         one process of a job; `kvstore run` starts them all:
    kvstore run -n 4 -s 2 --serve-with-program -- python rounds.py dist_sync

In each round every worker pushes its rank + 1. The servers add up what the n workers push, and add
the sum to the value: after round i it is 1 + i * n * (n + 1) / 2.
"""

import sys

import kvstore
import numpy as np

KEY = 3
SHAPE = (2, 3)


def work(kv):
    weight = np.ones(SHAPE, np.float32)
    gradient = np.full(SHAPE, kv.rank + 1, np.float32)

    # All workers make the same calls. A rule of the library runs where the values are.
    kv.set_optimizer("test", rescale_grad=1)
    kv.init(KEY, weight)
    for i in range(1, 6):
        kv.push(KEY, gradient)
        # Waits until the pushes of all workers in this round are in the value.
        kv.pull(KEY, out=weight)
        if kv.rank == 0:
            print(f"after round {i}: {weight[0, 0]:.1f}")
    kv.barrier(timeout=60)


def main():
    kv = kvstore.create(sys.argv[1] if len(sys.argv) > 1 else "local")
    if kv.role == "worker":
        work(kv)
    else:
        kv.serve()  # until all workers have closed their stores
    kv.close(timeout=60)


main()
