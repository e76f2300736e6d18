"""`torch.distributed.init_process_group("kv")`: a process group on the store's collective calls."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work  # Older versions export it nowhere else.

import kvstore
from kvstore import KVStore, Ticket

from ._collectives import SUMMED
from ._job import Job, begin_job, has_job, job, shutdown
from ._rendezvous import Rendezvous

NAME = "kv"
_CPU = torch.device("cpu")
_NO_TIME = timedelta(0)
# A call of the store: its name and its arguments.
_Call = tuple[Any, ...]
# Tensors to be filled, and contiguous ones that the library fills in their place.
_Copies = list[tuple[torch.Tensor, torch.Tensor]]

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "mean",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
}
# Of bytes that are 0 or 1.
_OPS_OF_BOOL = {
    dist.ReduceOp.SUM: "max",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BOR: "max",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.BAND: "min",
    dist.ReduceOp.PRODUCT: "min",
}
# In older releases, such as 2.1, C++ holds a work without its Python half, and waits for ever then.
_FORGETS_WORKS = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6)
_MOST_UNWAITED = 4096
# Those that were not shut down: destroy_process_group() of older releases makes no call.
_open_groups: list[KvProcessGroup] = []
_GLOO = 'make a second group for it: torch.distributed.new_group(backend="gloo")'


class KvWork(Work):
    """A call of a process group; without tickets it has ended well."""

    def __init__(
        self,
        result: list[torch.Tensor],
        tickets: Sequence[Ticket] = (),
        copies: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
        limit: Optional[Limit] = None,
        works: Sequence[KvWork] = (),
    ) -> None:
        super().__init__()
        self._result, self._tickets, self._copies = result, tickets, copies
        self._limit, self._works = limit, works
        self._future: Optional[torch.futures.Future[list[torch.Tensor]]] = None
        self._lock = threading.RLock()
        self.was_waited_for = False

    def wait(self, timeout: timedelta = _NO_TIME) -> bool:
        """Waits for the end, and raises what the call failed with.

        After a `timeout` of its own the call goes on; after that of the group it has failed.
        """
        try:
            self._wait_for_tickets(timeout)
        except kvstore.ExpiredError as error:
            # As from a call without `async_op`.
            raise kvstore.TimeoutError(str(error)) from None
        self._copy_back()
        self.was_waited_for = True
        return True

    def _wait_for_tickets(self, timeout: timedelta) -> None:
        if timeout > _NO_TIME:
            deadline = time.monotonic() + timeout.total_seconds()
            for ticket in self._tickets:
                ticket.wait(max(0.0, deadline - time.monotonic()))
        elif self._limit is not None:
            self._limit.wait(self._tickets)
        else:
            for ticket in self._tickets:
                ticket.wait()

    def _copy_back(self) -> None:
        for work in self._works:
            work._copy_back()
        if not self._copies:
            return
        with self._lock, torch.no_grad():
            for tensor, filled in self._copies:
                tensor.copy_(filled)
            self._copies = ()

    def is_completed(self) -> bool:
        """Whether the call has ended, well or not."""
        return all(ticket.done() for ticket in self._tickets)

    def exception(self) -> Optional[BaseException]:
        """What the call failed with, or None, also while it is under way."""
        if self.is_completed():
            try:
                self.wait()
            except Exception as error:
                return error
        return None

    def is_success(self) -> bool:
        """Whether the call has ended well."""
        return self.is_completed() and self.exception() is None

    def result(self) -> list[torch.Tensor]:
        """The tensors that the call fills."""
        return self._result

    def synchronize(self) -> None:
        """As wait(): tensors in host memory have no stream."""
        self.wait()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors that the call fills; a thread of the library completes it.

        What the call failed with is a RuntimeError there.
        """
        with self._lock:
            if self._future is None:
                ended: torch.futures.Future[None] = torch.futures.Future()
                # C++ takes the exception of a callback for a failure, not that of set_exception().
                self._future = ended.then(lambda _: self.wait() and self._result)
                self._complete_behind(0, ended)
            return self._future

    def _complete_behind(self, number: int, ended: torch.futures.Future[None]) -> None:
        """Completes a future as soon as the tickets from this one on have ended."""
        if number == len(self._tickets):
            ended.set_result(None)
        else:
            follow = partial(self._complete_behind, number + 1, ended)
            self._tickets[number].add_done_callback(lambda _: follow())


