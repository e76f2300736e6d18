#!/usr/bin/env bash
# Measures steps of Gluon's Trainer with kvstore.mxnet beside MXNet's own stores.
# Usage: scripts/bench_mxnet.sh [--quick]
# Without a package index it says so, and nothing has failed.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

if ! python=$(bash scripts/frameworks.sh mxnet 2>&1); then
  echo "bench-mxnet: nothing measured: $python"
  exit 0
fi
export PYTHONPATH=$root/bindings/python KVSTORE_LIBRARY=$KVSTORE_PREFIX/lib/libkvstore.so.0
exec "$python" benches/python/mxnet_trainer.py "$@"
