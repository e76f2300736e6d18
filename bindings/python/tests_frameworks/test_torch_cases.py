"""Cases of kvstore.torch, on real PyTorch, under torchrun with 1, 2 and 4 processes."""

import ast

import pytest
from conftest import HERE

FILES = sorted(path.stem for path in (HERE / "cases").glob("cases_*.py"))


def cases():
    for file in FILES:
        tree = ast.parse((HERE / "cases" / f"{file}.py").read_text())
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        for processes in (1, 2, 4):
            for name in names:
                if name.startswith("case_"):
                    yield pytest.param(file, name, processes, id=f"{file}-{name[5:]}-{processes}")


@pytest.mark.parametrize(("file", "case", "processes"), list(cases()))
def test_case(outcome, file, case, processes):
    pytest.importorskip("torch")
    for rank, raised in enumerate(outcome(file, case, processes)):
        if isinstance(raised, list):
            pytest.skip(raised[0])
        assert raised is None, f"rank {rank}: {raised}"
