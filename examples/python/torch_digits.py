"""Trains a PyTorch model whose parameters live in the store; hooks push each gradient.

Usage: torch_digits.py DATA [--epochs N]

The store reads and writes PyTorch's own memory, through DLPack. Each gradient is pushed in the
background as soon as it is there, while PyTorch computes the next ones. DATA is digits.csv: 64
pixel values from 0 to 16 and the label, on each line. Exits with status 1 if the accuracy on the
held-out samples is below 0.96, and with 0 if PyTorch is not installed.
"""

import argparse
import sys

import numpy as np

import kvstore

try:
    import torch
except ImportError:
    print("PyTorch is not installed")
    sys.exit(0)

BATCH = 128
LEARNING_RATE = np.float32(0.5)


def load(path):
    """Every fifth sample is held out: gives pixels and labels to train with, then to test with."""
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))
    pixels, labels = table[:, :64] / 16, table[:, 64].long()
    held_out = torch.arange(len(table)) % 5 == 0
    return pixels[~held_out], labels[~held_out], pixels[held_out], labels[held_out]


def sgd(key, input, stored):
    """The updater of the store."""
    stored -= LEARNING_RATE * input


class StoredModel:
    """A model that is updated by a store."""

    def __init__(self, model):
        self.model = model
        self.names, self.parameters = zip(*model.named_parameters())
        self.pushes = []
        self.kv = kvstore.create("local")
        self.kv.init(list(self.names), list(self.parameters))
        self.kv.set_updater(sgd)
        # The next step needs the first layer first.
        for place, (name, parameter) in enumerate(zip(self.names, self.parameters)):
            parameter.register_post_accumulate_grad_hook(self.pusher(name, -place))

    def pusher(self, name, priority):
        def push(parameter):
            self.pushes.append(self.kv.push_async(name, parameter.grad, priority))

        return push

    def step(self, pixels, labels):
        self.model.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(pixels), labels)
        loss.backward()
        for push in self.pushes:
            push.wait(timeout=60)
        self.pushes.clear()
        self.kv.pull(list(self.names), out=list(self.parameters))
        return loss.item()


def main():
    parser = argparse.ArgumentParser(description="Trains a PyTorch model on handwritten digits.")
    parser.add_argument("data", metavar="DATA", help="digits.csv")
    parser.add_argument("--epochs", type=int, default=30, metavar="N")
    arguments = parser.parse_args()
    torch.manual_seed(int(__import__("os").environ.get("S","2026")))
    pixels, labels, test_pixels, test_labels = load(arguments.data)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    stored = StoredModel(model)
    accuracy = 0.0
    for epoch in range(1, arguments.epochs + 1):
        batches = torch.randperm(len(labels)).split(BATCH)[: len(labels) // BATCH]
        loss = sum(stored.step(pixels[batch], labels[batch]) for batch in batches) / len(batches)
        with torch.no_grad():
            accuracy = float((model(test_pixels).argmax(dim=1) == test_labels).float().mean())
        print(f"epoch {epoch:2}  loss {loss:.4f}  accuracy {accuracy:.4f}", flush=True)
    stored.kv.close()
    print(f"accuracy on {len(test_labels)} held-out samples: {accuracy:.4f}")
    return 0 if accuracy >= 0.96 else 1


if __name__ == "__main__":
    sys.exit(main())
