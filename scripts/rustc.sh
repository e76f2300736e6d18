#!/bin/sh
# Runs rustc so that what it makes names no folder of this machine: two builds of one commit are equal
# byte by byte, wherever they lie. `.cargo/config.toml` has cargo run it, for every build of this tree.
# Usage: scripts/rustc.sh RUSTC ARGUMENT...

root=$(cd "$(dirname "$0")/.." && pwd)
compiler=$1
shift
# Debuggers find the sources of the project from its root. The name of a registry's folder depends on
# where the registry is mirrored.
set -- "$@" --remap-path-prefix="$root=."
for registry in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
  set -- "$@" --remap-path-prefix="$registry=registry"
done
# Generated sources, where the target folder is elsewhere.
[ -z "${OUT_DIR-}" ] || set -- "$@" --remap-path-prefix="$OUT_DIR=generated"
exec "$compiler" "$@"
