"""Calls of the library beside PyTorch, on one GPU in one process: an optimizer over 1,000 tensors of 1K,
and the sum of four tensors of 16M.

Usage: peers.py LIBRARY

Prints a table with the medians of both and their ratio, which is below 1 where the library is faster,
or one line that says why nothing is measured. Results are compared before anything is timed. The
variable KV_TEST_GPU_SCALE divides the sizes.
"""

import os
import statistics
import sys
import time
from ctypes import byref, c_int32, c_int64, c_size_t, c_uint64, c_void_p

from frameworks import CUDA, Library, Tensor

RATE, MOMENTUM = 0.01, 0.9
ROUNDS, REPEATS = 9, 20


class Keys:
    """Keys of a `device` store, each with some values and an out; one `pushpull` of all of them."""

    def __init__(self, library, firsts, values, outs, optimizer=None):
        self.library, self.handle = library, c_void_p()
        library.call("kv_create", b"device", None, byref(self.handle))
        self.shapes = []
        count, each = len(firsts), len(values[0])
        keys = (c_uint64 * count)(*range(count))
        library.call("kv_init", self.handle, keys, self.tensors(firsts), c_size_t(count))
        if optimizer:
            library.call("kv_set_optimizer", self.handle, b"sgd", optimizer.encode())
        pushed = (c_uint64 * (count * each))(*[key for key in range(count) for _ in range(each)])
        self.arguments = (
            self.handle,
            pushed,
            self.tensors([value for of_key in values for value in of_key]),
            c_size_t(count * each),
            keys,
            self.tensors(outs),
            c_size_t(count),
            c_int32(0),
            None,
        )

    def tensors(self, arrays):
        """The list of C of some tensors."""
        list_of_c = (Tensor * len(arrays))()
        for at, array in enumerate(arrays):
            shape = (c_int64 * 1)(array.numel())
            self.shapes.append(shape)
            f32 = 2 | 32 << 8 | 1 << 16
            list_of_c[at] = Tensor(array.data_ptr(), CUDA, 0, 1, f32, shape, None, 0)
        return list_of_c

    def pushpull(self):
        self.library.call("kv_pushpull", *self.arguments)

    def free(self):
        self.library.calls.kv_free(self.handle)


def medians(torch, subjects):
    """Seconds of one run of each subject, in rounds that take turns."""
    times = [[] for _ in subjects]
    for _ in range(ROUNDS):
        for subject, own in zip(subjects, times):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(REPEATS):
                subject()
            torch.cuda.synchronize()
            own.append((time.perf_counter() - start) / REPEATS)
    return [statistics.median(own) for own in times]


def row(*cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def compare(torch, name, ours, theirs):
    own, peer = medians(torch, [ours, theirs])
    row(name, f"{own * 1e6:.1f} us", f"{peer * 1e6:.1f} us", f"{own / peer:.2f}")


def new_sgd(torch, parameters, options):
    """An optimizer of PyTorch that has made a step; None if it does not have the option."""
    try:
        optimizer = torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, **options)
        optimizer.step()
    except (TypeError, ValueError, RuntimeError):
        return None
    return optimizer


def compare_sgd(torch, library, scale):
    def new(count):
        return [torch.randn(1024, device="cuda") for _ in range(count)]

    count = max(1000 // scale, 1)
    for options in [{"foreach": True}, {"fused": True}]:
        option = next(iter(options))
        weights, gradients = new(count), new(count)
        parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient
        name = f"{count} keys of 1K, sgd with momentum, beside SGD({option}=True)"
        optimizer = new_sgd(torch, parameters, options)
        if optimizer is None:
            row(name, "", f"not in PyTorch {torch.__version__}", "")
            continue
        outs = [torch.empty_like(weight) for weight in weights]
        values = [[gradient] for gradient in gradients]
        params = f"learning_rate={RATE},momentum={MOMENTUM}"
        keys = Keys(library, weights, values, outs, params)
        keys.pushpull()
        for _ in range(3):
            keys.pushpull()
            optimizer.step()
        for out, parameter in zip(outs, parameters):
            if not torch.allclose(out, parameter.detach(), rtol=1e-4, atol=1e-5):
                raise AssertionError(f"{name}: the weights differ")
        compare(torch, name, keys.pushpull, optimizer.step)
        keys.free()


def compare_sum(torch, library, scale):
    count = (16 << 20) // scale
    values = [torch.randn(count, device="cuda") for _ in range(4)]
    own, peer = torch.empty_like(values[0]), torch.empty_like(values[0])
    keys = Keys(library, values[:1], [values], [own])

    def add():
        torch.add(values[0], values[1], out=peer)
        peer.add_(values[2])
        peer.add_(values[3])

    keys.pushpull()
    add()
    torch.cuda.synchronize()
    if not torch.equal(own, peer):
        raise AssertionError("the sums of four differ")
    compare(torch, f"sum of 4 x {count} f32, stored and pulled", keys.pushpull, add)
    keys.free()


def main():
    try:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
    except ImportError as error:
        print(f"SKIPPED peers: {error}")
        return
    scale = max(int(os.environ.get("KV_TEST_GPU_SCALE", "1")), 1)
    library = Library(sys.argv[1])
    library.set_stream(torch.cuda.current_stream().cuda_stream)
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}; medians of {ROUNDS} rounds\n")
    row("what", "kvstore", "PyTorch", "kvstore / PyTorch")
    print("|---|---|---|---|")
    compare_sgd(torch, library, scale)
    compare_sum(torch, library, scale)


if __name__ == "__main__":
    main()
