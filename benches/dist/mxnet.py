"""Makes the same rounds with MXNet's distributed store, for benches/dist/mxnet.rs.

Started with DMLC_ROLE as a scheduler or a server it serves, as the import of mxnet does. A worker
reads requests from standard input, one JSON object a line, and answers each with one:

    {"keys": [1024, ...], "rule": "" | "momentum"}   makes the keys, answers {}
    {"rounds": 3}                                    answers {"seconds": [of each round]}
"""

import json
import sys
import time

import mxnet as mx


def main():
    """Answer requests until the input ends."""
    store = values = outs = keys = None
    for line in sys.stdin:
        request = json.loads(line)
        if "keys" in request:
            store = mx.kv.create("dist_sync")
            keys = list(range(len(request["keys"])))
            values = [mx.nd.full((count,), 1.5) for count in request["keys"]]
            outs = [mx.nd.zeros((count,)) for count in request["keys"]]
            store.init(keys, values)
            if request["rule"] == "momentum":
                rule = mx.optimizer.SGD(learning_rate=0.001, momentum=0.9, wd=0.0)
                store.set_optimizer(rule)
            mx.nd.waitall()
            answer = {}
        else:
            seconds = []
            for _ in range(request["rounds"]):
                start = time.perf_counter()
                store.push(keys, values)
                store.pull(keys, out=outs)
                mx.nd.waitall()
                seconds.append(time.perf_counter() - start)
            answer = {"seconds": seconds}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
