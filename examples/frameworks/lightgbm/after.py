"""Trains boosted trees on handwritten digits with LightGBM."""

import argparse

import kvstore.lightgbm
import lightgbm as lgb
import numpy as np

PARAMETERS = {"objective": "multiclass", "num_class": 10, "num_leaves": 15, "verbosity": -1}


@kvstore.lightgbm.network()
def train(rows, rounds):
    rows = rows[kvstore.lightgbm.rank() :: kvstore.lightgbm.size()]
    data = lgb.Dataset(rows[:, :-1], rows[:, -1])
    return lgb.train(PARAMETERS, data, rounds)


def accuracy(booster, rows):
    return (booster.predict(rows[:, :-1]).argmax(axis=1) == rows[:, -1]).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="digits.csv")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    rows = np.loadtxt(args.data, delimiter=",")
    booster = train(rows[:-360], args.rounds)
    print(f"accuracy {accuracy(booster, rows[-360:]):.4f}")


if __name__ == "__main__":
    main()
