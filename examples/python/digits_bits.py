"""Trains the digits in a job, and prints a digest of all bits after each epoch.

Usage: kvstore run -n WORKERS -s SERVERS --set sum_order=tree -- \\
           python digits_bits.py DATA [--epochs N] [--losses FILE] [--flip RANK,EPOCH]

A batch has four shards, and each a gradient: with one worker all four are its own (1 x 4), two
workers have two each (2 x 2), four have one each (4 x 1). A shard has the same position in the sum
in all of them, so with sum_order=tree the weights have the same bits. Data, first weights and order
of the samples are those of train_digits.py; momentum is on the servers.
"""

import argparse
import hashlib
import os
import sys

# Before numpy is imported: products have one order, whatever the processors of the machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import kvstore
import numpy as np
from train_digits import BATCH, NAMES, SplitMix64, Worker, first_weights, load

SHARDS = 4
SHARD = BATCH // SHARDS
# A flip changes this bit of the largest element: by at most 2**-15 of it.
FLIPPED, BIT = "fc1.weight", 8


class Training:
    """The shards of one worker."""

    def __init__(self, kv, data):
        if SHARDS % kv.num_workers:
            raise SystemExit("start 1, 2 or 4 workers")
        self.kv = kv
        self.pixels, self.labels, self.test_pixels, self.test_labels = load(data)
        self.random = SplitMix64(2026)
        self.order = list(range(len(self.labels)))
        self.weights = first_weights(self.random)
        self.shards = [Worker() for _ in range(SHARDS // kv.num_workers)]
        for shard in self.shards:
            shard.weights = self.weights
        kv.init(NAMES, self.weights)
        kv.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
        self.losses = []
        self.flip = None  # The epoch in which this worker flips a bit.

    def epoch(self, number, with_losses):
        self.random.shuffle(self.order)
        batches = len(self.order) // BATCH
        for batch in range(batches):
            self.compute(batch)
            if number == self.flip and batch == batches // 2:
                self.flip_bit((number - 1) * batches + batch + 1)
            lists = [[shard.gradients[i] for shard in self.shards] for i in range(len(NAMES))]
            # The next weights: each round has the values of all workers.
            self.kv.pushpull(NAMES, lists, out=self.weights)
            if with_losses:
                self.losses.append(self.loss())

    def compute(self, batch):
        """The gradients of this worker's n shards, at the positions from rank * n on."""
        position = self.kv.rank * len(self.shards)
        for shard in self.shards:
            first = batch * BATCH + position * SHARD
            samples = self.order[first : first + SHARD]
            shard.compute(self.pixels[samples], self.labels[samples])
            position += 1

    def flip_bit(self, round):
        gradient = self.shards[0].gradients[NAMES.index(FLIPPED)].reshape(-1)
        place = int(np.abs(gradient).argmax())
        before = float(gradient[place])
        gradient.view(np.uint32)[place] ^= np.uint32(1 << BIT)
        after = float(gradient[place])
        print(
            f"round {round}: rank {self.kv.rank} flips bit {BIT} of element {place} of its "
            f"{FLIPPED}: {before:.8f} becomes {after:.8f}",
            flush=True,
        )

    def loss(self):
        """The mean loss of all samples trained on, with the weights as they are now."""
        _, scores = self.shards[0].forward(self.pixels)
        scores -= scores.max(axis=1, keepdims=True)
        sums = np.exp(scores).sum(axis=1)
        right = scores[np.arange(len(self.labels)), self.labels]
        return float((np.log(sums) - right).mean())

    def accuracy(self):
        _, scores = self.shards[0].forward(self.test_pixels)
        return float((scores.argmax(axis=1) == self.test_labels).mean())

    def digest(self):
        """One digest of the digests of all keys: rounds, weights and momenta."""
        text = "".join(
            f"{name} {key.round} {key.value:016x} {key.state:016x}\n"
            for name, key in zip(NAMES, self.kv.digest(NAMES))
        )
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def parse(words):
    parser = argparse.ArgumentParser(description="Trains on handwritten digits in a job.")
    parser.add_argument("data", metavar="DATA", help="digits.csv")
    parser.add_argument("--epochs", type=int, default=12, metavar="N")
    parser.add_argument("--losses", metavar="FILE", help="rank 0 writes the loss after each round")
    parser.add_argument("--flip", metavar="RANK,EPOCH", help="flip a bit of a gradient of a rank")
    return parser.parse_args(words)


def main():
    arguments = parse(sys.argv[1:])
    with kvstore.create("dist_sync") as kv:
        training = Training(kv, arguments.data)
        if arguments.flip:
            rank, epoch = map(int, arguments.flip.split(","))
            training.flip = epoch if rank == kv.rank else None
        for number in range(1, arguments.epochs + 1):
            training.epoch(number, arguments.losses and kv.rank == 0)
            if kv.rank == 0:
                print(
                    f"epoch {number:2}  loss {training.loss():.6f}  "
                    f"accuracy {training.accuracy():.4f}  digest {training.digest()}",
                    flush=True,
                )
        if training.losses:
            with open(arguments.losses, "w", encoding="ascii") as file:
                file.writelines(f"{loss:.9f}\n" for loss in training.losses)
        kv.close(timeout=60)


if __name__ == "__main__":
    main()
