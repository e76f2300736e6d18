"""Trains a small network on handwritten digits: four worker threads, gradients summed by the store.

Usage: train_digits.py DATA [--epochs N]

DATA is digits.csv: 64 pixel values from 0 to 16 and the label, on each line. Exits with status 1 if
the accuracy on the held-out samples is below 0.96.
"""

import argparse
import math
import sys
import threading
import time

import kvstore
import numpy as np

WORKERS = 4
BATCH = 128
QUARTER = BATCH // WORKERS
LEARNING_RATE = np.float32(0.5)
SHAPES = {
    "fc1.weight": (64, 64),
    "fc1.bias": (64,),
    "fc2.weight": (64, 10),
    "fc2.bias": (10,),
}
NAMES = list(SHAPES)


class SplitMix64:
    """Random numbers that are the same in every language."""

    MASK = (1 << 64) - 1

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & self.MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & self.MASK
        return z ^ (z >> 31)

    def uniform(self, count):
        """Numbers from -1 (included) to 1 (excluded)."""
        bits = np.array([self.next() >> 40 for _ in range(count)], np.float32)
        return bits * np.float32(2.0**-23) - np.float32(1)

    def shuffle(self, items):
        for i in range(len(items) - 1, 0, -1):
            j = self.next() % (i + 1)
            items[i], items[j] = items[j], items[i]


def load(path):
    """Every fifth sample is held out: gives pixels and labels to train with, then to test with."""
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    pixels, labels = table[:, :64] / np.float32(16), table[:, 64].astype(np.int64)
    held_out = np.arange(len(table)) % 5 == 0
    return pixels[~held_out], labels[~held_out], pixels[held_out], labels[held_out]


def first_weights(random):
    weights = []
    for shape in SHAPES.values():
        if len(shape) == 1:
            weights.append(np.zeros(shape, np.float32))
        else:
            bound = np.float32(math.sqrt(6 / sum(shape)))
            weights.append((random.uniform(shape[0] * shape[1]) * bound).reshape(shape))
    return weights


class Worker:
    """One device: its own copy of the weights, its own buffers for the gradients."""

    def __init__(self):
        self.weights = [np.zeros(shape, np.float32) for shape in SHAPES.values()]
        self.gradients = [np.zeros(shape, np.float32) for shape in SHAPES.values()]
        self.loss = 0.0

    def forward(self, pixels):
        w1, b1, w2, b2 = self.weights
        hidden = np.maximum(pixels @ w1 + b1, 0)
        return hidden, hidden @ w2 + b2

    def compute(self, pixels, labels):
        """The part of these samples in the gradient of the batch's mean loss."""
        hidden, scores = self.forward(pixels)
        scores -= scores.max(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        sums = np.exp(scores).sum(axis=1, keepdims=True)
        self.loss += float((np.log(sums[:, 0]) - scores[rows, labels]).sum())
        delta = np.exp(scores) / sums
        delta[rows, labels] -= 1
        delta /= np.float32(BATCH)
        d1 = (delta @ self.weights[2].T) * (hidden > 0)
        w1, b1, w2, b2 = self.gradients
        np.matmul(pixels.T, d1, out=w1)
        np.sum(d1, axis=0, out=b1)
        np.matmul(hidden.T, delta, out=w2)
        np.sum(delta, axis=0, out=b2)


class Training:
    """What the worker threads share."""

    def __init__(self, path, epochs):
        self.pixels, self.labels, self.test_pixels, self.test_labels = load(path)
        self.epochs = epochs
        self.random = SplitMix64(2026)
        self.order = list(range(len(self.labels)))
        self.workers = [Worker() for _ in range(WORKERS)]
        self.barrier = threading.Barrier(WORKERS)
        self.bytes_before = 0
        self.kv = kvstore.create("local")
        self.kv.init(NAMES, first_weights(self.random))
        self.kv.set_updater(sgd)
        self.accuracy = 0.0

    def run(self):
        threads = [threading.Thread(target=self.work, args=(rank,)) for rank in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.kv.close()
        if self.barrier.broken:
            raise SystemExit("a worker has failed")

    def work(self, rank):
        try:
            self.kv.pull(NAMES, out=self.workers[rank].weights)
            for epoch in range(1, self.epochs + 1):
                self.train(rank, epoch)
        except threading.BrokenBarrierError:
            return  # Another worker has failed, and says why.
        except BaseException:
            self.barrier.abort()
            raise

    def train(self, rank, epoch):
        if rank == 0:
            self.random.shuffle(self.order)
        self.barrier.wait()
        start = time.perf_counter()
        for first in range(0, len(self.order) - BATCH + 1, BATCH):
            self.step(rank, first + QUARTER * rank)
        if rank == 0:
            self.report(epoch, time.perf_counter() - start)

    def step(self, rank, first):
        worker = self.workers[rank]
        samples = self.order[first : first + QUARTER]
        worker.compute(self.pixels[samples], self.labels[samples])
        self.barrier.wait()
        if rank == 0:
            lists = [[each.gradients[i] for each in self.workers] for i in range(len(NAMES))]
            self.kv.push(NAMES, lists)
        self.barrier.wait()
        self.kv.pull(NAMES, out=worker.weights)

    def report(self, epoch, seconds):
        """One line on the epoch; the other workers wait at its next barrier meanwhile."""
        loss = sum(worker.loss for worker in self.workers) / (len(self.order) // BATCH * BATCH)
        for worker in self.workers:
            worker.loss = 0.0
        _, scores = self.workers[0].forward(self.test_pixels)
        self.accuracy = float((scores.argmax(axis=1) == self.test_labels).mean())
        stats = self.kv.stats()
        total = stats["push_bytes"] + stats["pull_bytes"]
        rate = (total - self.bytes_before) / seconds / 1e6
        self.bytes_before = total
        print(
            f"epoch {epoch:2}  loss {loss:.4f}  accuracy {self.accuracy:.4f}  {rate:6.1f} MB/s",
            flush=True,
        )


def sgd(key, input, stored):
    """The updater of the store."""
    stored -= LEARNING_RATE * input


def main():
    parser = argparse.ArgumentParser(description="Trains on handwritten digits.")
    parser.add_argument("data", metavar="DATA", help="digits.csv")
    parser.add_argument("--epochs", type=int, default=30, metavar="N")
    arguments = parser.parse_args()
    training = Training(arguments.data, arguments.epochs)
    training.run()
    print(f"accuracy on {len(training.test_labels)} held-out samples: {training.accuracy:.4f}")
    return 0 if training.accuracy >= 0.96 else 1


if __name__ == "__main__":
    sys.exit(main())
