"""Reads every page of the documentation site, which `make site` has made in build/site."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
REPOSITORY = re.search(r'^repository = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
# What a browser loads by itself, by element; other addresses are followed by readers only.
LOADED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "object": ("data",),
    "link": ("href",),
}
NOT_LOADED = {"canonical", "index", "search", "next", "prev", "author"}
# Rustdoc writes these pages by itself: their links are its own.
OF_RUSTDOC = Path("api") / "rust"


class Page(HTMLParser):
    """The identifiers of a page, what a browser loads for it, and its links."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.loaded, self.links = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and set(values.get("rel", "").split()) & NOT_LOADED:
            self.links.append(values["href"])
        else:
            self.loaded += [values[name] for name in LOADED.get(tag, ()) if name in values]


class Site:
    """The pages of a folder, each read once."""

    def __init__(self, folder):
        self.folder, self.pages = folder, {}
        self.names = sorted(path.relative_to(folder) for path in folder.rglob("*.html"))

    def page(self, name):
        if name not in self.pages:
            self.pages[name] = Page(self.folder / name)
        return self.pages[name]

    def wrong_link(self, name, address):
        parts = urlsplit(address)
        if address.startswith(f"{REPOSITORY}/"):
            path = re.sub(r"^/(blob|tree)/main/", "", address.removeprefix(REPOSITORY).split("#")[0])
            return "" if (ROOT / path).exists() else "no such file in the repository"
        if parts.scheme or parts.netloc:
            return "" if parts.scheme in ("https", "mailto") else "neither a page nor https"
        target = name
        if parts.path:
            target = Path(os.path.normpath(name.parent / unquote(parts.path)))
        if not (self.folder / target).is_file():
            return "no such page"
        anchor = unquote(parts.fragment)
        is_read = anchor and target.suffix == ".html" and OF_RUSTDOC not in target.parents
        if is_read and anchor not in self.page(target).anchors:
            return "no such heading"
        return ""

    def wrong_resource(self, name, address):
        parts = urlsplit(address)
        if parts.scheme == "data":
            return ""
        if parts.scheme or parts.netloc:
            return "from elsewhere"
        path = self.folder / name.parent / unquote(parts.path)
        return "" if path.is_file() else "no such file"

    def problems(self):
        for name in self.names:
            page = self.page(name)
            if OF_RUSTDOC not in name.parents:
                found = ((it, self.wrong_link(name, it)) for it in page.links)
                yield from (f"{name}: {it}: {reason}" for it, reason in found if reason)
            found = ((it, self.wrong_resource(name, it)) for it in page.loaded)
            yield from (f"{name}: {it}: {reason}" for it, reason in found if reason)
        for style in self.folder.rglob("*.css"):
            text = re.sub(r"/\*.*?\*/", "", style.read_text(), flags=re.S)
            for address in re.findall(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)", text):
                name = style.relative_to(self.folder)
                address = "".join(address)
                if reason := self.wrong_resource(name, address):
                    yield f"{name}: {address}: {reason}"


@pytest.fixture(scope="module")
def site():
    if not (SITE / "index.html").exists():
        pytest.skip("build/site is missing: make site")
    return Site(SITE)


def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere(site):
    assert len(site.names) > 100
    links = sum(len(site.page(name).links) for name in site.names)
    assert links > 10_000
    assert list(site.problems()) == []


def test_every_document_has_a_page(site):
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    pages = {Path(str(it).replace("README.md", "index.md")).with_suffix(".html") for it in documents}
    assert pages <= set(site.names)


@pytest.mark.parametrize(
    ("page", "anchors"),
    [
        ("api/c.html", {"kv_push", "kv_tensor", "kv_tensor_cpu", "kv_status", "options"}),
        ("api/cpp.html", {"kv-store-push", "kv-view", "kv-ticket-wait"}),
        ("api/go.html", {"store-push", "open", "errlent"}),
        ("api/python.html", {"kvstore-create", "kvstore-push", "kvstore-torch-distributedoptimizer"}),
        ("api/rust/kvstore/struct.Store.html", {"method.push"}),
    ],
)
def test_interfaces_have_their_functions(site, page, anchors):
    assert anchors - site.page(Path(page)).anchors == set()


def test_every_function_of_the_header_is_described(site):
    header = (ROOT / "include" / "kvstore.h").read_text()
    names = set(re.findall(r"^(?!typedef|#)[\w *]*?\b(kv_\w+)\(", header, re.M))
    assert len(names) > 50
    assert names - site.page(Path("api/c.html")).anchors == set()


def test_the_search_knows_words_of_all_parts(site):
    text = (SITE / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    found = set()
    for kind in ("terms", "titleterms"):
        at = index[kind]["kv_push"]
        found |= {index["docnames"][it] for it in (at if isinstance(at, list) else [at])}
    assert {"api/c", "use/c-api"} <= found
    assert {"use/languages/c", "operate/slurm", "internals/wire"} <= set(index["docnames"])


def test_each_kind_of_mistake_is_found(tmp_path):
    (tmp_path / "other.html").write_text("<h1 id='there'>x</h1>")
    (tmp_path / "page.css").write_text("@import 'https://a.example/b.css'; a { background: url(no.svg) }")
    (tmp_path / "index.html").write_text(
        '<a href="other.html#there">a</a> <a href="gone.html">b</a> <a href="other.html#gone">c</a>'
        f'<a href="{REPOSITORY}/blob/main/README.md">d</a> <a href="{REPOSITORY}/blob/main/GONE">e</a>'
        '<a href="http://a.example">f</a> <script src="https://a.example/s.js"></script>'
        '<img src="gone.svg"> <link rel="stylesheet" href="page.css">'
    )
    problems = sorted(problem.rsplit(": ", 2)[1] for problem in Site(tmp_path).problems())
    assert problems == sorted(
        ["gone.html", "other.html#gone", f"{REPOSITORY}/blob/main/GONE", "http://a.example"]
        + ["https://a.example/s.js", "gone.svg", "https://a.example/b.css", "no.svg"]
    )
