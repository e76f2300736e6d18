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
log=$folder/tools.log

bash scripts/bootstrap.sh build python
mkdir -p "$folder"
if [ ! -x "$tools/bin/cargo-zigbuild" ]; then
  echo "wheel: making $tools with cargo-zigbuild and ziglang"
  "$python" -m venv "$tools"
  "$tools/bin/python" -m pip --disable-pip-version-check install cargo-zigbuild ziglang \
    'setuptools>=77' wheel >"$log" 2>&1 || {
    echo "wheel: cargo-zigbuild and ziglang cannot be installed, see $log" >&2
    exit 1
  }
fi
PATH=$root/$tools/bin:$PATH

# No file that is installed names a folder of this machine.
home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=$home/registry/src=registry --remap-path-prefix=$root=libkvstore"

build() {
  cargo zigbuild --quiet --target "$target.$glibc" "$@"
}
build --release -p libkvstore -p libkvstore-cli
PYO3_NO_PYTHON=1 build --profile extension -p libkvstore-python

built=${CARGO_TARGET_DIR:-target}/$target
prefix=$folder/prefix
source=$folder/source
rm -rf "$prefix" "$source"
mkdir -p "$prefix/lib" "$prefix/bin"
strip --strip-unneeded -o "$prefix/lib/libkvstore.so.0" "$built/release/libkvstore.so"
strip --strip-unneeded -o "$prefix/bin/kvstore" "$built/release/kvstore"
cp -R bindings/python "$source"
rm -rf "$source"/{build,dist,tests,*.egg-info}
"$python" scripts/supply_chain.py licences "$source/kvstore/THIRD-PARTY-LICENSES.txt"
strip --strip-unneeded -o "$source/kvstore/_native.abi3.so" "$built/extension/lib_native.so"
if grep --text --only-matching --max-count=1 -e "$home" -e "$root" \
  "$prefix"/lib/* "$prefix"/bin/* "$source/kvstore/_native.abi3.so"; then
  echo "wheel: the files above name folders of this machine" >&2
  exit 1
fi
KVSTORE_PREFIX=$root/$prefix "$tools/bin/python" -m pip --disable-pip-version-check wheel \
  --quiet --no-build-isolation --no-deps --wheel-dir dist "$source"
ls -l dist/libkvstore-*.whl
