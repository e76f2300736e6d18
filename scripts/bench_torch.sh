#!/usr/bin/env bash
# Measures kvstore.torch beside PyTorch's DistributedDataParallel with gloo, and its process group beside
# gloo's, by 2 and 4 processes.
# Usage: scripts/bench_torch.sh [--quick]
# Without a package index it says so, and nothing has failed.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

if ! torch=$(bash scripts/frameworks.sh torch 2>&1); then
  echo "bench-torch: nothing measured: $torch"
  exit 0
fi
export PYTHONPATH=$root/bindings/python KVSTORE_LIBRARY=$KVSTORE_PREFIX/lib/libkvstore.so.0
processors=$(nproc)
# As torchrun sets it by itself, with a warning; nproc would count it.
export OMP_NUM_THREADS=1
for processes in 2 4; do
  options=("$@")
  # The layers themselves, where processes have a processor each.
  ((processes > processors)) || options+=(--resnet)
  "$torch" -m torch.distributed.run --standalone --nproc-per-node $processes \
    benches/python/torch_ddp.py "${options[@]}"
  "$torch" -m torch.distributed.run --standalone --nproc-per-node $processes \
    benches/python/torch_group.py "$@"
done
