#!/usr/bin/env bash
# Measures kvstore.lightgbm beside LightGBM's own sockets, by 2 and 4 processes.
# Usage: scripts/bench_lightgbm.sh [--quick]
# Without a package index it says so, and nothing has failed.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

if ! python=$(bash scripts/frameworks.sh lightgbm 2>&1); then
  echo "bench-lightgbm: nothing measured: $python"
  exit 0
fi
export PYTHONPATH=$root/bindings/python KVSTORE_LIBRARY=$KVSTORE_PREFIX/lib/libkvstore.so.0
for processes in 2 4; do
  "$KVSTORE_PREFIX/bin/kvstore" run -n $processes -- \
    "$python" benches/python/lightgbm_network.py "$@" | sed -n 's/^worker 0 *| \([|0-9].*\)$/\1/p'
done
