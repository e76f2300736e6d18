"""PyTorch's tensors; runs where PyTorch is installed."""

from pathlib import Path

import numpy as np
import pytest
from support import WAIT_SECONDS, Gate

import kvstore

torch = pytest.importorskip("torch")

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(kv, name):
    dtype = getattr(torch, name)
    value = torch.arange(12).reshape(3, 4).to(dtype)
    out = torch.zeros(4, 3, dtype=dtype)
    kv.init(1, value.T)
    assert kv.key_info(1) == (name, (4, 3))
    kv.push(1, [value.T, value.T])
    kv.pull(1, out=out)
    assert torch.equal(out, value.T + value.T)
    assert torch.equal(value, torch.arange(12).reshape(3, 4).to(dtype))


def test_parameters_that_require_a_gradient(kv):
    layer = torch.nn.Linear(3, 2)
    kv.init("w", layer.weight)
    before = layer.weight.detach().clone()
    layer(torch.ones(1, 3)).sum().backward()
    kv.set_updater(lambda key, merged, stored: stored.__isub__(0.5 * merged))
    kv.push("w", layer.weight.grad)
    address = layer.weight.data_ptr()
    kv.pull("w", out=layer.weight)
    assert layer.weight.data_ptr() == address
    assert layer.weight.requires_grad
    assert torch.equal(layer.weight.detach(), before - 0.5)


def test_tensors_and_numpy_arrays_mix(kv):
    kv.init(1, torch.zeros(3))
    kv.push(1, [np.ones(3, np.float32), torch.ones(3), torch.ones(3, dtype=torch.float64)])
    out = torch.zeros(3)
    kv.pull(1, out=[out])
    assert out.tolist() == [3, 3, 3]


def test_tensors_live_as_long_as_the_operation(kv):
    gate = Gate()
    kv.init(1, torch.zeros(1000))
    kv.set_updater(gate)
    tickets = [kv.push_async(1, torch.full((1000,), float(i))) for i in range(50)]
    noise = [torch.full((1000,), -1.0) for _ in range(100)]
    gate.open()
    for ticket in tickets:
        ticket.wait(WAIT_SECONDS)
    out = torch.zeros(1000)
    kv.pull(1, out=out)
    assert out.tolist() == [sum(range(50))] * 1000
    assert len(noise) == 100


SPARSE = {
    "coo": lambda dense: dense.to_sparse(),
    "csr": lambda dense: dense.to_sparse_csr(),
}


