"""Trains a small network on handwritten digits with JAX."""

import argparse

import jax
import jax.numpy as jnp
import kvstore.jax
import numpy as np


def load(path):
    rows = np.loadtxt(path, delimiter=",", dtype="float32")
    pixels, labels = rows[:, :-1] / 16, rows[:, -1].astype("int32")
    return (pixels[:-360], labels[:-360]), (pixels[-360:], labels[-360:])


def new_parameters(random):
    return {
        "hidden": {"weight": random.normal(0, 0.15, (64, 64)), "bias": np.zeros(64)},
        "out": {"weight": random.normal(0, 0.15, (64, 10)), "bias": np.zeros(10)},
    }


def scores(parameters, pixels):
    hidden, out = parameters["hidden"], parameters["out"]
    units = jax.nn.relu(pixels @ hidden["weight"] + hidden["bias"])
    return units @ out["weight"] + out["bias"]


def loss(parameters, pixels, labels):
    likelihood = jax.nn.log_softmax(scores(parameters, pixels))
    return -likelihood[jnp.arange(len(labels)), labels].mean()


@jax.jit
def step(parameters, pixels, labels):
    gradients = jax.grad(loss)(parameters, pixels, labels)
    gradients = kvstore.jax.allreduce(gradients)
    return jax.tree.map(lambda p, g: p - 0.3 * g, parameters, gradients)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="digits.csv")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    (pixels, labels), (held_out, expected) = load(args.data)
    random = np.random.default_rng(1)
    parameters = jax.tree.map(jnp.float32, new_parameters(random))
    for _ in range(args.epochs):
        for batch in random.permutation(len(labels))[:1408].reshape(-1, 64):
            batch = batch[kvstore.jax.rank() :: kvstore.jax.size()]
            parameters = step(parameters, pixels[batch], labels[batch])
    said = scores(parameters, held_out).argmax(axis=1)
    print(f"accuracy {(said == expected).mean():.4f}")


if __name__ == "__main__":
    main()
