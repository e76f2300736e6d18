#!/usr/bin/env bash
# Measures a part of the Python package beside what its framework has itself: LightGBM's sockets and
# JAX's collectives by 2 and 4 processes, MXNet's stores in one and by 2 and 4.
# Usage: scripts/bench_framework.sh jax|lightgbm|mxnet [--quick]
# Without a package index it says so, and nothing has failed.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

declare -A programs=([jax]=jax_trees.py [lightgbm]=lightgbm_network.py [mxnet]=mxnet_trainer.py)
framework=${1:?name a framework: ${!programs[*]}}
shift
program=benches/python/${programs[$framework]}
if ! python=$(bash scripts/frameworks.sh "$framework" 2>&1); then
  echo "bench-$framework: nothing measured: $python"
  exit 0
fi
export PYTHONPATH=$root/bindings/python KVSTORE_LIBRARY=$KVSTORE_PREFIX/lib/libkvstore.so.0
models=("")
if [ "$framework" = mxnet ]; then
  "$python" "$program" "$@"
  echo "ms a step: dist_sync, kvstore_dist_sync (theirs / ours)"
  # Each in a job of its own.
  program=benches/python/mxnet_jobs.py models=(0 1 2)
fi
for processes in 2 4; do
  for model in "${models[@]}"; do
    "$KVSTORE_PREFIX/bin/kvstore" run -n $processes -- "$python" "$program" $model "$@" |
      sed -n 's/^worker 0 *| \([|0-9].*\)$/\1/p'
  done
done
