"""The Go module: taken by `go get` from a folder alone, and run with the library of this tree."""

import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from artefacts import ROOT, VERSION, run

PREFIX = Path(os.environ.get("KVSTORE_PREFIX") or ROOT / "build" / "stage")
NAME = "github.com/libkvstore/libkvstore/bindings/go"

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
        **os.environ,
        "GOPROXY": f"file://{proxy}",
        "GONOSUMDB": "*",
        "GONOSUMCHECK": "1",
        "GOFLAGS": "-modcacherw",
        "GOPATH": str(tmp_path / "path"),
        "PKG_CONFIG_PATH": str(PREFIX / "lib" / "pkgconfig"),
        "LD_LIBRARY_PATH": str(PREFIX / "lib"),
    }
    run(go, "mod", "init", "consumer", cwd=consumer, env=settings)
    run(go, "get", f"{NAME}@v{VERSION}", cwd=consumer, env=settings)
    run(go, "build", "-o", "consumer", ".", cwd=consumer, env=settings)
    assert run("./consumer", cwd=consumer, env=settings) == f"{VERSION}\n"
