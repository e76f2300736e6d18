"""Writes the pages of the site, from which Sphinx makes it, into a folder: sources.py FOLDER

They are those of docs/, some beside it, and those of the interfaces. A `README.md` becomes the first page
of its folder, and its links the order of the pages below it. Links to files that are no pages lead to the
repository.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

import reference

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = re.search(r'^repository = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
MODULES = (
    "kvstore",
    "kvstore.torch",
    "kvstore.jax",
    "kvstore.mxnet",
    "kvstore.ray",
    "kvstore.transformers",
    "kvstore.lightgbm",
)
RUST = '# Rust reference\n\nThe crate `libkvstore`: <a href="rust/kvstore/index.html">its documentation</a>, by rustdoc.\n'
# The pages beside docs/, and the sources that a page about an interface stands for.
BESIDE = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "SECURITY.md": "operate/reports.md",
    "bindings/cpp/README.md": "use/languages/cpp-manual.md",
    "bindings/go/README.md": "use/languages/go-manual.md",
    "bindings/python/README.md": "use/languages/python-manual.md",
    "include/kvstore.h": "api/c.md",
    "bindings/cpp/kvstore.hpp": "api/cpp.md",
    "bindings/go/doc.go": "api/go.md",
    "bindings/python/kvstore/__init__.py": "api/python.md",
    "src/lib.rs": "api/rust.md",
}


def content(path):
    text = (ROOT / path).read_text()
    if path.endswith(".go"):
        command = ["go", "doc", "-all", "."]
        return reference.go(subprocess.check_output(command, cwd=ROOT / "bindings/go", text=True))
    if path.endswith(".py"):
        return reference.python(ROOT / "bindings/python", MODULES)
    if path.endswith(".rs"):
        return RUST
    if path == "README.md":
        text = text.replace("# libkvstore", "# Overview", 1)
    return {".h": reference.c, ".hpp": reference.cpp}.get(Path(path).suffix, str)(text)


def pages():
    """The name in the site of each page and picture, by its path in the repository."""
    files = (path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.*"))
    names = {f"docs/{it}": re.sub(r"README\.md$", "index.md", it) for it in files}
    charts = {f"benches/charts/{it.name}": f"charts/{it.name}" for it in (ROOT / "benches/charts").glob("*.svg")}
    return names | charts | BESIDE


def linked(text, source, names):
    """The text with its links as they are in the site, and the pages that they lead to, in order."""
    name, found = names[source], []
    # Comments of sources name pages from the root of the repository.
    base = posixpath.dirname(source) if source.endswith(".md") else ""

    def link(match):
        target, mark, anchor = match[1].partition("#")
        if "://" in target or not target:
            return match[0]
        path = posixpath.normpath(posixpath.join(base, target))
        there = names.get(path) or names.get(f"{path}/README.md")
        if there is None:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"]({REPOSITORY}/{kind}/main/{path}{mark}{anchor})"
        found.append(there)
        return f"]({posixpath.relpath(there, posixpath.dirname(name) or '.')}{mark}{anchor})"

    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.M | re.S)
    parts[::2] = (re.sub(r"\]\(([^)\s]+)\)", link, part) for part in parts[::2])
    return "".join(parts), found


def first_page(name, names):
    """The first page of the folder in which a page is, or of the closest one around it that has one."""
    folder = posixpath.dirname(name)
    while True:
        first = posixpath.join(folder, "index.md")
        if first in names.values() and first != name:
            return first
        if not folder:
            return None
        folder = posixpath.dirname(folder)


def main():
    out, names = Path(sys.argv[1]), pages()
    shutil.rmtree(out, ignore_errors=True)
    for source, name in names.items():
        place = out / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith(".md"):
            shutil.copy(ROOT / source, place)
            continue
        text, found = linked(content(source), source, names)
        if name.endswith("index.md"):
            below = [it for it in dict.fromkeys(found) if first_page(it, names) == name]
            below = [posixpath.relpath(it, posixpath.dirname(name) or ".") for it in below]
            text += "\n```{toctree}\n:hidden:\n\n" + "\n".join(below) + "\n```\n"
        place.write_text(text)


main()
