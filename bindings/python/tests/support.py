"""What several test files use."""

import os
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import numpy as np
from conftest import PACKAGE, PREFIX

try:
    import ml_dtypes

    BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
    _FLOAT8 = ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
    FLOAT8 = [np.dtype(getattr(ml_dtypes, f"float8_{name}")) for name in _FLOAT8]
except ImportError:
    BFLOAT16 = None
    FLOAT8 = []

INTEGERS = [np.dtype(f"{sign}int{bits}") for bits in (8, 16, 32, 64) for sign in ("", "u")]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
# Those whose values are added, and those whose values are not.
DTYPES = INTEGERS + FLOATS + ([BFLOAT16] if BFLOAT16 else [])
OPAQUE = [np.dtype(name) for name in ("bool", "complex64", "complex128")] + FLOAT8
WAIT_SECONDS = 60
# Of the installed library, or of the one that is tested instead.
PROGRAMS = (PREFIX / "bin" / "kvstore", Path(os.environ["KVSTORE_LIBRARY"]).parent / "kvstore")


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def output_of_job(program, workers):
    """What a job of Python workers prints, all of which end well."""
    job = start_job(program, workers)
    output, _ = job.communicate(timeout=WAIT_SECONDS)
    assert job.returncode == 0, output
    return output


def start_job(program, workers):
    """A job of Python workers, as a process."""
    kvstore_program = next(path for path in PROGRAMS if path.exists())
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "KV_JOB": uuid.uuid4().hex}
    command = [kvstore_program, "run", "-n", str(workers), "--", sys.executable, "-c", program]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def is_float(dtype):
    return dtype in FLOATS or dtype == BFLOAT16


def random_array(random, dtype, shape):
    """Any values of an integer or an opaque dtype, moderate ones of a float dtype."""
    if dtype in OPAQUE:
        size, end = dtype.itemsize * int(np.prod(shape)), 2 if dtype.kind == "b" else 256
        return random.integers(0, end, size, np.uint8).view(dtype).reshape(shape)
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return np.asarray(random.standard_normal(shape) * 8).astype(dtype)


def sum_of(arrays, dtype):
    """The sum of pushed arrays as documented: left to right, narrow floats in float32."""
    wide = np.dtype(np.float32) if is_float(dtype) and dtype.itemsize == 2 else dtype
    total = arrays[0].astype(dtype)
    for array in arrays[1:]:
        total = (total.astype(wide) + array.astype(dtype).astype(wide)).astype(wide)
    return np.asarray(total.astype(dtype))


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_numbers(a, b):
    """Equal bits, except that one NaN is as good as another."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not is_float(a.dtype):
        return np.array_equal(a, b)
    with np.errstate(invalid="ignore"):
        a, b = a.astype(np.float64), b.astype(np.float64)
    nan = np.isnan(a)
    return np.array_equal(nan, np.isnan(b)) and same_bits(np.where(nan, 0, a), np.where(nan, 0, b))


class Gate:
    """An updater that adds, and waits before each time until the gate opens."""

    def __init__(self):
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.calls = []

    def __call__(self, key, merged, stored):
        self.entered.set()
        if not self.opened.wait(WAIT_SECONDS):
            raise RuntimeError("the gate stayed shut")
        self.calls.append(key)
        stored += merged

    def open(self):
        self.opened.set()
