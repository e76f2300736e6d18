#!/usr/bin/env python3
"""Makes a folder from which `go get` takes the Go module, as from a proxy: GOPROXY=file://FOLDER.

    go_module.py VERSION FOLDER

The files are those of bindings/go, with the licences, which the module has no folder above it for.
"""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULE = ROOT / "bindings" / "go"
LICENCES = ("LICENSE", "LICENSE-APACHE", "LICENSE-MIT")
# The same bytes for the same files.
DATE = (1980, 1, 1, 0, 0, 0)


def files():
    """What git has of the module, without a folder of vendored code."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."]
    listed = subprocess.run(command, cwd=MODULE, check=True, stdout=subprocess.PIPE, text=True)
    return sorted(name for name in listed.stdout.splitlines() if (MODULE / name).is_file())


def main():
    version, folder = "v" + sys.argv[1].lstrip("v"), Path(sys.argv[2])
    manifest = (MODULE / "go.mod").read_text()
    name = re.search(r"^module (\S+)$", manifest, re.M)[1]
    place = folder / name / "@v"
    place.mkdir(parents=True, exist_ok=True)
    (place / "list").write_text(version + "\n")
    (place / f"{version}.info").write_text(json.dumps({"Version": version}) + "\n")
    (place / f"{version}.mod").write_text(manifest)
    content = {file: MODULE / file for file in files()} | {file: ROOT / file for file in LICENCES}
    with zipfile.ZipFile(place / f"{version}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file, source in sorted(content.items()):
            entry = zipfile.ZipInfo(f"{name}@{version}/{file}", DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, source.read_bytes())


if __name__ == "__main__":
    main()
