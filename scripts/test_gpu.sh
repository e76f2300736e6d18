#!/usr/bin/env bash
# Tests tensors in GPU memory on a real driver: packs programs, library and Python package for a
# machine that has a GPU, a driver and perhaps Python with PyTorch, CuPy or JAX, but no Rust and no
# network. Ends with `N passed, N failed, N skipped`.
# Usage: scripts/test_gpu.sh [--pack | --double]
#
#   (nothing)  packs, and runs the pack if this machine has a driver
#   --pack     packs only: build/test-gpu.tar.gz, then on the other machine
#              tar xf test-gpu.tar.gz && bash test-gpu/run.sh
#   --double   builds as `cargo test` does, and runs the pack on the stand-in driver of tests/cuda
set -euo pipefail
. "$(dirname "$0")/environment.sh"

# Maximum size of the pack in bytes.
most=$((64 << 20))
folder=build/test-gpu
target=${CARGO_TARGET_DIR:-target}

case ${1-} in
  "" | --pack) profile=release place=release
    features=(--no-default-features --features cuda) ;;
  --double) profile=dev place=debug features=() ;;
  *) sed -n '/^# Usage/,/^$/p' "$0" >&2; exit 2 ;;
esac
cargo_of=(-p libkvstore "${features[@]}")
[ $profile = dev ] || cargo_of+=(--release)

# executable NAME ARGUMENT...: builds a test or a benchmark and prints its path.
executable() {
  local name=$1 log
  shift
  log=$(cargo test --no-run "${cargo_of[@]}" "$@" 2>&1) || { echo "$log" >&2 && return 1; }
  sed -nE "s|^ *Executable .*$name/main.rs \((.*)\)$|\1|p" <<<"$log"
}

build() {
  local tests bench library soname program
  rm -rf $folder
  mkdir -p $folder/bin $folder/lib $folder/python
  tests=$(executable device --test device)
  bench=$(executable device --bench device)
  cargo build -q --lib "${cargo_of[@]}"
  cp "$tests" $folder/bin/device
  cp "$bench" $folder/bin/bench
  library=$target/$place/libkvstore.so
  soname=$(sed -nE 's/^const ABI: [a-z0-9&]+ = "?([0-9]+)"?;$/libkvstore.so.\1/p' build.rs)
  cp "$library" $folder/lib/libkvstore.so
  for program in api_device api_stats api_fork; do
    cc -std=c11 -O1 -Iinclude -Itests/c tests/c/$program.c -o $folder/bin/$program \
      -L"$target/$place" -lkvstore -pthread
  done
  ln -s libkvstore.so $folder/lib/"$soname"
  PYO3_NO_PYTHON=1 cargo build -q --profile $profile -p libkvstore-python
  cp -r bindings/python/kvstore $folder/python/
  find $folder/python -name __pycache__ -prune -exec rm -r {} +
  cp "$target/$place/lib_native.so" $folder/python/kvstore/_native.abi3.so
  if [ $profile = release ]; then
    strip --strip-unneeded $folder/bin/* $folder/lib/libkvstore.so $folder/python/kvstore/_native.abi3.so
  fi
  cp tests/gpu/frameworks.py tests/gpu/peers.py $folder/python/
  cp tests/gpu/run.sh $folder/
  [ $profile != dev ] || cp "$(dirname "$tests")/libcuda_stand_in.so" $folder/bin/
}

pack() {
  local size
  tar -C build -czf build/test-gpu.tar.gz test-gpu
  size=$(stat -c %s build/test-gpu.tar.gz)
  echo "packed build/test-gpu.tar.gz: $((size >> 20)) MiB"
  ((size <= most)) || { echo "larger than $((most >> 20)) MiB" >&2 && return 1; }
}

main() {
  build
  if [ $profile = dev ]; then
    exec bash $folder/run.sh --stand-in
  fi
  pack
  if [ "${1-}" = --pack ]; then
    return
  fi
  if ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    echo "not run: this machine has no libcuda.so.1; on one that has, run"
    echo "tar xf test-gpu.tar.gz && bash test-gpu/run.sh"
    return
  fi
  exec bash $folder/run.sh
}

# On one line: a file that changes while it runs is not read further.
main "$@"; exit
