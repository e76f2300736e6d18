"""Makes rounds of the same bytes with gloo, as PyTorch has it, for benches/dist/gloo.rs.

Usage: gloo.py RANK HOST:PORT, by two processes. Rank 0 reads requests from standard input, one JSON
object a line, and answers each with one; rank 1 sends back what it receives:

    {"keys": [1024, ...], "rule": ""}   makes the arrays, answers {}
    {"rounds": 3}                       answers {"seconds": [of each round]}

A round sends all arrays, and receives them.
"""

import json
import sys
import time

import torch
import torch.distributed as dist


def exchange(arrays, first, then):
    """Begin all transfers of one direction, wait for their ends, then those of the other one."""
    for begin in (first, then):
        for work in [begin(array, 1 - dist.get_rank()) for array in arrays]:
            work.wait()


def echo():
    """Send back what rank 0 sends, until it says that it has ended."""
    sizes = [None]
    dist.broadcast_object_list(sizes, src=0)
    arrays = [torch.zeros(count) for count in sizes[0]]
    rounds = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.recv(rounds, src=0)
        for _ in range(int(rounds)):
            exchange(arrays, dist.irecv, dist.isend)


def main():
    """Answer requests until the input ends."""
    rank, root = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"tcp://{root}", rank=rank, world_size=2)
    if rank == 1:
        return echo()
    arrays = []
    for line in sys.stdin:
        request = json.loads(line)
        if "keys" in request:
            dist.broadcast_object_list([request["keys"]], src=0)
            arrays = [torch.full((count,), 1.5) for count in request["keys"]]
            answer = {}
        else:
            dist.send(torch.tensor([request["rounds"]]), dst=1)
            seconds = []
            for _ in range(request["rounds"]):
                start = time.perf_counter()
                exchange(arrays, dist.isend, dist.irecv)
                seconds.append(time.perf_counter() - start)
            answer = {"seconds": seconds}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
