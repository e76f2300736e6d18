"""A parameter server of Ray's actors beside a job of kvstore.ray: equal weights, and times.

`python test_ray_servers.py` prints the table of docs/use/frameworks/ray.md, in milliseconds a step.
"""

import os
import statistics
import sys
import time

import numpy as np
import pytest
from conftest import alone, environment

ray = pytest.importorskip("ray")
import kvstore.ray  # noqa: E402

RATE = 0.125


class ParameterServer:
    """In the form of Ray's example of a synchronous parameter server."""

    def __init__(self, length):
        self.weights = np.zeros(length, "float32")

    def apply_gradients(self, *gradients):
        total = np.stack(gradients).sum(axis=0)
        # A new array: earlier ones belong to Ray's object store.
        self.weights = self.weights - RATE * total
        return self.weights

    def get_weights(self):
        return self.weights


class Worker:
    def __init__(self, length):
        self.pattern = (np.arange(length) % 7).astype("float32")

    def gradient(self, weights, rank):
        return 0.5 * weights + (rank + 1) * self.pattern

    def compute_gradients(self, weights, rank):
        return self.gradient(weights, rank)

    def train(self, steps):
        """Weights after all steps, and the times of steps."""
        kv, weights, times = kvstore.ray.store(), np.zeros_like(self.pattern), []
        kvstore.ray.init({"weights": weights})
        kv.set_optimizer("sgd", learning_rate=RATE)
        for _ in range(steps):
            began = time.perf_counter()
            kv.pushpull("weights", self.gradient(weights, kv.rank), out=weights)
            times.append(time.perf_counter() - began)
        return weights[:1000], times


def by_actors(workers, length, steps):
    server = ray.remote(ParameterServer).remote(length)
    actors = [ray.remote(Worker).remote(length) for _ in range(workers)]
    weights, times = server.get_weights.remote(), []
    ray.wait([weights])
    for _ in range(steps):
        began = time.perf_counter()
        gradients = [
            each.compute_gradients.remote(weights, rank) for rank, each in enumerate(actors)
        ]
        weights = server.apply_gradients.remote(*gradients)
        ray.wait([weights])
        times.append(time.perf_counter() - began)
    result = ray.get(weights)[:1000].copy()
    for each in (server, *actors):
        ray.kill(each)
    return result, statistics.median(times)


def by_job(workers, length, steps):
    with kvstore.ray.Job(workers) as job:
        job.start(Worker, length)
        found = job.run("train", steps)
    assert all((weights == found[0][0]).all() for weights, _ in found)
    return found[0][0], max(statistics.median(times) for _, times in found)


def test_weights_are_those_of_a_parameter_server_of_ray():
    result = alone(__file__, "short")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert [line.rsplit(": ", 1)[0] for line in lines] == [
        f"{workers} workers, {length} floats" for workers in (2, 4) for length in (1000, 10**6)
    ]


def main():
    is_short = sys.argv[1:] == ["short"]
    os.environ.update(environment())
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    for workers in (2, 4):
        for length in (1000, 10**6) if is_short else (1000, 10**6, 10**7):
            series = ([], [])
            for _ in range(1 if is_short else 5):
                steps = 10 if is_short else 30
                results = [by(workers, length, steps) for by in (by_actors, by_job)]
                assert (results[0][0] == results[1][0]).all()
                for times, (_, each) in zip(series, results):
                    times.append(1000 * each)
            theirs, ours = (statistics.median(each) for each in series)
            print(f"{workers} workers, {length} floats: {theirs:.2f} and {ours:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
