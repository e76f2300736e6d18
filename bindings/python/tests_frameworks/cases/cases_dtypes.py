"""Dtypes of PyTorch beside the usual floats, and buffers of a state_dict."""

import pytest
import torch

import kvstore
import kvstore.torch as kt

UNSIGNED = [name for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
OPAQUE = ["bool", "complex64", "complex128"] + [
    name
    for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
    if hasattr(torch, f"float8_{name}")
]


def of_bytes(name, seed):
    """Three elements of any bits."""
    name = name if hasattr(torch, name) else f"float8_{name}"
    dtype, random = getattr(torch, name), torch.Generator().manual_seed(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    bits = torch.randint(0, 256, (3 * size,), dtype=torch.uint8, generator=random)
    return bits > 127 if name == "bool" else bits.view(dtype)


def bits_of(tensor):
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor.view(torch.uint8)


def same(a, b):
    return a.dtype == b.dtype and torch.equal(bits_of(a), bits_of(b))


def case_every_bit_of_the_lowest_rank_comes_back():
    kv = kt._job.job().store
    for name in OPAQUE + UNSIGNED + ["int16"]:
        kv.init(f"bits {name}", of_bytes(name, kt.rank()))
        out = torch.zeros_like(of_bytes(name, 0))
        kv.pull(f"bits {name}", out=out)
        assert same(out, of_bytes(name, 0)), name


def case_a_push_replaces_or_is_refused_on_every_rank():
    kv = kt._job.job().store
    for name in OPAQUE:
        key, value = f"pushed {name}", of_bytes(name, 9)
        kv.init(key, of_bytes(name, 0))
        if kt.size() == 1:
            kv.push(key, value)
        else:
            with pytest.raises(kvstore.UnsupportedError, match=rf'"{key}".*not added'):
                kv.push(key, value)
        out = torch.zeros_like(value)
        kv.pull(key, out=out)
        assert same(out, value if kt.size() == 1 else of_bytes(name, 0))


def case_unsigned_integers_are_added():
    for name in UNSIGNED:
        values = [of_bytes(name, rank).view(getattr(torch, name[1:])) for rank in range(kt.size())]
        result = kt.allreduce(values[kt.rank()].view(getattr(torch, name)), "sum")
        wanted = sum(values[1:], values[0].clone())
        assert same(result, wanted.view(getattr(torch, name)))


def case_buffers_of_a_model_are_stored_beside_its_weights():
    def model(on):
        made = torch.nn.BatchNorm1d(3)
        made.register_buffer("mask", torch.tensor([on, False, on]))
        made.register_buffer("scale", of_bytes("e4m3fn" if "e4m3fn" in OPAQUE else "bool", int(on)))
        return made

    kv = kt._job.job().store
    kv.init({f"model.{name}": each for name, each in model(True).state_dict().items()})
    other = model(False)
    kv.pull(out={f"model.{name}": each for name, each in other.state_dict().items()})
    for name, each in model(True).state_dict().items():
        assert same(other.state_dict()[name].reshape(-1), each.reshape(-1)), name


def case_conjugated_views_are_refused():
    """Their memory has other numbers than the tensor."""
    kv, value = kt._job.job().store, torch.complex(torch.ones(3), torch.arange(3.0))
    for view in (value.conj(), value[None].conj().T):
        with pytest.raises(kvstore.InvalidArgumentError, match=r"resolve_conj\(\)"):
            kv.init("conjugated", view)
    kv.init("conjugated", value.conj().resolve_conj())
    with pytest.raises(kvstore.InvalidArgumentError, match=r"resolve_conj\(\)"):
        kv.pull("conjugated", out=value.conj())
    kv.pull("conjugated", out=value)
    assert torch.equal(value.imag, -torch.arange(3.0))


def case_negated_views_are_refused():
    """Their memory has the numbers with the other sign."""
    kv, value = kt._job.job().store, torch.complex(torch.ones(3), torch.arange(3.0))
    for part in value, value[None].T, value[1], value[:1]:
        view = part.conj().imag
        assert view.is_neg()
        with pytest.raises(kvstore.InvalidArgumentError, match=r"resolve_neg\(\)"):
            kv.init("negated", view)
    kv.init("negated", value.conj().imag.resolve_neg())
    with pytest.raises(kvstore.InvalidArgumentError, match=r"resolve_neg\(\)"):
        kv.pull("negated", out=value.conj().imag)
    out = torch.zeros(3)
    kv.pull("negated", out=out)
    assert torch.equal(out, -torch.arange(3.0))
    with pytest.raises(kvstore.InvalidArgumentError, match=r"resolve_neg\(\)"):
        kv.bind("negated", value.conj().imag)


def case_tensors_without_memory_are_refused_with_their_key():
    kv = kt._job.job().store
    for tensor in torch.zeros(3, device="meta"), torch.zeros(3, device="meta") > 0:
        refusal = rf"init: key 'a.weight': a tensor of {tensor.dtype} on meta cannot be taken: "
        with pytest.raises(TypeError, match=refusal) as caught:
            kv.init({"a.weight": tensor})
        assert "\n" not in str(caught.value)
