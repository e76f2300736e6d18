"""The Go module: taken by `go get` from a folder alone, and run with the library of this tree."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from artefacts import ROOT, VERSION

PREFIX = Path(os.environ.get("KVSTORE_PREFIX") or ROOT / "build" / "stage")
NAME = "github.com/libkvstore/libkvstore/bindings/go"
LIMIT_SECONDS = 300

PROGRAM = f"""
package main

import (
	"context"
	"fmt"

	"{NAME}"
)

func main() {{
	store, err := kvstore.Open("local", nil)
	if err != nil {{
		panic(err)
	}}
	value := []float64{{1, 2}}
	if err := store.Init(context.Background(), 3, kvstore.Of(value, 2)); err != nil {{
		panic(err)
	}}
	if err := store.Push(context.Background(), 3, kvstore.Of(value, 2)); err != nil {{
		panic(err)
	}}
	fmt.Println(kvstore.Version())
}}
"""

go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
if go is None:
    pytest.skip("Go not installed", allow_module_level=True)


def run(*command, cwd, **variables):
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


def test_go_get_takes_it_from_a_folder(tmp_path):
    proxy, consumer = tmp_path / "proxy", tmp_path / "consumer"
    consumer.mkdir()
    script = ROOT / "scripts" / "go_module.py"
    run(sys.executable, script, VERSION, proxy, cwd=ROOT)
    [archive] = proxy.rglob("*.zip")
    with zipfile.ZipFile(archive) as content:
        names = {name.removeprefix(f"{NAME}@v{VERSION}/") for name in content.namelist()}
    assert {"go.mod", "LICENSE", "LICENSE-MIT", "LICENSE-APACHE", "shim.h"} <= names
    (consumer / "main.go").write_text(PROGRAM)
    settings = {
        "GOPROXY": f"file://{proxy}",
        "GONOSUMDB": "*",
        "GONOSUMCHECK": "1",
        "GOFLAGS": "-modcacherw",
        "GOPATH": str(tmp_path / "path"),
        "PKG_CONFIG_PATH": str(PREFIX / "lib" / "pkgconfig"),
        "LD_LIBRARY_PATH": str(PREFIX / "lib"),
    }
    run(go, "mod", "init", "consumer", cwd=consumer, **settings)
    run(go, "get", f"{NAME}@v{VERSION}", cwd=consumer, **settings)
    run(go, "build", "-o", "consumer", ".", cwd=consumer, **settings)
    assert run("./consumer", cwd=consumer, **settings) == f"{VERSION}\n"
