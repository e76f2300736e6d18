"""scripts/supply_chain.py: what it lets pass, what it names, and the bill of materials."""

import copy
import json
import sys
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import supply_chain

RULES = tomllib.loads((ROOT / "deny.toml").read_text())


@pytest.fixture(scope="module")
def found():
    return supply_chain.metadata()


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0", False),
        ("MIT OR GPL-3.0", True),
        ("MIT AND GPL-3.0", False),
        ("MIT/Apache-2.0", True),
        ("GPL-2.0/GPL-3.0", False),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", True),
        ("(MIT OR Apache-2.0) AND GPL-3.0", False),
        ("GPL-3.0 OR MIT AND ISC", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0 WITH LLVM-exception", False),
        ("MIT MIT", False),
    ],
)
def test_licence_expressions_are_read_as_spdx_has_them(expression, allowed):
    assert supply_chain.is_allowed(expression, set(RULES["licenses"]["allow"])) == allowed


def test_nothing_is_wrong_now(found):
    assert list(supply_chain.problems(found, RULES)) == []


def linked(found, name):
    return next(it for it in supply_chain.linked(found) if it["name"] == name)


def test_each_fault_is_named(found):
    faulty = copy.deepcopy(found)
    linked(faulty, "rustls")["license"] = "GPL-3.0"
    linked(faulty, "mio")["source"] = "git+https://example.org/mio"
    linked(faulty, "half")["license"] = None
    rules = copy.deepcopy(RULES)
    rules["bans"]["skip"] = [{"crate": "rustls@0.1.0"}]
    text = "\n".join(supply_chain.problems(faulty, rules))
    for part in (
        "is under 'GPL-3.0', which deny.toml does not allow",
        "comes from git+https://example.org/mio",
        "has no licence expression",
        "signal-hook is linked in versions",
        "deny.toml skips rustls@0.1.0, which is not a second version",
    ):
        assert part in text, text
    assert text.count("\n") == 4, text


def test_an_exception_is_for_no_crate_that_is_linked(found):
    faulty = copy.deepcopy(found)
    linked(faulty, "half")["license"] = "MPL-2.0"
    rules = copy.deepcopy(RULES)
    rules["licenses"]["exceptions"].append({"crate": "half", "allow": ["MPL-2.0"]})
    assert "half" in "".join(supply_chain.problems(faulty, rules))


def reached(found):
    """What the metadata has below the installed packages, which is more: features of the tests too."""
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    seen = {id for id, package in packages.items() if package["name"] in supply_chain.INSTALLED}
    waiting = list(seen)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            is_normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_normal and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    return {(packages[id]["name"], packages[id]["version"]) for id in seen}


def test_the_bill_of_materials_names_what_cargo_links(found, tmp_path):
    supply_chain.sbom(tmp_path / "sbom.json")
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    named = {(each["name"], each["version"]) for each in bill["components"]}
    assert named <= reached(found)
    direct = {"half", "mio", "ring", "rustls", "ndarray", "clap_builder", "ratatui-core", "pyo3"}
    assert direct | set(supply_chain.INSTALLED) <= {name for name, _ in named}
    # Of builds and tests alone.
    assert not {"cbindgen", "serde_derive", "tracing-subscriber"} & {name for name, _ in named}
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    sums = {(each["name"], each["version"]): each.get("checksum") for each in lock}
    for each in bill["components"]:
        known = [hash["content"] for hash in each.get("hashes", [])]
        assert known == [it for it in [sums[each["name"], each["version"]]] if it]
        assert each["purl"] == f"pkg:cargo/{each['name']}@{each['version']}"


def test_the_licences_have_the_texts_of_the_linked_crates(tmp_path):
    supply_chain.licences(tmp_path / "licences.txt")
    text = (tmp_path / "licences.txt").read_text()
    for crate in supply_chain.linked(supply_chain.metadata()):
        name, version = crate["name"], crate["version"]
        assert name.startswith("libkvstore") or f"{name} {version}: " in text
    assert "Permission is hereby granted, free of charge" in text
    assert "Apache License" in text
    assert str(Path.home()) not in text
