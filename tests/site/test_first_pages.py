"""The first page of each language, followed word by word: its program in an empty folder, its commands, and
what it says that they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "use" / "languages"
PREFIX = Path(os.environ.get("KVSTORE_PREFIX") or ROOT / "build" / "stage")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
LIMIT_SECONDS = 300
VERSION = "v0.1.0"


def blocks(page, heading=None):
    """The language and the code of each block of a page, or of one of its sections."""
    text = (PAGES / f"{page}.md").read_text()
    if heading:
        [text] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)


def program(page):
    """The name and the text of the page's program."""
    text = (PAGES / f"{page}.md").read_text()
    return re.search(r"`([\w.]+)`", text)[1], blocks(page)[0][1]


def expected(page):
    [text] = [code for language, code in blocks(page, "Run") if language == "text"]
    return text


def run(command, folder, **variables):
    """Standard output of a command line, as a user types it after the installation."""
    paths = [PREFIX / "bin", os.environ["PATH"], "/usr/local/go/bin"]
    settings = {
        "PATH": os.pathsep.join(map(str, paths)),
        "PKG_CONFIG_PATH": str(PREFIX / "lib" / "pkgconfig"),
        "LD_LIBRARY_PATH": str(PREFIX / "lib"),
    }
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, **settings, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


def walk(page, folder, **variables):
    """What the commands of the section Run print, behind each other."""
    name, code = program(page)
    (folder / name).write_text(code)
    commands = [code for language, code in blocks(page, "Run") if language == "sh"]
    assert commands
    return run("".join(commands), folder, **variables)


@pytest.mark.parametrize("page", ["c", "cpp"])
def test_programs_that_are_compiled(page, tmp_path):
    assert walk(page, tmp_path) == expected(page)


def test_python(tmp_path):
    variables = {
        "PATH": os.pathsep.join(map(str, [Path(sys.executable).parent, PREFIX / "bin", os.environ["PATH"]])),
        "PYTHONPATH": str(ROOT / "bindings" / "python"),
        "KVSTORE_LIBRARY": str(PREFIX / "lib" / "libkvstore.so.0"),
    }
    assert walk("python", tmp_path, **variables) == expected("python")


def test_go(tmp_path):
    proxy, folder = tmp_path / "proxy", tmp_path / "program"
    folder.mkdir()
    script = ROOT / "scripts" / "go_module.py"
    subprocess.run([sys.executable, script, VERSION, proxy], cwd=ROOT, check=True)
    variables = {
        "GOPROXY": f"file://{proxy}",
        "GONOSUMDB": "*",
        "GOFLAGS": "-modcacherw",
        "GOPATH": str(tmp_path / "path"),
    }
    assert walk("go", folder, **variables) == expected("go")


def test_rust():
    """The program of the page is the example, which cargo builds here and not from the registry."""
    source = (ROOT / "examples" / "rust" / "first.rs").read_text()
    source = re.sub(r"\A//![^\n]*\n#!\[allow\(.*?\)\]\n\n", "", source, flags=re.S)
    assert program("rust")[1] == source
    # With the library that the tests of Rust have.
    build = "cargo build --quiet --features libkvstore/fault-injection --example first"
    run(build, ROOT)
    started = TARGET / "debug" / "examples" / "first"
    output = run(f"{started}; kvstore run -n 4 -- {started} dist_sync", ROOT)
    assert output == expected("rust")
