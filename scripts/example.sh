#!/usr/bin/env bash
# Runs an example, built against the installed library, from the root of the repository.
# Usage: scripts/example.sh [OPTION...] LANGUAGE PROGRAM [ARGUMENT...]
#
#   scripts/example.sh c train_digits examples/data/digits.csv target/demo/digits.svg
#   scripts/example.sh -n 2 -s 1 c features dist_sync
#
# With options, each followed by its value, `kvstore run` of the same library starts a job of the program; they are
# those of `kvstore run`.
#
# The languages are c, cpp, go, python and rust. The library is the one in KVSTORE_PREFIX, by
# default build/stage; `make stage` puts it there, and `make stage-local` one with local stores alone
# into build/stage-local.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

launcher=()
while [[ $1 == -* ]]; do
  launcher+=("$1" "$2")
  shift 2
done
((${#launcher[@]} == 0)) || launcher=("$KVSTORE_PREFIX/bin/kvstore" run "${launcher[@]}" --)
language=$1 program=$2
shift 2

run_compiled() {
  local build=build/examples/${KVSTORE_PREFIX##*/}
  configure "$build" examples -DCMAKE_BUILD_TYPE=Release \
    -Dkvstore_DIR="$KVSTORE_PREFIX/lib/cmake/kvstore" >/dev/null
  cmake --build "$build" --target "${program}_$language" >/dev/null
  "${launcher[@]}" "$build/${program}_$language" "$@"
}

run_go() {
  find_go
  export PKG_CONFIG_PATH=$KVSTORE_PREFIX/lib/pkgconfig LD_LIBRARY_PATH=$KVSTORE_PREFIX/lib
  (cd examples/go && go build -o "$root/build/examples/go/$program" "./$program")
  "${launcher[@]}" "build/examples/go/$program" "$@"
}

run_python() {
  export PYTHONPATH=$root/bindings/python KVSTORE_LIBRARY=$KVSTORE_PREFIX/lib/libkvstore.so
  "${launcher[@]}" "$python" "examples/python/$program.py" "$@"
}

case $language in
  c | cpp) run_compiled "$@" ;;
  go) run_go "$@" ;;
  python) run_python "$@" ;;
  # Without jobs, they use local stores only: with the library of `make stage-local` they are built in a moment.
  # Cargo keeps one build of a shared library in a folder, so the features are those of that one. `cargo test`
  # runs them in jobs.
  rust)
    ((${#launcher[@]} == 0)) || { echo "the examples in Rust are built without jobs" >&2; exit 2; }
    cargo run --quiet --release -p libkvstore --no-default-features --features cuda \
      --target-dir target/local --example "$program" -- "$@"
    ;;
  *) echo "unknown language $language" >&2; exit 2 ;;
esac
