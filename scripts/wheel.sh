#!/usr/bin/env bash
# Makes a wheel for every Linux with glibc 2.28 or newer (Debian 10, RHEL 8, Ubuntu 18.10) in dist/. Zig,
# which the package index has, links against the symbols of that version, whatever this machine has.
# Usage: scripts/wheel.sh
set -euo pipefail
. "$(dirname "$0")/environment.sh"

glibc=2.28
folder=build/wheel
tools=$folder/tools
target=$(uname -m)-unknown-linux-gnu

bash scripts/bootstrap.sh build python wheel
umask 022
PATH=$root/$tools/bin:$PATH

PYO3_NO_PYTHON=1 cargo zigbuild --quiet --target "$target.$glibc" --profile extension \
  -p libkvstore -p libkvstore-cli -p libkvstore-python

built=${CARGO_TARGET_DIR:-target}/$target/extension
prefix=$folder/prefix
source=$folder/source
rm -rf "$prefix" "$source"
mkdir -p "$prefix/lib" "$prefix/bin"
strip --strip-unneeded -o "$prefix/lib/libkvstore.so.0" "$built/libkvstore.so"
strip --strip-unneeded -o "$prefix/bin/kvstore" "$built/kvstore"
cp -R bindings/python "$source"
rm -rf "$source"/{build,dist,tests,*.egg-info}
"$python" scripts/supply_chain.py licences "$source/kvstore/THIRD-PARTY-LICENSES.txt"
strip --strip-unneeded -o "$source/kvstore/_native.abi3.so" "$built/lib_native.so"
rm -rf "$folder/made"
SOURCE_DATE_EPOCH=$(release_date) KVSTORE_PREFIX=$root/$prefix \
  "$tools/bin/python" -m pip --disable-pip-version-check wheel --quiet \
  --no-build-isolation --no-deps --wheel-dir "$folder/made" "$source"
mkdir -p dist
"$tools/bin/python" scripts/recompress.py "$folder"/made/*.whl dist
ls -l dist/libkvstore-*.whl
