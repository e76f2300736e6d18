"""PyTorch's tensors; runs where PyTorch is installed."""

import numpy as np
import pytest
from support import WAIT_SECONDS, Gate

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
