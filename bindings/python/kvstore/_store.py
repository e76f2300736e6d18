"""The store, in the shape of the tutorials."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Iterable, Mapping
from ctypes import byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    NamedTuple,
    Optional,
    SupportsFloat,
    Union,
    overload,
)

from . import _callbacks, _dtypes, _native
from ._bound import Bound
from ._call import check, failure_of, library, wait
from ._collectives import Collectives
from ._errors import ClosedError, InvalidArgumentError, Status
from ._handle import Handle, creation, run_postponed
from ._keys import keys_of
from ._library import Device, Digest, Round
from ._native import Call
from ._texts import as_number, c_path, c_text, params_text
from ._ticket import Ticket
from ._unique import Unique

if TYPE_CHECKING:
    from types import TracebackType

    # These import numpy.
    from ._types import Key, Keys, Names, Outs, Param, Params, Path, RowIds, Setting, Update, Values

# The data calls for tickets.
_PUSH, _PULL = Call("push"), Call("pull")
_PUSHPULL, _BROADCAST = Call("pushpull"), Call("broadcast")
_PUSH_ROWS, _PULL_ROWS = Call("push_rows"), Call("pull_rows")
_CPU = 1  # A device type of DLPack.
_CLIP_FAIL = 1  # KV_CLIP_FAIL
_ROLES = {0: "worker", 1: "server", 2: "scheduler"}
_ErrorType = type[BaseException]  # KVStore has a `type` of its own.


class KeyInfo(NamedTuple):
    """The dtype, by name, and the shape that a key was initialised with."""

    dtype: str
    shape: tuple[int, ...]


class KeyDigest(NamedTuple):
    """The number of a key's round, and digests of its value and of its optimizer's state."""

    round: int
    value: int
    state: int


class KeyRound(NamedTuple):
    """A key's last round: its number, how many workers took part, and the sum of their weights."""

    round: int
    contributors: int
    total_weight: float


class Commit(enum.IntEnum):
    """How commit() has ended a transaction."""

    KEPT = 0
    """Its pushes are kept."""
    EXCEEDED = 1
    """The norm of its gradients is above that of set_clipping(), and its pushes are taken back."""
    SKIPPED = 2
    """The norm of its gradients is not finite, and its pushes are taken back."""


class LastNorm(NamedTuple):
    """The norm of the last push that was measured, and how many pushes were skipped."""

    norm: float
    skips: int


