#!/usr/bin/env bash
# Measures calls and bound lists from Python beside C and loops of numpy and PyTorch, and a step of AdamW
# beside PyTorch's and DeepSpeed's, and loops that step in host memory; installs these three in target/bench/torch.
# Usage: scripts/bench_python.sh [--quick]
# Without a package index it says so, and nothing has failed.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

venv=target/bench/torch
log=target/bench/torch.log

leave_out() {
  echo "bench-python: nothing measured: $1"
  exit 0
}

# PyTorch takes 5 GB; an index of builds for CPUs alone may be set in PIP_INDEX_URL.
install_torch() {
  python3 -c 'import ensurepip, venv' 2>/dev/null || leave_out "python3 has no module venv"
  echo "bench-python: making $venv with numpy and torch"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check install numpy torch >"$log" 2>&1 ||
    leave_out "numpy and torch cannot be installed here, see $log"
  # It builds at its installation, which may fail; the benchmark then says that it left it out.
  "$venv/bin/python" -m pip --disable-pip-version-check install deepspeed >>"$log" 2>&1 || true
}

mkdir -p target/bench
"$venv/bin/python" -c 'import numpy, torch' >/dev/null 2>&1 || install_torch
export PYTHONPATH=$root/bindings/python KVSTORE_LIBRARY=$KVSTORE_PREFIX/lib/libkvstore.so.0
"$venv/bin/python" benches/python/pushpull.py "$@"
"$venv/bin/python" benches/python/bound.py "$@"
"$venv/bin/python" benches/python/adamw.py "$@"
"$venv/bin/python" benches/python/torch_host.py "$@"
