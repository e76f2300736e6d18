"""Trains a small network on handwritten digits by actors, in the form of Ray's collectives."""

import argparse
import time

import kvstore.ray
import numpy as np
import ray
from ray.util import collective


def load(path):
    rows = np.loadtxt(path, delimiter=",", dtype="float32")
    pixels, labels = rows[:, :-1] / 16, rows[:, -1].astype("int32")
    return (pixels[:-360], labels[:-360]), (pixels[-360:], labels[-360:])


def new_weights(random, hidden):
    scale = np.float32(1.2 / np.sqrt(hidden))
    return {
        "hidden.weight": random.normal(0, 0.15, (64, hidden)).astype("float32"),
        "hidden.bias": np.zeros(hidden, "float32"),
        "out.weight": scale * random.normal(0, 1, (hidden, 10)).astype("float32"),
        "out.bias": np.zeros(10, "float32"),
    }


def forward(weights, pixels):
    units = np.maximum(pixels @ weights["hidden.weight"] + weights["hidden.bias"], 0)
    return units, units @ weights["out.weight"] + weights["out.bias"]


def gradients_of(weights, pixels, labels):
    units, scores = forward(weights, pixels)
    error = np.exp(scores - scores.max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    below = error @ weights["out.weight"].T * (units > 0)
    return {
        "hidden.weight": pixels.T @ below,
        "hidden.bias": below.sum(axis=0),
        "out.weight": units.T @ error,
        "out.bias": error.sum(axis=0),
    }


@ray.remote
class Worker:
    def __init__(self, path, hidden):
        self.train_set, self.held_out = load(path)
        self.random = np.random.default_rng(1)
        self.weights = new_weights(self.random, hidden)

    def setup(self, world_size, rank):
        self.world_size, self.rank = world_size, rank
        collective.init_collective_group(world_size, rank, backend=kvstore.ray.backend())

    def train(self, epochs):
        (pixels, labels), times = self.train_set, []
        for _ in range(epochs):
            for batch in self.random.permutation(len(labels))[:1408].reshape(-1, 64):
                began = time.perf_counter()
                mine = batch[self.rank :: self.world_size]
                gradients = gradients_of(self.weights, pixels[mine], labels[mine])
                for name, gradient in gradients.items():
                    collective.allreduce(gradient)
                    self.weights[name] -= 0.3 / len(batch) * gradient
                times.append(time.perf_counter() - began)
        return 1000 * np.median(times)

    def test(self):
        pixels, labels = self.held_out
        accuracy = (forward(self.weights, pixels)[1].argmax(axis=1) == labels).mean()
        return accuracy, sum(float(each.sum(dtype="float64")) for each in self.weights.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="digits.csv")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=64)
    args = parser.parse_args()
    ray.init(num_cpus=args.workers, include_dashboard=False, log_to_driver=False)
    workers = [Worker.remote(args.data, args.hidden) for _ in range(args.workers)]
    ray.get([each.setup.remote(args.workers, rank) for rank, each in enumerate(workers)])
    times = ray.get([each.train.remote(args.epochs) for each in workers])
    for accuracy, total in ray.get([each.test.remote() for each in workers]):
        print(f"accuracy {accuracy:.4f}, sum of the weights {total:.9g}")
    print(f"{max(times):.2f} ms a step")


if __name__ == "__main__":
    main()
