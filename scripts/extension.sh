#!/usr/bin/env bash
# Builds the native half of the Python package, and puts it beside the package's sources: a source
# tree, an editable install and a wheel take it from there.
# Usage: scripts/extension.sh
#
# Needs no Python: the extension keeps to the stable ABI.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

place=bindings/python/kvstore/_native.abi3.so
bash scripts/bootstrap.sh build
PYO3_NO_PYTHON=1 cargo build --profile extension --package libkvstore-python
strip --strip-unneeded -o $place.new "${CARGO_TARGET_DIR:-target}/extension/lib_native.so"
# Renamed into its place: a program may have the old one loaded.
mv $place.new $place