class Limit:
    """A timeout that is shorter than that of the store."""

    def __init__(self, group: str, call: str, seconds: float) -> None:
        self._what = f"{call}: not done within {seconds:g} s, the timeout of process group {group}"
        self._deadline = time.monotonic() + seconds

    def wait(self, tickets: Sequence[Ticket]) -> None:
        """Waits for calls, and gives up what has not ended in time."""
        for ticket in tickets:
            try:
                ticket.wait(max(0.0, self._deadline - time.monotonic()))
            except kvstore.TimeoutError:
                for each in tickets:
                    each.cancel()
                raise kvstore.TimeoutError(f"{self._what}; not all of its ranks call it") from None


class KvProcessGroup(dist.ProcessGroup):
    """The process group of the back end "kv", for tensors in host memory.

    PyTorch calls its methods by these names, from Python and from C++. Results are there when
    wait() of the returned work returns. Reductions are added by rank and rounded once: the same
    bits each time.
    """

    # What torch.distributed asks a back end, which is the group itself here.
    supports_splitting = supports_coalescing = supports_shrinking = False
    _supports_time_estimate = False

    def __init__(self, store: KVStore, options: Any, of: Job, begun: bool) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._store, self._job, self._has_begun_job = store, of, begun
        self._rank, self._size = options.group_rank, options.group_size
        self._name, self._description = str(options.group_id), "undefined"
        self._seconds_of_store = of.timeout_s
        self._timeout = options.timeout
        self._coalesced: Optional[list[KvWork]] = None
        # Works that may be dropped by their caller and go on, as with other back ends.
        self._pending: deque[KvWork] = deque()
        self._unwaited: deque[KvWork] = deque(maxlen=_MOST_UNWAITED)
        _open_groups.append(self)

    # Names and ends.

    def getBackendName(self) -> str:  # noqa: N802
        """What torch.distributed.get_backend() says."""
        return NAME

    def getGroupName(self) -> str:  # noqa: N802
        """The name that torch.distributed has given."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Sets it."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """The description that the user has given."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Sets it."""
        self._description = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        # Without one no flight recorder is attached, which needs a back end in C++.
        return [_CPU] if self in dist.distributed_c10d._world.pg_map else []

    def _get_backend(self, device: torch.device) -> KvProcessGroup:
        if device.type != "cpu":
            raise kvstore.UnsupportedError(f"{NAME}: no group for {device}: {_on_device(device)}")
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later calls; a longer one than the store's has no effect."""
        self._timeout = timeout

    def shutdown(self) -> None:
        """Finishes what is pending and closes what this group has opened."""
        if self not in _open_groups:
            return
        _open_groups.remove(self)
        seconds = self._timeout.total_seconds()
        while self._pending:
            # Its work tells a failure.
            with suppress(Exception):
                self._pending.popleft().wait()
        if self._has_begun_job:
            shutdown(seconds)
        elif self._store is not self._job.store:
            self._job.leave(self._store, seconds)

    def abort(self) -> None:
        """Fails what is pending, at once."""
        if self._has_begun_job:
            self._job.abort()
        elif self._store is not self._job.store:
            self._store.abort()

    # Reductions.

    def allreduce(self, tensors: Any, opts: Any = None) -> KvWork:
        """Reduces a tensor of all ranks, in place."""
        tensor = self._only(tensors, "allreduce")
        call, copies = _reduction("allreduce", tensor, opts)
        return self._run(opts, [call], tensors, copies)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> KvWork:
        """Reduces several tensors, which are under way at once."""
        calls, copies = [], []
        for tensor in tensors:
            call, each = _reduction("allreduce", self._checked(tensor, "allreduce"), opts)
            calls.append(call)
            copies += each
        return self._run(opts, calls, tensors, copies)

    def reduce(self, tensors: Any, opts: Any) -> KvWork:
        """Reduces a tensor of all ranks into that of one; those of other ranks stay as they are."""
        tensor = self._only(tensors, "reduce")
        (name, values, _, op), copies = _reduction("reduce", tensor, opts)
        copies = copies if opts.rootRank == self._rank else []
        return self._run(opts, [(name, values, opts.rootRank, None, op)], tensors, copies)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> KvWork:
        """Reduces a list of tensors; each rank gets the sum of its place."""
        out, values = self._only(output_tensors, "reduce_scatter"), input_tensors[0]
        self._check_count("reduce_scatter", values)
        op = _op("reduce_scatter", out, opts)
        values = [_numbers(self._checked(each, "reduce_scatter")) for each in values]
        return self._run(opts, [("reduce_scatter", values, _numbers(out), op)], output_tensors)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> KvWork:
        """The same with the tensors of the list in one."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> KvWork:
        """Several of them, which are under way at once."""
        calls = []
        for out, value in zip(outputs, inputs):
            op = _op("reduce_scatter", self._checked(out, "reduce_scatter"), opts)
            out = _numbers(out)
            value = _numbers(self._checked(value, "reduce_scatter").contiguous())
            calls.append(("reduce_scatter", self._parts("reduce_scatter", value, out), out, op))
        return self._run(opts, calls, outputs)

    # Moves.

    def broadcast(self, tensors: Any, opts: Any = None) -> KvWork:
        """Gives the tensor of one rank to all, in place."""
        tensor = self._only(tensors, "broadcast")
        return self._run(opts, [("broadcast_from", tensor, opts.rootRank if opts else 0)], tensors)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> KvWork:
        """Gives the tensors of all ranks to all; they may differ in length."""
        value, outs = self._only(input_tensors, "allgather"), output_tensors[0]
        self._check_count("allgather", outs)
        for out in outs:
            self._checked(out, "allgather")
        return self._run(opts, [("allgather", value, outs)], outs)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> KvWork:
        """The same into one tensor."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> KvWork:
        """Several of them, which are under way at once."""
        calls: list[_Call] = []
        copies: _Copies = []
        for out, value in zip(outputs, inputs):
            flat = self._flat(out, "allgather", copies)
            value = self._checked(value, "allgather")
            calls.append(("allgather", value, self._parts("allgather", flat, value)))
        return self._run(opts, calls, outputs, copies)

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> KvWork:
        """Several tensors of all ranks: an output has a list for each rank."""
        self._check_count("allgather_coalesced", output_lists)
        calls = [
            ("allgather", self._checked(value, "allgather_coalesced"), list(outs))
            for value, outs in zip(input_list, zip(*output_lists))
        ]
        return self._run(opts, calls, [out for outs in output_lists for out in outs])

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any) -> KvWork:
        """Gives the tensors of all ranks to one."""
        value, outs = self._only(input_tensors, "gather"), None
        if opts.rootRank == self._rank:
            outs = [self._checked(out, "gather") for out in output_tensors[0]]
            self._check_count("gather", outs)
        return self._run(opts, [("gather", value, opts.rootRank, outs)], outs or [])

    def gather_single(self, output: Any, input: Any, opts: Any) -> KvWork:
        """The same into one tensor."""
        copies: _Copies = []
        value, outs = self._checked(input, "gather"), None
        if opts.rootRank == self._rank:
            outs = self._parts("gather", self._flat(output, "gather", copies), value)
        return self._run(opts, [("gather", value, opts.rootRank, outs)], [output], copies)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any) -> KvWork:
        """Gives each rank one of the tensors of a rank."""
        out, values = self._only(output_tensors, "scatter"), None
        if opts.rootRank == self._rank:
            values = [self._checked(each, "scatter") for each in input_tensors[0]]
            self._check_count("scatter", values)
        return self._run(opts, [("scatter", out, opts.rootRank, values)], output_tensors)

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> KvWork:
        """Gives each rank a tensor of every rank; they may differ in length."""
        for tensors in (output_tensors, input_tensors):
            self._check_count("all_to_all", tensors)
            for tensor in tensors:
                self._checked(tensor, "all_to_all")
        return self._run(opts, [("all_to_all", input_tensors, output_tensors)], output_tensors)

    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> KvWork:
        """The same with rows of one tensor, by numbers of rows or in equal parts."""
        outs, values = self._rows(output, output_splits), self._rows(input, input_splits)
        return self._run(opts, [("all_to_all", values, outs)], [output])

    def barrier(self, opts: Any = None) -> KvWork:
        """Waits until all ranks have called it, and for the calls of this rank before it."""
        works = []
        for work in self._pending:
            if work.is_completed():
                work._copy_back()
            else:
                works.append(work)
        works.append(self._run(opts, [("allreduce", torch.zeros(1, dtype=torch.uint8))], []))
        return _joined(works)

    # Names of older versions of PyTorch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    gather_into_tensor = gather_single
    alltoall_base = all_to_all_single

    # Refused.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> KvWork:
        """Refused: all ranks take part in each call."""
        raise _refused("send")

    def recv(self, tensors: Any, src: int, tag: int = 0) -> KvWork:
        """Refused: all ranks take part in each call."""
        raise _refused("recv")

    def recv_anysource(self, tensors: Any, tag: int = 0) -> KvWork:
        """Refused: all ranks take part in each call."""
        raise _refused("recv_anysource")

    recvAnysource = recv_anysource  # noqa: N815

    def monitored_barrier(self, *arguments: Any, **options: Any) -> None:
        """Refused: barrier() names the ranks that do not come."""
        raise kvstore.UnsupportedError(
            f"{NAME}: no monitored_barrier; barrier() names the rank that does not call it"
        )

    # Several calls as one work.

    def start_coalescing(self, device: torch.device) -> None:
        """Begins a list of calls that end_coalescing() gives one work for."""
        self._coalesced = []

    def end_coalescing(self, device: torch.device) -> KvWork:
        """A work that has ended when all calls since start_coalescing() have."""
        works, self._coalesced = self._coalesced or [], None
        return _joined(works)

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # How calls run.

    def _run(
        self,
        opts: Any,
        calls: list[_Call],
        result: list[torch.Tensor],
        copies: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    ) -> KvWork:
        """Makes calls of the store: of one without `async_op` the result is there at the return."""
        limit = self._limit(opts, calls)
        if (
            limit is None
            and len(calls) == 1
            and self._coalesced is None
            and not getattr(opts, "asyncOp", True)
        ):
            name, *arguments = calls[0]
            getattr(self._store, name)(*arguments)
            work = KvWork(result, (), copies)
            work._copy_back()
            return work
        while self._pending and self._pending[0].is_completed():
            ended = self._pending.popleft()
            ended._copy_back()
            self._keep(ended)
        tickets = [getattr(self._store, f"{name}_async")(*rest) for name, *rest in calls]
        work = KvWork(result, tickets, copies, limit)
        if self._coalesced is not None:
            self._coalesced.append(work)
        self._pending.append(work)
        return work

    def _keep(self, ended: KvWork) -> None:
        """Keeps a call that has ended for C++ that waits for it later, where PyTorch does not."""
        if _FORGETS_WORKS:
            while self._unwaited and self._unwaited[0].was_waited_for:
                self._unwaited.popleft()
            self._unwaited.append(ended)

    def _limit(self, opts: Any, calls: list[_Call]) -> Optional[Limit]:
        """The timeout of a call, unless the store's own comes first."""
        given = getattr(opts, "timeout", None)
        timeout = given if given is not None and given > _NO_TIME else self._timeout
        seconds = timeout.total_seconds()
        if seconds >= self._seconds_of_store or not calls:
            return None
        return Limit(self._name, calls[0][0], seconds)

    def _only(self, tensors: Any, call: str) -> torch.Tensor:
        if len(tensors) != 1:
            raise kvstore.InvalidArgumentError(
                f"{NAME}: {call} takes one tensor of a process, not {len(tensors)}"
            )
        return self._checked(tensors[0], call)

    def _checked(self, tensor: torch.Tensor, call: str) -> torch.Tensor:
        if not tensor.is_cpu:
            raise kvstore.UnsupportedError(
                f"{NAME}: {call} of a tensor on {tensor.device}: {_on_device(tensor.device)}"
            )
        if tensor.layout != torch.strided:
            raise kvstore.UnsupportedError(
                f"{NAME}: {call} of a tensor with layout {tensor.layout}: pass its to_dense()"
            )
        return tensor

    def _check_count(self, call: str, tensors: Any) -> None:
        if len(tensors) != self._size:
            raise kvstore.InvalidArgumentError(
                f"{NAME}: {call} takes a tensor for each of {self._size} ranks, not {len(tensors)}"
            )

    def _flat(self, tensor: torch.Tensor, call: str, copies: _Copies) -> torch.Tensor:
        """A contiguous tensor to be filled in the place of another one, or that one."""
        tensor = self._checked(tensor, call)
        if tensor.is_contiguous():
            return tensor
        copies.append((tensor, torch.empty_like(tensor, memory_format=torch.contiguous_format)))
        return copies[-1][1]

    def _parts(self, call: str, whole: torch.Tensor, part: torch.Tensor) -> list[torch.Tensor]:
        """A tensor as one part for each rank."""
        if whole.numel() != self._size * part.numel():
            raise kvstore.ShapeMismatchError(
                f"{NAME}: {call}: {list(whole.shape)} is not {self._size} times {list(part.shape)}"
            )
        return list(whole.view(self._size, *part.shape).unbind())

    def _rows(self, tensor: torch.Tensor, splits: Any) -> list[torch.Tensor]:
        tensor = self._checked(tensor, "all_to_all_single")
        rows = len(tensor)
        if not splits:
            if rows % self._size:
                raise kvstore.ShapeMismatchError(
                    f"{NAME}: all_to_all_single: {rows} rows are not {self._size} equal parts"
                )
            splits = [rows // self._size] * self._size
        self._check_count("all_to_all_single", splits)
        if sum(splits) != rows:
            raise kvstore.ShapeMismatchError(
                f"{NAME}: all_to_all_single: splits {list(splits)} of a tensor with {rows} rows"
            )
        return list(tensor.split(list(splits)))


def _joined(works: list[KvWork]) -> KvWork:
    """A work that has ended when all of some have."""
    return KvWork(
        [tensor for work in works for tensor in work._result],
        [ticket for work in works for ticket in work._tickets],
        limit=works[-1]._limit if works else None,
        works=works,
    )


def _on_device(device: torch.device) -> str:
    return f'pass a copy in host memory, or use a group with a back end for "{device.type}"'


def _refused(call: str) -> kvstore.KVStoreError:
    return kvstore.UnsupportedError(
        f"{NAME}: no {call}: all ranks of a group take part in each call; {_GLOO}"
    )


def _op(call: str, tensor: torch.Tensor, opts: Any) -> str:
    """The store's name of a reduction."""
    given = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    op = getattr(given, "op", given)
    name = _PERMITTED.get((tensor.dtype, op))
    if name is None:
        what = f"{NAME}: {call} of {tensor.dtype} by {_name_of(op)}"
        raise kvstore.UnsupportedError(f"{what}{_obstacle(tensor.dtype, op)}")
    return name


def _ops_of(dtype: torch.dtype) -> dict[Any, str]:
    return _OPS_OF_BOOL if dtype == torch.bool else _OPS


def _obstacle(dtype: torch.dtype, op: Any) -> str:
    """Why there is no such reduction; empty if there is."""
    ops = _ops_of(dtype)
    name = ops.get(op)
    if name is None:
        return (
            f" is not there: reduce by {', '.join(map(_name_of, ops))}, or gather the "
            f"tensors with all_gather and reduce them yourself"
        )
    if dtype.is_complex:
        return ": they have no order; reduce by SUM or AVG" if name in ("max", "min") else ""
    if dtype not in SUMMED and dtype != torch.bool:
        return " is not there: convert it to float16 or wider"
    if name == "mean" and not dtype.is_floating_point:
        return ": integers have no mean; reduce by SUM and divide"
    return ""


def _name_of(op: Any) -> str:
    return str(op).rpartition(".")[2]


# By dtype and operation: the store's name. Looked up for each call.
_PERMITTED = {
    (dtype, op): name
    for dtype in (*SUMMED, torch.bool, torch.complex32, torch.complex64, torch.complex128)
    for op, name in _ops_of(dtype).items()
    if not _obstacle(dtype, op)
}


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that the store reduces."""
    if tensor.dtype == torch.bool:
        return tensor.view(torch.uint8)
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _reduction(name: str, tensor: torch.Tensor, opts: Any) -> tuple[_Call, _Copies]:
    """A call that reduces in place, and what is to be copied back behind it."""
    op = _op(name, tensor, opts)
    if tensor.is_contiguous():
        return (name, _numbers(tensor), None, op), []
    copy = tensor.contiguous()
    return (name, _numbers(copy), None, op), [(tensor, copy)]


# How groups are made.


def _create(options: Any, _: Any = None) -> KvProcessGroup:
    """What torch.distributed calls on the ranks of a group."""
    ranks = list(options.global_ranks_in_group)
    rank, size = options.group_rank, options.group_size
    if ranks:
        rank, size = dist.get_rank(), dist.get_world_size()
    begun = False
    if not ranks:
        # A new group of all ranks: PyTorch has destroyed the others.
        for group in reversed(_open_groups.copy()):
            group.shutdown()
    if len(ranks) in (0, size):
        seconds = options.timeout.total_seconds()
        rendezvous = Rendezvous(seconds, rank, size, options.store)
        begun = begin_job(rendezvous, {"timeout_ms": max(1, round(1000 * seconds))})
    elif not has_job():
        raise kvstore.InvalidArgumentError(
            f"{NAME}: a group of some ranks, {ranks}, before a job of all: call "
            f"kvstore.torch.init() on all ranks first"
        )
    of = job()
    if (of.rank, of.size) != (rank, size):
        raise kvstore.InvalidArgumentError(
            f"{NAME}: init_process_group says rank {rank} of {size}, and this process is worker "
            f"{of.rank} of {of.size} of its job: pass these as rank= and world_size="
        )
    store = _store_of(of, options, ranks) if ranks else of.store
    return KvProcessGroup(store, options, of, begun)


def _store_of(of: Job, options: Any, ranks: list[int]) -> KVStore:
    """The store of some ranks."""
    if len(ranks) == 1:
        return of.enter(kvstore.create("local"))
    return of.enter(of.store.group(str(options.group_id), ranks))


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
