#!/usr/bin/env bash
# Builds the library and installs it where examples and tests find it.
# Usage: scripts/stage.sh all|local [build]
#
#   all    into build/stage, with the distributed stores and the program kvstore
#   local  into build/stage-local, the local stores alone: 28 crates instead of 290
#
# Both build the native half of the Python package as well, and put it beside the package's sources:
# a source tree, an editable install and a wheel take it from there. With `build` nothing is
# installed.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

case ${1-} in
  all) build=build/cmake stage=build/stage options=() ;;
  local) build=build/local stage=build/stage-local
    options=(-DKVSTORE_DIST=OFF "-DKVSTORE_CARGO_TARGET_DIR=$root/target/local") ;;
  *) echo "usage: scripts/stage.sh all|local [build]" >&2; exit 2 ;;
esac

# Needs no Python: the extension keeps to the stable ABI. Renamed into its place, because a program may
# have the old one loaded.
build_extension() {
  local place=bindings/python/kvstore/_native.abi3.so
  PYO3_NO_PYTHON=1 cargo build --release --package libkvstore-python
  strip --strip-unneeded -o $place.new "${CARGO_TARGET_DIR:-target}/release/lib_native.so"
  mv $place.new $place
}

bash scripts/bootstrap.sh build
configure $build . "${options[@]}" >/dev/null
cmake --build $build --target kvstore
build_extension
[ "${2-}" = build ] || cmake --install $build --prefix $stage >/dev/null
