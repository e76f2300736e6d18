#!/usr/bin/env python3
"""What is linked into the library and the program kvstore: licences, sources, duplicates, contents.

    supply_chain.py check            compares all crates of Cargo.lock with deny.toml
    supply_chain.py licences FILE    writes the licence texts of the crates that are linked
    supply_chain.py sbom FILE        writes them as a bill of materials (CycloneDX 1.5)

Needs cargo and no network, once the crates are there. `deny.toml` has the form of cargo-deny.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What is installed: their crates are linked.
INSTALLED = ("libkvstore", "libkvstore-cli", "libkvstore-python")
TEXTS = re.compile(r"(licen[cs]e|copying|notice|unlicense)", re.IGNORECASE)


def cargo(*arguments):
    command = ["cargo", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def metadata():
    host = re.search(r"^host: (.*)$", subprocess.check_output(["rustc", "-vV"], text=True), re.M)
    flags = ("--format-version", "1", "--locked", "--filter-platform", host[1])
    return json.loads(cargo("metadata", *flags))


@cache
def linked_names():
    """Name and version of the crates in the installed files: neither tools of the build nor of tests.

    The metadata would have the features that the tests turn on, too.
    """
    options = ("--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "--locked")
    lines = cargo("tree", *options, *(f"-p{name}" for name in INSTALLED)).splitlines()
    words = (line.split() for line in lines if line.strip())
    return sorted({(name, version.removeprefix("v")) for name, version, *_ in words})


def linked(found):
    packages = {(each["name"], each["version"]): each for each in found["packages"]}
    return [packages[name] for name in linked_names()]


def is_allowed(expression, allowed):
    """Whether a licence expression of SPDX can be met by the allowed ones alone."""
    words = re.findall(r"[()]|[^\s()/]+|/", expression)

    def either():
        result = both()
        while words and words[0] in ("OR", "/"):
            words.pop(0)
            result = both() or result
        return result

    def both():
        result = one()
        while words and words[0] == "AND":
            words.pop(0)
            result = one() and result
        return result

    def one():
        word = words.pop(0)
        if word == "(":
            result = either()
            words.pop(0)
            return result
        if words and words[0] == "WITH":
            word = f"{word} WITH {words[1]}"
            del words[:2]
        return word in allowed

    return either() and not words


def own(package):
    return package["source"] is None


def problems(found, rules):
    allowed = set(rules["licenses"]["allow"])
    excepted = {each["crate"]: set(each["allow"]) for each in rules["licenses"]["exceptions"]}
    registries = {f"registry+{each}" for each in rules["sources"]["allow-registry"]}
    is_linked = {package["id"] for package in linked(found)}
    for package in found["packages"]:
        name = f"{package['name']} {package['version']}"
        licence = package["license"]
        may = allowed
        if package["id"] not in is_linked:
            may = allowed | excepted.get(package["name"], set())
        if not licence:
            if not own(package):
                yield f"{name} has no licence expression"
        elif not is_allowed(licence, may):
            yield f"{name} is under {licence!r}, which deny.toml does not allow"
        if not own(package) and package["source"] not in registries:
            yield f"{name} comes from {package['source']}"
    versions = defaultdict(list)
    for package in linked(found):
        versions[package["name"]].append(package["version"])
    skipped = {each["crate"] for each in rules["bans"]["skip"]}
    for name, several in versions.items():
        older = [f"{name}@{version}" for version in several[:-1]]
        if any(each not in skipped for each in older):
            yield f"{name} is linked in versions {', '.join(several)}"
    for each in sorted(skipped):
        name, version = each.split("@")
        if version not in versions[name][:-1]:
            yield f"deny.toml skips {each}, which is not a second version"


def check():
    found = metadata()
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    wrong = list(problems(found, rules))
    for line in wrong:
        print(f"supply chain: {line}", file=sys.stderr)
    if wrong:
        sys.exit(1)
    print(f"{len(found['packages'])} crates, {len(linked(found))} of them linked: as in deny.toml")


def licences(path):
    """Each text once, with the crates that have it."""
    owners = defaultdict(list)
    texts, expressions = {}, []
    for package in linked(metadata()):
        if own(package):
            continue
        name = f"{package['name']} {package['version']}"
        expressions.append(f"{name}: {package['license']}")
        folder = Path(package["manifest_path"]).parent
        files = sorted(file for file in folder.iterdir() if TEXTS.match(file.name))
        for file in (file for file in files if file.is_file()):
            text = file.read_text(errors="replace").strip()
            digest = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
            texts.setdefault(digest, text)
            owners[digest].append(f"{name} ({file.name})")
    parts = ["Licences of the crates that are linked into libkvstore and the program kvstore.\n"]
    parts.append("\n".join(expressions) + "\n")
    for digest, text in texts.items():
        parts.append(f"{'=' * 78}\n{chr(10).join(owners[digest])}\n{'-' * 78}\n{text}\n")
    path.write_text("\n".join(parts))


def sbom(path):
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    sums = {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}
    components = []
    for package in linked(metadata()):
        name, version = package["name"], package["version"]
        component = {
            "type": "library",
            "bom-ref": f"pkg:cargo/{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:cargo/{name}@{version}",
            "licenses": [{"expression": (package["license"] or "").replace("/", " OR ")}],
        }
        if sums[name, version]:
            component["hashes"] = [{"alg": "SHA-256", "content": sums[name, version]}]
        components.append(component)
    version = next(each["version"] for each in components if each["name"] == "libkvstore")
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {"type": "library", "name": "libkvstore", "version": version},
        },
        "components": components,
    }
    path.write_text(json.dumps(bill, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").set_defaults(run=lambda _: check())
    for name, write in (("licences", licences), ("sbom", sbom)):
        command = commands.add_parser(name)
        command.add_argument("file", type=Path)
        command.set_defaults(run=lambda arguments, write=write: write(arguments.file))
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
