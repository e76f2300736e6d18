"""Trains a PyTorch model whose parameters live in the store; hooks push each gradient.

Usage: torch_digits.py DATA [--epochs N]

The store reads and writes PyTorch's own memory, through DLPack. Each gradient is pushed in the
background as soon as it is there, while PyTorch computes the next ones. Data, first weights and
order of the samples are those of train_digits.py. Exits with status 1 if the accuracy on the
held-out samples is below 0.96, or if PyTorch is not installed.
"""

import argparse
import sys

import kvstore
from train_digits import BATCH, SplitMix64, first_weights, load, sgd

try:
    import torch
except ImportError:
    sys.exit(f"PyTorch is not installed; please run: {sys.executable} -m pip install torch")


def new_model(random):
    """The network of the other examples; PyTorch keeps weights as [out, in]."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    with torch.no_grad():
        for parameter, weights in zip(model.parameters(), first_weights(random)):
            parameter.copy_(torch.from_numpy(weights.T))
    return model


class StoredModel:
    """A model that is updated by a store."""

    def __init__(self, model):
        self.model = model
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters = list(model.parameters())
        self.pushes = []
        self.kv = kvstore.create("local")
        self.kv.init(self.names, self.parameters)
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
        self.kv.pull(self.names, out=self.parameters)
        return loss.item()


def main():
    parser = argparse.ArgumentParser(description="Trains a PyTorch model on handwritten digits.")
    parser.add_argument("data", metavar="DATA", help="digits.csv")
    parser.add_argument("--epochs", type=int, default=30, metavar="N")
    arguments = parser.parse_args()
    pixels, labels, test_pixels, test_labels = map(torch.from_numpy, load(arguments.data))
    random = SplitMix64(2026)
    model = new_model(random)
    stored = StoredModel(model)
    order = list(range(len(labels)))
    accuracy = 0.0
    for epoch in range(1, arguments.epochs + 1):
        random.shuffle(order)
        batches = torch.tensor(order).split(BATCH)[: len(order) // BATCH]
        loss = sum(stored.step(pixels[batch], labels[batch]) for batch in batches) / len(batches)
        with torch.no_grad():
            accuracy = (model(test_pixels).argmax(dim=1) == test_labels).float().mean().item()
        print(f"epoch {epoch:2}  loss {loss:.4f}  accuracy {accuracy:.4f}", flush=True)
    stored.kv.close()
    print(f"accuracy on {len(test_labels)} held-out samples: {accuracy:.4f}")
    return 0 if accuracy >= 0.96 else 1


if __name__ == "__main__":
    sys.exit(main())
