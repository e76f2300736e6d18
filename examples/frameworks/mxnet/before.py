"""Trains a small network on handwritten digits with Gluon, on four contexts of one machine."""

import argparse

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon


def load(path):
    rows = np.loadtxt(path, delimiter=",", dtype="float32")
    pixels, labels = rows[:, :-1] / 16, rows[:, -1]
    return (pixels[:-360], labels[:-360]), (pixels[-360:], labels[-360:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="digits.csv")
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    mx.random.seed(1)
    np.random.seed(1)
    contexts = [mx.cpu(index) for index in range(4)]
    (pixels, labels), (held_out, expected) = load(args.data)
    batches = gluon.data.DataLoader(
        gluon.data.ArrayDataset(pixels, labels), 64, shuffle=True, last_batch="discard"
    )
    net = gluon.nn.Sequential()
    net.add(gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    options = {"learning_rate": 0.2, "momentum": 0.9}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore="device")
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(args.epochs):
        for x, y in batches:
            parts = zip(*(gluon.utils.split_and_load(each, contexts) for each in (x, y)))
            with autograd.record():
                losses = [loss_of(net(of_x), of_y) for of_x, of_y in parts]
            for loss in losses:
                loss.backward()
            trainer.step(len(y))
    said = net(mx.nd.array(held_out, ctx=contexts[0])).argmax(axis=1).asnumpy()
    print(f"accuracy {(said == expected).mean():.4f}")


if __name__ == "__main__":
    main()
