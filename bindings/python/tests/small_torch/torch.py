"""PyTorch for the loop of docs/use/reproducibility.md, in numpy: a linear model, dropout."""

import types

import numpy as np

_random = [None]


class Tensor(np.ndarray):
    grad = None

    def clone(self):
        return self.copy()

    def split(self, size):
        return [self[first : first + size] for first in range(0, len(self), size)]

    def tensor_split(self, parts):
        return np.array_split(self, parts)


def tensor(array):
    return np.asarray(array).view(Tensor)


class Generator:
    def manual_seed(self, seed):
        self.random = np.random.default_rng(seed)
        return self


def manual_seed(seed):
    _random[0] = np.random.default_rng(seed)


def randperm(count, generator):
    return tensor(generator.random.permutation(count))


def use_deterministic_algorithms(mode):
    assert mode is True


def set_num_threads(count):
    assert count == 1


class Linear:
    """Scores of classes, with dropout of the inputs."""

    def __init__(self, inputs, outputs):
        self.weight = tensor(_random[0].random((inputs, outputs), np.float32) - np.float32(0.5))
        self.bias = tensor(np.zeros(outputs, np.float32))

    def parameters(self):
        return iter([self.weight, self.bias])

    def named_parameters(self):
        return iter([("weight", self.weight), ("bias", self.bias)])

    def zero_grad(self):
        for parameter in self.parameters():
            parameter.grad = None

    def __call__(self, pixels):
        pixels = pixels * (_random[0].random(pixels.shape) < 0.9)
        return types.SimpleNamespace(
            model=self, pixels=pixels, scores=pixels @ self.weight + self.bias
        )


class CrossEntropy:
    """A loss that can be multiplied, and goes back to the parameters."""

    def __init__(self, output, labels):
        parts = np.exp(output.scores - output.scores.max(axis=1, keepdims=True))
        self.output = output
        self.delta = parts / parts.sum(axis=1, keepdims=True)
        self.delta[np.arange(len(labels)), labels] -= 1
        self.delta /= len(labels)

    def __mul__(self, factor):
        self.delta = self.delta * np.float32(factor)
        return self

    def __truediv__(self, factor):
        return self * (1 / factor)

    def backward(self):
        model = self.output.model
        parts = [self.output.pixels.T @ self.delta, self.delta.sum(axis=0)]
        for parameter, part in zip(model.parameters(), parts):
            part = tensor(part.astype(np.float32))
            parameter.grad = part if parameter.grad is None else parameter.grad + part


nn = types.SimpleNamespace(
    functional=types.SimpleNamespace(cross_entropy=CrossEntropy), Linear=Linear
)