@_native.with_data_calls
class KVStore(Collectives, Unique):
    """A store of arrays under keys; `kvstore.create()` makes one.

    A key is an integer from 0 to 2**63-1 or a str. Where a method takes a key with an array, it
    also takes

    - a key with a list of arrays, one for each device: pushed ones are added up, pulled ones are
      all filled;
    - a mapping of keys to arrays, or to lists of arrays, in place of both:
      `init(model.state_dict())`; a pull takes it as `out`;
    - a list of keys with a list of as many arrays, or of lists of arrays. One array, or one list,
      may stand there several times.

    An array is a numpy array (any strides, also read-only ones) or any object with `__dlpack__`,
    such as a PyTorch tensor (also one that requires a gradient); its memory is used as it is. A
    value, not an out, may also be a number or a list of numbers, which numpy makes an array of.

    Arrays in the memory of a CUDA device come by `__dlpack__` or `__cuda_array_interface__`. A call
    is queued on the current stream of their package, and returns before the GPU is done if all its
    arrays are there; docs/use/gpu.md has the rules.

    Methods may be called from any number of threads. They release the GIL. A store is not copied,
    pickled or handed to another process: `TypeError` says so.
    """

    _instead = (
        "it belongs to the process that created it; call kvstore.create() in each process, and "
        "hand the store itself to threads"
    )

    def __init__(self, type: str = "local", **options: Setting) -> None:
        if not isinstance(type, str):
            raise TypeError(f"the type of a store is a str, not {type.__class__.__name__}")
        self._begin(Handle(creation(type, options)))

    def _begin(self, handle: Handle) -> None:
        self._handle: Optional[Handle] = handle
        name = c_char_p()
        check(library.kv_type(handle.pointer, byref(name)))
        self._type = (name.value or b"").decode()

    def _open(self) -> Handle:
        handle = self._handle
        if handle is None:
            raise ClosedError("the store is closed")
        run_postponed()
        return handle

    # Data. The methods without a body are native: `with_data_calls` replaces them.

    @overload
    def init(self, key: Keys, value: Values) -> None: ...
    @overload
    def init(self, key: Mapping[Any, Values]) -> None: ...
    def init(self, key: Any, value: Any = None) -> None:
        """Stores the first value of each key; it is copied, and fixes the key's dtype and shape.

        >>> kv.init(3, np.ones((2, 3), np.float32))
        >>> kv.init(["weight", "bias"], [weight, bias])
        >>> kv.init(model.state_dict())
        """

    @overload
    def push(self, key: Keys, value: Values, priority: int = 0) -> None: ...
    @overload
    def push(
        self, key: Mapping[Any, Values], value: None = None, priority: int = 0
    ) -> None: ...
    def push(self, key: Any, value: Any = None, priority: int = 0) -> None:
        """Adds up the values of each key and merges the sum into what is stored.

        The sum replaces the stored array, or goes through the optimizer or the updater. Values are
        added in the order of the call. Keys are processed in ascending order of integers, then
        names in order of their init.

        >>> kv.push(3, gradient)
        >>> kv.push(3, [gradient_of_device_0, gradient_of_device_1])
        >>> kv.push([5, 7], [[a, b], [c, d]])
        >>> kv.push({name: each.grad for name, each in model.named_parameters()})
        """

    @overload
    def push_async(self, key: Keys, value: Values, priority: int = 0) -> Ticket: ...
    @overload
    def push_async(
        self, key: Mapping[Any, Values], value: None = None, priority: int = 0
    ) -> Ticket: ...
    def push_async(self, key: Any, value: Any = None, priority: int = 0) -> Ticket:
        """Starts a push in the background. Larger `priority` runs earlier among those that wait."""
        return Ticket(_PUSH.prepare(self, key, value), priority)

    @overload
    def pull(self, key: Keys, out: Outs, priority: int = 0) -> None: ...
    @overload
    def pull(
        self, key: None = None, *, out: Mapping[Any, Outs], priority: int = 0
    ) -> None: ...
    def pull(self, key: Any = None, out: Any = None, priority: int = 0) -> None:
        """Copies what is stored under each key into its out, or into each of its outs.

        Sees every push that this thread made before. An out of another float dtype is converted.

        >>> kv.pull(3, out=a)
        >>> kv.pull([5, 7], out=[a, b])
        >>> kv.pull(out=model.state_dict())
        """

    @overload
    def pull_async(self, key: Keys, out: Outs, priority: int = 0) -> Ticket: ...
    @overload
    def pull_async(
        self, key: None = None, *, out: Mapping[Any, Outs], priority: int = 0
    ) -> Ticket: ...
    def pull_async(self, key: Any = None, out: Any = None, priority: int = 0) -> Ticket:
        """Starts a pull in the background; the outs are valid once the ticket is done."""
        return Ticket(_PULL.prepare(self, key, out), priority)

    @overload
    def pushpull(self, key: Keys, value: Outs, out: None = None, priority: int = 0) -> None: ...
    @overload
    def pushpull(self, key: Keys, value: Values, out: Outs, priority: int = 0) -> None: ...
    @overload
    def pushpull(
        self,
        key: Mapping[Any, Values],
        value: None = None,
        out: Optional[Mapping[Any, Outs]] = None,
        priority: int = 0,
    ) -> None: ...
    def pushpull(self, key: Any, value: Any = None, out: Any = None, priority: int = 0) -> None:
        """Pushes, then pulls, in one operation; without `out` back into the values.

        >>> kv.pushpull("weight", gradient, out=weight)
        >>> kv.pushpull(gradients_by_name, out=weights_by_name)
        """

    @overload
    def pushpull_async(
        self, key: Keys, value: Outs, out: None = None, priority: int = 0
    ) -> Ticket: ...
    @overload
    def pushpull_async(self, key: Keys, value: Values, out: Outs, priority: int = 0) -> Ticket: ...
    @overload
    def pushpull_async(
        self,
        key: Mapping[Any, Values],
        value: None = None,
        out: Optional[Mapping[Any, Outs]] = None,
        priority: int = 0,
    ) -> Ticket: ...
    def pushpull_async(
        self, key: Any, value: Any = None, out: Any = None, priority: int = 0
    ) -> Ticket:
        """Starts a push and pull in the background."""
        return Ticket(_PUSHPULL.prepare(self, key, value, out), priority)

    @overload
    def bind(self, key: Keys, value: Values, out: Optional[Outs] = None) -> Bound: ...
    @overload
    def bind(self, key: Keys, value: None = None, *, out: Outs) -> Bound: ...
    @overload
    def bind(
        self,
        key: Mapping[Any, Values],
        value: None = None,
        out: Optional[Mapping[Any, Outs]] = None,
    ) -> Bound: ...
    @overload
    def bind(
        self, key: None = None, value: None = None, *, out: Mapping[Any, Outs]
    ) -> Bound: ...
    def bind(self, key: Any = None, value: Any = None, out: Any = None) -> Bound:
        """Checks keys, values and outs once, for pushes and pulls that repeat.

        Each later call costs little beside the bytes. Without `value` there are pulls only, without
        `out` pushes only. Values are arrays here, not numbers, and all arrays are in host memory.

        >>> bound = kv.bind(["weight", "bias"], gradients, weights)
        >>> bound.pushpull()
        """
        return Bound(self, key, value, out)

    @overload
    def broadcast(self, key: Keys, value: Values, out: Outs, priority: int = 0) -> None: ...
    @overload
    def broadcast(
        self,
        key: Mapping[Any, Values],
        value: None = None,
        *,
        out: Mapping[Any, Outs],
        priority: int = 0,
    ) -> None: ...
    def broadcast(self, key: Any, value: Any = None, out: Any = None, priority: int = 0) -> None:
        """Initialises, then pulls: init() of the values and pull() into the outs."""

    @overload
    def broadcast_async(
        self, key: Keys, value: Values, out: Outs, priority: int = 0
    ) -> Ticket: ...
    @overload
    def broadcast_async(
        self,
        key: Mapping[Any, Values],
        value: None = None,
        *,
        out: Mapping[Any, Outs],
        priority: int = 0,
    ) -> Ticket: ...
    def broadcast_async(
        self, key: Any, value: Any = None, out: Any = None, priority: int = 0
    ) -> Ticket:
        """Initialises at once, and starts the pull in the background."""
        return Ticket(_BROADCAST.prepare(self, key, value, out), priority)

    def push_rows(self, key: Keys, row_ids: RowIds, rows: Values, priority: int = 0) -> None:
        """Merges values into some rows of a key; a row is what one index of the first axis selects.

        `row_ids` is an array of int64 of any shape, or a list of integers, in any order and also
        repeated; `rows` has the shape of `row_ids`, followed by that of a row. What is pushed to
        one row is added up. Without updater and optimizer exactly these rows are replaced. An
        updater gets the dense sum, and so does an optimizer, unless its option `lazy_update` is
        True: then it changes these rows alone.

        Several keys, or several arrays for a key, as for push(): `row_ids` then has an array for
        each of them.

        >>> kv.push_rows("embedding", [3, 17, 3], gradients_of_three_rows)
        """

    def push_rows_async(
        self, key: Keys, row_ids: RowIds, rows: Values, priority: int = 0
    ) -> Ticket:
        """Starts a push of rows in the background."""
        return Ticket(_PUSH_ROWS.prepare(self, key, row_ids, rows), priority)

    def pull_rows(self, key: Keys, row_ids: RowIds, out: Outs, priority: int = 0) -> None:
        """Copies rows of what is stored into `out`: `out[i]` gets row `row_ids[i]`.

        `row_ids` is as for push_rows(); `out` has its shape, followed by that of a row.

        >>> kv.pull_rows("embedding", [3, 17], out=two_rows)
        """

    def pull_rows_async(self, key: Keys, row_ids: RowIds, out: Outs, priority: int = 0) -> Ticket:
        """Starts a pull of rows in the background; the outs are valid once the ticket is done."""
        return Ticket(_PULL_ROWS.prepare(self, key, row_ids, out), priority)

    def row_sparse_pull(
        self,
        key: Keys,
        out: Optional[Outs] = None,
        priority: int = 0,
        row_ids: Optional[RowIds] = None,
    ) -> None:
        """pull_rows() with the arguments in MXNet's order. Outs are plain arrays of the rows."""
        if out is None or row_ids is None:
            raise InvalidArgumentError("row_sparse_pull: pass out= and row_ids=")
        self.pull_rows(key, row_ids, out, priority)

    def wait_all(self, timeout: Optional[float] = None) -> None:
        """Waits for all operations in the background; raises the first failure not yet told.

        `timeout` is in seconds; None waits for ever.
        """
        handle = self._open()
        handle.waits += 1
        check(wait(lambda ms: library.kv_wait_all(handle.pointer, ms), timeout))

    # Keys.

    def remove(self, key: Keys) -> None:
        """Removes a key, or a list of keys; they may be initialised again, with any shape."""
        handle = self._open()
        numbers = [handle.number_of(each) for each in keys_of(key)]
        keys = (c_uint64 * len(numbers))(*numbers)
        check(library.kv_remove(handle.pointer, keys, len(numbers)))

    def keys(self) -> list[Union[int, str]]:
        """The initialised keys: integers in ascending order, then names in order of their init."""
        handle = self._open()
        room, count = 0, c_size_t(0)
        while True:
            numbers = (c_uint64 * room)()
            status = library.kv_keys(handle.pointer, numbers if room else None, room, byref(count))
            if status not in (Status.OK, Status.BUFFER_TOO_SMALL):
                raise failure_of(status)
            if count.value <= room:
                return [handle.key_of(number) for number in numbers[: count.value]]
            room = count.value

    def key_info(self, key: Key) -> KeyInfo:
        """The dtype and the shape of a key."""
        handle = self._open()
        number = handle.number_of(key)
        dtype, ndim, room = c_uint32(), c_int32(), 0
        while True:
            shape = (c_int64 * room)()
            status = library.kv_key_info(
                handle.pointer, number, byref(dtype), byref(ndim), shape if room else None, room
            )
            if status not in (Status.OK, Status.BUFFER_TOO_SMALL):
                raise failure_of(status)
            if ndim.value <= room:
                return KeyInfo(_dtypes.name_of(dtype.value), tuple(shape[: ndim.value]))
            room = ndim.value

    @overload
    def digest(self, key: Union[int, str]) -> KeyDigest: ...

    @overload
    def digest(self, key: Keys) -> Union[KeyDigest, list[KeyDigest]]: ...

    def digest(self, key: Keys) -> Union[KeyDigest, list[KeyDigest]]:
        """The round of a key, and digests of its value and its state; of a list of keys a list.

        Equal bits have equal digests, whatever servers, slices and threads have made them: to
        compare two runs, compare their digests. A digest is the CRC-64/NVME of the little-endian
        bytes; docs/use/semantics.md has it as a function of ten lines.

        >>> kv.digest(3) == other.digest(3)
        True
        """
        handle = self._open()
        numbers = [handle.number_of(each) for each in keys_of(key)]
        keys, digests = (c_uint64 * len(numbers))(*numbers), (Digest * len(numbers))()
        check(library.kv_digest(handle.pointer, keys, digests, len(numbers)))
        all = [KeyDigest(each.round, each.value, each.state) for each in digests]
        return all if isinstance(key, (list, tuple, range)) else all[0]

    def last_round(self, key: Key) -> KeyRound:
        """The last round of a key, after the pushes of this worker: who took part in it.

        Without weights `total_weight` is 0; see set_weight().
        """
        handle = self._open()
        found = Round(struct_size=ctypes.sizeof(Round))
        check(library.kv_last_round(handle.pointer, handle.number_of(key), byref(found)))
        return KeyRound(found.round, found.contributors, found.total_weight)

    def key_device(self, key: Key) -> str:
        """Where the value of a key is: "cpu", or the number of a GPU as in "cuda:0".

        In a `device` store it is the GPU of the array that has initialised the key; every other
        value is in host memory.
        """
        handle = self._open()
        device = Device()
        check(library.kv_key_device(handle.pointer, handle.number_of(key), byref(device)))
        return "cpu" if device.type == _CPU else f"cuda:{device.id}"

    # How pushes merge.

    def set_optimizer(self, name: str, /, **params: Param) -> None:
        """Merges sums into what is stored by a rule of the library, from the next push on.

        The name is a str such as "sgd" or "adam". Options are numbers, or True or False; one that
        is None counts as not given. docs/use/optimizers.md lists the rules and their options.

        The rule keeps what it must remember of a key, such as its momentum, from the key's first
        push until the key is removed or set_optimizer() or set_updater() is called again.
        set_updater(None) assigns again, as in the beginning. Keys of integers are refused.

        >>> kv.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
        >>> kv.set_optimizer("adam", learning_rate=1e-3, multi_precision=True)
        """
        rule = c_text("the name of an optimizer", name)
        options = c_text("the list of options", params_text(params))
        check(library.kv_set_optimizer(self._open().pointer, rule, options))

    def set_optimizer_for(self, key: Keys, name: str, /, **params: Param) -> None:
        """Gives a key, or each of a list, a rule of its own, from the next push on.

        The name is one of set_optimizer(); or "none": a push replaces what is stored; or "store":
        the keys merge as all others again. They need not be there yet. set_hyperparameter() with
        the key changes an option of its rule.

        >>> kv.set_optimizer_for("embedding.weight", "adagrad", learning_rate=0.1)
        >>> kv.set_optimizer_for(["bn1.num_batches_tracked", "bn1.running_mean"], "none")
        """
        handle = self._open()
        numbers = [handle.number_of(each) for each in keys_of(key)]
        keys = (c_uint64 * len(numbers))(*numbers)
        rule = c_text("the name of an optimizer", name)
        options = c_text("the list of options", params_text(params))
        check(library.kv_set_optimizer_for(handle.pointer, keys, len(numbers), rule, options))

    def set_hyperparameter(
        self, name: str, value: SupportsFloat, key: Optional[Key] = None
    ) -> None:
        """Changes an option of the optimizer, from the next push on; the rule forgets nothing.

        With `key` it changes what the learning rate ("lr_mult") or the weight decay ("wd_mult") of
        this key is multiplied by, or an option of the rule that the key has of its own. The key
        need not be there yet.

        >>> kv.set_hyperparameter("learning_rate", 0.01)
        >>> kv.set_hyperparameter("wd_mult", 0, key="fc1.bias")
        """
        handle = self._open()
        option = c_text("the name of a hyperparameter", name)
        number = as_number(name, value)
        if key is None:
            check(library.kv_set_hyperparameter(handle.pointer, option, number))
        else:
            of = handle.number_of(key)
            check(library.kv_set_key_hyperparameter(handle.pointer, of, option, number))

    def set_weight(self, weight: float) -> None:
        """Gives each push of this worker a weight, such as the number of samples in its batch.

        The sum of a round is divided by the sum of its weights, once, before a rule or an updater
        gets it: push sums over samples, and means over all samples arrive, however many each
        worker has. The weight is 0, or from 2**-100 to 2**100; that of a push belongs to all
        its arrays together. In one round all pushes have a weight, or none has.

        >>> kv.set_weight(len(batch))
        >>> kv.push(3, gradient)  # summed over the samples of the batch
        """
        check(library.kv_set_weight(self._open().pointer, as_number("the weight", weight)))

    def clear_weight(self) -> None:
        """Ends set_weight(): the sums of later pushes are not divided."""
        check(library.kv_clear_weight(self._open().pointer))

    def set_clipping(self, max_norm: SupportsFloat, *, fail: bool = False) -> None:
        """Clips the gradients of each push by the norm of all, as `clip_grad_norm_` of PyTorch.

        The sums of all keys of a call, times `rescale_grad`, have one norm. If it is above
        `max_norm`, all of them are multiplied by `max_norm / (norm + 1e-6)` before the rule or the
        updater gets them. So push all gradients of a model by one call. Keys without a rule are
        neither counted nor scaled. `float("inf")` only measures, 0 ends clipping.

        A push whose norm is not finite changes no key, and last_norm() counts it; with `fail` it
        is an InvalidArgumentError that names a key. Rows and compression are refused.

        In a job all workers make this call, and the sums are those of a round: a push waits for the
        other workers, and one with a ticket is refused, as are `dist_async` and weights.

        >>> kv.set_clipping(1.0)
        >>> kv.pushpull(names, gradients, out=weights)
        >>> kv.last_norm()
        LastNorm(norm=2.5, skips=0)
        """
        number = as_number("max_norm", max_norm)
        check(library.kv_set_clipping(self._open().pointer, number, _CLIP_FAIL if fail else 0))

    def last_norm(self) -> LastNorm:
        """The norm of the last push that was measured, before clipping, and the skipped pushes.

        The norm is NaN before the first. A push with a ticket counts when it has completed; this
        waits for nothing. See set_clipping().
        """
        norm, skips = c_double(), c_uint64()
        check(library.kv_last_norm(self._open().pointer, byref(norm), byref(skips)))
        return LastNorm(norm.value, skips.value)

    def begin(self) -> None:
        """Begins a transaction: rollback() takes back what pushes change, until commit() keeps it.

        It has the pushes of all threads, with tickets or without; other calls see what they change
        at once. The first push of a key in it copies the value and the state of its rule.

        While set_clipping() is on, pushes in a transaction are not scaled: it has one norm, of the
        gradients of all its pushes, and commit() looks at it. So gradients may be pushed as they
        come.

        In a transaction the calls that change how pushes merge are refused, and load(); not
        set_hyperparameter(). A job has none, nor has a store with a codec.

        >>> kv.begin()
        >>> kv.push("w", gradient)
        >>> kv.rollback()
        """
        check(library.kv_begin(self._open().pointer))

    def commit(self) -> Commit:
        """Ends the transaction, and keeps its pushes if Commit.KEPT is returned.

        They are taken back with Commit.EXCEEDED, if their norm is above that of set_clipping():
        push the gradients again, by one call, which scales them; and with Commit.SKIPPED, if their
        norm is not finite.
        """
        outcome = c_int32()
        check(library.kv_commit(self._open().pointer, byref(outcome)))
        return Commit(outcome.value)

    def rollback(self) -> None:
        """Ends the transaction: values and states of rules are what they were before it."""
        check(library.kv_rollback(self._open().pointer))

    def set_compression(self, name: str, /, **params: Param) -> None:
        """Sends each value of every push through a codec, from the next push on.

        The name is a str: "1bit", "2bit", "fp16", "bf16", "int8", "topk", "randomk", or "none".
        What is added up is what arrives of each value; pulls are not compressed. Options are
        numbers, or True or False; one that is None counts as not given. docs/use/compression.md
        lists the codecs and their options.

        What does not arrive is kept, and added to the key's next push, until the key is removed or
        set_compression() is called again. Keys of integers are not compressed.

        >>> kv.set_compression("2bit", threshold=0.5)
        >>> kv.set_compression("topk", ratio=0.05)
        >>> kv.set_compression("none")
        """
        codec = c_text("the name of a codec", name)
        options = c_text("the list of options", params_text(params))
        check(library.kv_set_compression(self._open().pointer, codec, options))

    def set_gradient_compression(self, compression_params: Params) -> None:
        """The same with the name as "type" among the options, as in MXNet.

        >>> kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        """
        params: dict[str, Any] = dict(compression_params)
        if "type" not in params:
            raise InvalidArgumentError('set_gradient_compression: "type" is missing: the codec')
        self.set_compression(params.pop("type"), **params)

    def set_updater(self, updater: Optional[Update]) -> None:
        """Sets the function `updater(key, input, stored)` that merges a sum into what is stored.

        `input` and `stored` are numpy arrays over the library's memory, valid during the call
        only: copy what you want to keep. `input` is read-only; change `stored` in place. Keys of
        bfloat16 and of 8-bit floats arrive as that dtype if the package ml_dtypes is installed,
        else as unsigned integers. `key` is what init() was given. What the function returns is
        ignored.

        Of a key on a GPU they are copies in host memory, or with the option updater_memory=device
        of create() `DeviceArray`s on the GPU, whose work belongs on their stream.

        It runs on the thread that pushes, or for push_async() on one of the library's. An
        exception in it becomes `CallbackError` at the push. It must not use its own store
        (`ReentrantError`), except for key_info(), type, role, rank, num_workers, num_lost and
        abort().
        None assigns again, as in the beginning.

        >>> def update(key, input, stored):
        ...     stored += 2 * input
        >>> kv.set_updater(update)
        """
        if updater is not None and not callable(updater):
            raise TypeError(f"an updater is a function or None, not {type(updater).__name__}")
        self._open().set_updater(updater)

    _set_updater = set_updater

    # Checkpoints.

    def save(self, path: Path) -> None:
        """Writes everything that training goes on with to a file, in the format of safetensors.

        The file has the keys with their values, and the optimizer with its options and state; a
        function of set_updater() is not saved. It takes the place of the old file as a whole,
        whenever the program or the machine stops. Each key is as it was between two pushes; all are
        of one moment if no other thread pushes meanwhile.

        `path` is a str, bytes or a path object. docs/use/checkpoints.md describes the file.

        >>> kv.save("model.safetensors")
        """
        check(library.kv_save(self._open().pointer, c_path(path)))

    def load(self, path: Path, names: Optional[Names] = None) -> None:
        """Takes over what a file of save() has.

        Keys that are there get its values, others are added; keys that the file does not have stay
        as they are. The optimizer of the file takes the place of what is set, and goes on as if it
        had not stopped. A file without one leaves what is set. After an error, such as
        `CorruptError` for a file that is cut off or altered, the store is as it was.

        >>> kv = kvstore.create("local")
        >>> kv.load("model.safetensors")

        A file of another program, or the index of several ("model.safetensors.index.json"), has
        values only: they are taken by the names of the tensors, or by those that `names` gives
        them. That is a function of a tensor's name, or a dict; a tensor for which it gives None, or
        that the dict does not have, is left out. In a job one worker's `names` are asked.

        >>> kv.load("model.safetensors", lambda name: name.removeprefix("model."))
        """
        if names is None:
            check(library.kv_load(self._open().pointer, c_path(path)))
            return
        if isinstance(names, Mapping):
            names = names.get
        elif not callable(names):
            raise TypeError(f"names are a function or a dict, not {type(names).__name__}")
        _callbacks.load_values(self._open().pointer, c_path(path), names)

    # The job. A local store is a job of one worker.

    @property
    def type(self) -> str:
        """The canonical name of the store's type, such as "local"."""
        return self._type

    @property
    def role(self) -> str:
        """The role of this process in the job: "worker", "server" or "scheduler"."""
        number = self._integer(library.kv_role)
        return _ROLES.get(number, str(number))

    @property
    def rank(self) -> int:
        """The number of this process among those of its role, from 0."""
        return self._integer(library.kv_rank)

    @property
    def num_workers(self) -> int:
        """The number of workers in the job."""
        return self._integer(library.kv_num_workers)

    @property
    def num_lost(self) -> int:
        """The number of workers and servers that the job has declared lost, as far as this process
        has been told. 0 in a local store."""
        return self._integer(library.kv_num_lost)

    def _integer(self, function: Callable[..., int]) -> int:
        number = c_int32()
        check(function(self._open().pointer, byref(number)))
        return number.value

    def group(self, name: str, ranks: Iterable[int]) -> KVStore:
        """The store of a group: some of the workers of a job.

        It has keys, rounds, rules, barriers and collective calls of its own, over the processes and
        connections of the job. The workers of these ranks make this call, in any order, and no
        others; it does not wait for the other workers. In the group `rank` is the place among the
        ascending ranks; errors name workers by their rank in the job. Closing the store leaves the
        group, and the others go on without this worker; the end of the job's store ends those of
        its groups.

        >>> evens = kv.group("evens", range(0, kv.num_workers, 2))
        """
        text, given = c_text("the name of a group", name), list(ranks)
        numbers = (c_int32 * len(given))(*(min(max(rank, -1), 2**31 - 1) for rank in given))
        pointer = self._open().pointer

        def create(store: ctypes.c_void_p) -> None:
            check(library.kv_group(pointer, text, numbers, len(given), byref(store)))

        group = KVStore.__new__(KVStore)
        group._begin(Handle(create))
        return group

    def barrier(self, timeout: Optional[float] = None) -> None:
        """Waits until all workers have arrived here. `timeout` is in seconds; None is for ever."""
        milliseconds = -1 if timeout is None else round(1000 * timeout)
        check(library.kv_barrier(self._open().pointer, milliseconds))

    _barrier = barrier

    def done(self) -> None:
        """Says that this worker pushes no more: no other one waits for it from now on.

        It may still pull, and save what there is when the others push no more either.
        """
        check(library.kv_done(self._open().pointer))

    def resume(self, timeout: Optional[float] = None) -> None:
        """Waits until all workers have called it, done() or not. Then none of them is done.

        So a worker with fewer batches calls done() at its end of an epoch, and all call resume()
        before the next one. `timeout` is in seconds; None is for ever. A local store has nothing to
        wait for.
        """
        milliseconds = -1 if timeout is None else round(1000 * timeout)
        check(library.kv_resume(self._open().pointer, milliseconds))

    def serve(self) -> None:
        """Serves as a server or the scheduler until the job ends; `RoleError` on a worker.

        On a server pushes merge here, by the function that set_updater() has set on this store, or
        by the optimizer that the workers set. The function runs on threads of the library.

        Ctrl-C ends it, and so do abort() and close() on another thread, with `ClosedError`: the
        store is aborted then.

        >>> if kv.role == "worker":
        ...     train(kv)
        ... else:
        ...     kv.serve()
        """
        self._open().serve()

    def stats(self) -> dict[str, Any]:
        """Counters and settings of the store."""
        pointer = self._open().pointer
        length = c_size_t(0)
        check(library.kv_stats(pointer, None, 0, byref(length)))
        while True:
            # Counters may grow by a digit between two calls.
            buffer = ctypes.create_string_buffer(length.value + 1)
            status = library.kv_stats(pointer, buffer, len(buffer), byref(length))
            if status != Status.BUFFER_TOO_SMALL:
                check(status)
                import json  # Few programs ask.

                loaded: dict[str, Any] = json.loads(buffer.value)
                return loaded

    # The end.

    def close(self, timeout: Optional[float] = None) -> None:
        """Finishes what is pending and closes the store; closing it again does nothing.

        Raises the first failure of an operation that nobody waited for; the store is closed then.
        After `kvstore.TimeoutError` it is still open. `timeout` is in seconds; None is for ever.
        A serve() at work on another thread is aborted.
        """
        handle = self._handle
        if handle is None:
            return
        run_postponed()
        handle.end_serving()
        handle.waits += 1
        status = wait(lambda ms: library.kv_close(handle.pointer, ms), timeout)
        failure = None if status == Status.OK else failure_of(status)
        if status not in (Status.TIMEOUT, Status.REENTRANT):
            self._handle = None
        if failure is not None:
            raise failure

    def abort(self) -> None:
        """Fails everything that is pending, at once, and closes the store. Never waits."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.waits += 1
            library.kv_abort(handle.pointer)

    def __enter__(self) -> KVStore:
        self._open()
        return self

    def __exit__(
        self,
        kind: Optional[_ErrorType],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Closes the store; aborts it if the block has raised an exception."""
        if kind is None:
            self.close()
        else:
            self.abort()

    async def __aenter__(self) -> KVStore:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: Optional[_ErrorType],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Closes the store in another thread; aborts it if the block has raised an exception."""
        import asyncio  # Takes half as long to import as all the rest.

        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def __repr__(self) -> str:
        state = "" if self._handle is not None else " (closed)"
        return f"<kvstore.KVStore {self._type!r}{state}>"


def capable(feature: str) -> bool:
    """Whether the build of the library has a feature.

    Names are "optimizer", "updater", "compression", "rows", "tickets", "checkpoint", "digests",
    "sum_order", "weights", "clipping", "transactions", "dist", "tls", "shm", "ucx", "cuda". False
    for others.
    """
    return bool(library.kv_capable(feature.encode()))


def create(type: str = "local", **options: Setting) -> KVStore:
    """Creates a store.

    Types, in any case: "local" (aliases "local_update_cpu", "local_allreduce_cpu") and "device"
    (alias "local_allreduce_device") live in this process. "dist_sync" (alias "dist"), "dist_async",
    "dist_device_sync" and "dist_device_async" are one job of many processes; the call returns when
    the whole job is there. Options: `threads` that may work on one operation,
    `isa` ("auto", "scalar", "avx2", "avx512", "neon"), `timeout_ms` of a call that waits,
    `updater_undo` (True restores a stored value when the updater fails). docs/use/config.md lists
    them all, with those of the distributed types.

    >>> kv = kvstore.create("local", threads=4)
    """
    return KVStore(type, **options)
