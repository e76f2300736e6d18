"""Trains a linear classifier on handwritten digits with scikit-learn.

kvstore run -n 2 -- python train_digits.py digits.csv

Each process trains on rows of its own. After each epoch all go on with the mean of their
coefficients (parameter averaging: McDonald, Hall and Mann, "Distributed Training Strategies for the
Structured Perceptron", 2010).
"""

import argparse
import os

import kvstore
import numpy as np
from sklearn.linear_model import SGDClassifier


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="digits.csv")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    rows = np.loadtxt(args.data, delimiter=",")
    pixels, labels = rows[:, :-1] / 16, rows[:, -1]
    with kvstore.create("dist_sync" if "KV_ROOT" in os.environ else "local") as kv:
        mine = slice(kv.rank, -360, kv.num_workers)
        model = SGDClassifier(loss="log_loss", alpha=1e-4, random_state=1)
        for _ in range(args.epochs):
            model.partial_fit(pixels[mine], labels[mine], classes=np.arange(10))
            for each in (model.coef_, model.intercept_):
                kv.allreduce(each, op="mean")
        accuracy = model.score(pixels[-360:], labels[-360:])
        print(f"accuracy {accuracy:.4f}, weights {np.abs(model.coef_).sum():.3f}")


if __name__ == "__main__":
    main()
