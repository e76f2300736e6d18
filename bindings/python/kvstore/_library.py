"""The C library: found, loaded, and declared to ctypes and to the native half of this package."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

ABI_VERSION = 0
SONAME = f"libkvstore.so.{ABI_VERSION}"


class Tensor(ctypes.Structure):
    """A kv_tensor, which has the layout of DLPack's DLTensor."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("dtype", c_uint32),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class Device(ctypes.Structure):
    """A kv_device."""

    _fields_ = [("type", c_int32), ("id", c_int32)]


class Digest(ctypes.Structure):
    """A kv_key_digest."""

    _fields_ = [("round", c_uint64), ("value", c_uint64), ("state", c_uint64)]


class Round(ctypes.Structure):
    """A kv_round."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("round", c_uint64),
        ("contributors", c_uint64),
        ("total_weight", c_double),
    ]


Updater = CFUNCTYPE(c_int32, c_void_p, c_uint64, POINTER(Tensor), POINTER(Tensor))
Logger = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
Done = CFUNCTYPE(None, c_void_p, c_uint64, c_int32)
Drop = CFUNCTYPE(None, c_void_p)
KeyNamer = CFUNCTYPE(c_int32, c_void_p, c_char_p, POINTER(c_char_p))

# Functions that `_native` calls: those that take arrays, and one for waits. It calls kv_wait(),
# kv_cancel(), kv_set_stream() and kv_stream() of the other list, too.
NATIVE = (
    "kv_init",
    "kv_push",
    "kv_pull",
    "kv_pushpull",
    "kv_broadcast",
    "kv_push_rows",
    "kv_pull_rows",
    "kv_allreduce",
    "kv_reduce",
    "kv_reduce_scatter",
    "kv_broadcast_from",
    "kv_allgather",
    "kv_gather",
    "kv_scatter",
    "kv_all_to_all",
    "kv_bind",
    "kv_bound_push",
    "kv_bound_pull",
    "kv_bound_pushpull",
    "kv_bound_free",
    "kv_set_interrupt",
)
# Every pointer is declared as void *: ctypes then takes arrays, byref() and None alike.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "kv_config_create": (c_void_p,),
    "kv_config_set": (c_void_p, c_char_p, c_char_p),
    "kv_create": (c_char_p, c_void_p, c_void_p),
    "kv_group": (c_void_p, c_char_p, c_void_p, c_size_t, c_void_p),
    "kv_close": (c_void_p, c_int64),
    "kv_type": (c_void_p, c_void_p),
    "kv_role": (c_void_p, c_void_p),
    "kv_rank": (c_void_p, c_void_p),
    "kv_num_workers": (c_void_p, c_void_p),
    "kv_num_lost": (c_void_p, c_void_p),
    "kv_barrier": (c_void_p, c_int64),
    "kv_done": (c_void_p,),
    "kv_resume": (c_void_p, c_int64),
    "kv_serve": (c_void_p,),
    "kv_stats": (c_void_p, c_void_p, c_size_t, c_void_p),
    "kv_set_stream": (Device, c_void_p),
    "kv_stream": (Device, c_void_p),
    "kv_set_logger": (c_int32, Logger, c_void_p, Drop),
    "kv_intern": (c_void_p, c_char_p, c_void_p),
    "kv_key_name": (c_void_p, c_uint64, c_void_p),
    "kv_key_info": (c_void_p, c_uint64, c_void_p, c_void_p, c_void_p, c_int32),
    "kv_key_device": (c_void_p, c_uint64, c_void_p),
    "kv_keys": (c_void_p, c_void_p, c_size_t, c_void_p),
    "kv_digest": (c_void_p, c_void_p, c_void_p, c_size_t),
    "kv_remove": (c_void_p, c_void_p, c_size_t),
    "kv_wait": (c_void_p, c_uint64, c_int64),
    "kv_wait_all": (c_void_p, c_int64),
    "kv_cancel": (c_void_p, c_uint64),
    "kv_on_done": (c_void_p, c_uint64, Done, c_void_p, Drop),
    "kv_set_updater": (c_void_p, Updater, c_void_p, Drop),
    "kv_set_optimizer": (c_void_p, c_char_p, c_char_p),
    "kv_set_optimizer_for": (c_void_p, c_void_p, c_size_t, c_char_p, c_char_p),
    "kv_set_hyperparameter": (c_void_p, c_char_p, c_double),
    "kv_set_key_hyperparameter": (c_void_p, c_uint64, c_char_p, c_double),
    "kv_set_compression": (c_void_p, c_char_p, c_char_p),
    "kv_set_weight": (c_void_p, c_double),
    "kv_clear_weight": (c_void_p,),
    "kv_set_clipping": (c_void_p, c_double, c_uint32),
    "kv_last_norm": (c_void_p, c_void_p, c_void_p),
    "kv_begin": (c_void_p,),
    "kv_commit": (c_void_p, c_void_p),
    "kv_rollback": (c_void_p,),
    "kv_last_round": (c_void_p, c_uint64, c_void_p),
    "kv_save": (c_void_p, c_char_p),
    "kv_load": (c_void_p, c_char_p),
    "kv_load_values": (c_void_p, c_char_p, KeyNamer, c_void_p),
    "kv_config_free": (c_void_p,),
    "kv_abort": (c_void_p,),
    "kv_free": (c_void_p,),
    "kv_last_error": (),
    "kv_set_callback_error": (c_char_p,),
    "kv_status_name": (c_int32,),
    "kv_capable": (c_char_p,),
    "kv_version": (),
}
# All others give a status.
_RESULTS: dict[str, Any] = {
    "kv_config_free": None,
    "kv_abort": None,
    "kv_free": None,
    "kv_last_error": c_char_p,
    "kv_set_callback_error": None,
    "kv_status_name": c_char_p,
    "kv_capable": c_int32,
    "kv_version": c_char_p,
}


def _path() -> str:
    """An installed package uses the library it came with, whatever the environment says."""
    bundled = os.path.join(os.path.dirname(__file__), "lib", SONAME)
    if os.path.exists(bundled):
        return bundled
    return os.environ.get("KVSTORE_LIBRARY") or SONAME


def _load() -> ctypes.CDLL:
    path = _path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"the library {path} cannot be loaded ({error}): install the kvstore wheel, install "
            f"libkvstore where the system finds it, or set KVSTORE_LIBRARY to the file"
        ) from error
    version = _function(library, path, "kv_abi_version")
    version.restype = c_uint32
    if version() != ABI_VERSION:
        raise ImportError(
            f"the library {path} has binary interface {version()}, this package needs {ABI_VERSION}"
        )
    for name in NATIVE:
        _function(library, path, name)
    for name, arguments in ARGUMENTS.items():
        function = _function(library, path, name)
        function.argtypes, function.restype = arguments, _RESULTS.get(name, c_int32)
    return library


def _function(library: ctypes.CDLL, path: str, name: str) -> Any:
    try:
        return getattr(library, name)
    except AttributeError:
        raise ImportError(
            f"the library {path} has no function {name}: it is another library, or that of another "
            f"release; KVSTORE_LIBRARY is the path of libkvstore.so"
        ) from None


def _bind(library: ctypes.CDLL) -> None:
    """Loads the native half and gives it the library, which it has no copy of."""
    if "t" in sys.abiflags:
        raise ImportError(
            "kvstore does not support free-threaded Python, which has no stable ABI: use the build "
            "of the same version with the GIL"
        )
    try:
        _native = importlib.import_module("._native", __package__)
    except ImportError as error:
        raise ImportError(
            f"the extension kvstore/_native.abi3.so cannot be loaded ({error}): install the "
            f"kvstore wheel, or run `make python` in the source tree"
        ) from error
    _native.bind(library._handle)


loaded = _load()
_bind(loaded)