@pytest.mark.parametrize("layout", SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_refused_with_the_hint_to_rows(kv, layout):
    sparse = SPARSE[layout](torch.ones(2, 2))
    kv.init(1, torch.zeros(2, 2))
    for call in (
        lambda: kv.push(1, sparse),
        lambda: kv.pull(1, out=sparse),
        lambda: kv.init(2, sparse),
    ):
        with pytest.raises(TypeError, match=r"key [12]: a sparse Tensor .*push_rows\("):
            call()


def rows_of(tensor):
    return tensor.reshape(1, *tensor.shape)


PULLS = {
    "copy_": lambda kv, out: out.data_ptr() and out.detach().copy_(torch.ones_like(out)),
    "pull": lambda kv, out: kv.pull(1, out=out),
    "a list": lambda kv, out: kv.pull([1, 1], out=[[out.clone()], [out]]),
    "pushpull": lambda kv, out: kv.pushpull(1, torch.ones(out.shape), out=out),
    "in place": lambda kv, out: kv.pushpull(1, out),
    "broadcast": lambda kv, out: kv.broadcast(2, torch.ones(out.shape), out=out),
    "a ticket": lambda kv, out: kv.pull_async(1, out=out).wait(WAIT_SECONDS),
    "rows": lambda kv, out: kv.pull_rows(3, [0], out=rows_of(out.detach())),
    "rows by ticket": lambda kv, out: kv.pull_rows_async(3, [0], out=rows_of(out.detach())).wait(),
}


@pytest.mark.parametrize("way", PULLS)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_backward_notices_that_a_saved_tensor_was_pulled_into(kv, way, shape):
    kv.init([1, 3], [torch.ones(shape), torch.ones((2, *shape))])
    weight = torch.nn.Parameter(torch.full(shape, 3.0))
    result = (weight * weight).sum()
    version = weight._version
    PULLS[way](kv, weight)
    assert weight._version > version
    assert weight.requires_grad
    assert weight.is_leaf
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    (weight * weight).sum().backward()
    assert torch.equal(weight.grad, 2 * weight.detach())


def test_a_graph_made_while_a_ticket_fills_an_out_is_void(kv):
    gate = Gate()
    kv.init(1, torch.ones(3))
    kv.set_updater(gate)
    weight = torch.nn.Parameter(torch.zeros(3))
    ticket = kv.pushpull_async(1, torch.ones(3), out=weight)
    result = (weight * weight).sum()
    gate.open()
    ticket.wait(WAIT_SECONDS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_a_refused_call_and_values_leave_graphs_as_they_are(kv):
    kv.init(1, torch.ones(3))
    weight = torch.nn.Parameter(torch.full((3,), 2.0))
    result = (weight * weight).sum()
    kv.push(1, weight)
    kv.push_async(1, weight).wait(WAIT_SECONDS)
    with pytest.raises(KeyError):
        kv.pull(7, out=weight)
    with pytest.raises(ValueError, match="key 1"):
        kv.pull(1, out=[weight, torch.ones(4)])
    result.backward()
    assert weight.grad.tolist() == [4, 4, 4]


def test_tensors_of_inference_are_outs_as_well(kv):
    kv.init(1, torch.ones(3))
    with torch.inference_mode():
        out = torch.zeros(3)
        kv.pull(1, out=out)
    kv.pull(1, out=out)
    assert out.tolist() == [1, 1, 1]


class Tableless(torch.Tensor):
    """Described through `__dlpack__`, as tensors of older versions are."""

    __dlpack_c_exchange_api__ = None


WAYS = {"the table": lambda tensor: tensor, "a capsule": lambda it: it.as_subclass(Tableless)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DTYPES)
def test_each_way_describes_strides_offsets_and_sizes(kv, way, name):
    base = torch.arange(120).reshape(4, 5, 6).to(getattr(torch, name))
    views = [base, base.mT, base[1:, ::2, 2:5], base[2, 3, 4], base[:0], base[0, :1, 5:]]
    for key, view in enumerate(views):
        kv.init(key, WAYS[way](view))
        assert kv.key_info(key) == (name, tuple(view.shape))
        kv.push(key, [WAYS[way](view), view])
        room = torch.zeros(2 * view.numel() + 1, dtype=view.dtype)
        out = room[1::2].reshape(view.shape) if view.dim() == 0 else room[1::2].view(view.shape)
        kv.pull(key, out=WAYS[way](out))
        assert torch.equal(out, view + view)
        assert not room[::2].any()


@pytest.mark.parametrize("way", WAYS)
def test_each_way_counts_a_change_of_each_out(kv, way):
    kv.init([1, 2], [torch.ones(3)] * 2)
    outs = [torch.zeros(3) for _ in range(4)]
    before = [out._version for out in outs]
    lent = [WAYS[way](out) for out in outs]
    kv.pull([1, 2], out=[lent[:3], [lent[3], np.zeros(3, np.float32)]])
    assert [out._version for out in outs] == [version + 1 for version in before]
    kv.pull_async(1, out=lent).wait(WAIT_SECONDS)
    # At the start of an operation and at its end.
    assert [out._version for out in outs] == [version + 3 for version in before]


def test_changes_are_counted_without_a_function_of_pytorch(kv):
    out = torch.nn.Parameter(torch.zeros(3))
    with torch.inference_mode():
        other = torch.zeros(3)
    kvstore._arrays._count_changes([out, other])
    assert out._version == 1
    assert out.is_leaf


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_a_version_that_takes_one_tensor_is_not_given_a_list(monkeypatch, error):
    """PyTorch 2.1 raises the second of them."""

    def increment(tensor):
        raise error("increment_version expect a Tensor as input")

    monkeypatch.setattr(torch._C, "_increment_version", increment)
    assert kvstore._arrays.counter_of_changes() is kvstore._arrays._count_changes


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_may_get_other_memory_while_a_ticket_is_pending(kv, way):
    gate = Gate()
    kv.init(1, torch.zeros(1000))
    kv.set_updater(gate)
    first = kv.push_async(1, torch.ones(1000))
    value = WAYS[way](torch.full((1000,), 2.0))
    second = kv.push_async(1, value)
    value.data = torch.full((1000,), 7.0)
    noise = [torch.full((1000,), -1.0) for _ in range(100)]
    gate.open()
    for ticket in (first, second):
        ticket.wait(WAIT_SECONDS)
    out = torch.zeros(1000)
    kv.pull(1, out=out)
    assert out.tolist() == [3] * 1000
    assert len(noise) == 100


def test_tensors_without_memory_are_refused(kv):
    with pytest.raises(Exception, match="meta"):
        kv.init(1, torch.zeros(3, device="meta"))
    kv.init(1, torch.zeros(3))
    with pytest.raises(kvstore.KVStoreError, match="push: key 1"):
        kv.push(1, torch.zeros(3, dtype=torch.complex64))


def test_the_loop_of_the_page_about_gpus_trains_on_the_cpu_too(monkeypatch, tmp_path):
    """With two replicas in host memory in place of two GPUs."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "use" / "gpu.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    assert "kv.pushpull(names, gradients, out=weights)" in program
    program = program.replace('torch.device("cuda", number)', 'torch.device("cpu")')
    torch.manual_seed(0)
    inputs = torch.randn(60, 8)
    labels = (inputs[:, 0] > 0).long()
    names = {
        "make_model": lambda: torch.nn.Linear(8, 2),
        "loader": [(inputs, labels)] * 40,
    }
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.chdir(tmp_path)
    exec(program, names)
    first, second = names["replicas"]
    for one, other in zip(first.parameters(), second.parameters()):
        assert torch.equal(one, other)
    assert (first(inputs).argmax(1) == labels).float().mean() > 0.9
    assert (tmp_path / "model.safetensors").exists()
