"""Trains a small network on handwritten digits with Keras 3, on its JAX or its PyTorch back end.

KERAS_BACKEND=jax kvstore run -n 2 -- python train_digits.py digits.csv
"""

import argparse

import keras
import numpy as np

if keras.backend.backend() == "torch":
    import kvstore.torch as kv

    def mean(gradients):
        return [kv.allreduce(each) for each in gradients]

else:
    import kvstore.jax as kv

    mean = kv.allreduce


class Averaged:
    """What the class of an optimizer gains: its gradients are the mean over all processes."""

    def apply(self, grads, trainable_variables=None):
        return super().apply(mean(grads), trainable_variables)


def averaged(optimizer):
    kind = optimizer.__class__
    optimizer.__class__ = type(kind.__name__, (Averaged, kind), {})
    return optimizer


def load(path):
    rows = np.loadtxt(path, delimiter=",", dtype="float32")
    pixels, labels = rows[:, :-1] / 16, rows[:, -1].astype("int32")
    return (pixels[:-360], labels[:-360]), (pixels[-360:], labels[-360:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="digits.csv")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    (pixels, labels), (held_out, expected) = load(args.data)
    keras.utils.set_random_seed(1)  # All processes begin with the same weights.
    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(
        averaged(keras.optimizers.SGD(0.3)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    random = np.random.default_rng(1)
    for _ in range(args.epochs):
        # Of each 64 samples those of this process.
        mine = random.permutation(len(labels))[:1408][kv.rank() :: kv.size()]
        model.fit(pixels[mine], labels[mine], 64 // kv.size(), shuffle=False, verbose=0)
    said = model.predict(held_out, verbose=0).argmax(axis=1)
    weights = sum(float(np.abs(each).sum()) for each in model.get_weights())
    print(f"accuracy {(said == expected).mean():.4f}, weights {weights:.3f}")


if __name__ == "__main__":
    main()
