#!/usr/bin/env bash
# Measures our stores beside MXNet 1.9.1, numpy and raw sockets, and writes the tables of peers in
# docs/use/performance.md; installs the first two in target/bench/venv. Jobs are measured beside gloo too,
# if `make bench-python` has installed PyTorch, and beside ucx_perftest, if it is on the PATH.
# Usage: scripts/bench_peers.sh [--quick]
# Without Python 3.8 to 3.11 or a package index it says so, and nothing has failed.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

venv=target/bench/venv
# The last MXNet uses names that numpy 1.24 dropped; older numpy needs Python 3.11 or older.
packages=(mxnet==1.9.1 'numpy<1.24')
log=target/bench/peers.log
options=$*

leave_out() {
  echo "bench-peers: nothing compared with MXNet and numpy: $1"
  measure_jobs
  exit 0
}

measure_jobs() {
  cargo build --release -p libkvstore-cli
  KVSTORE_PROGRAM=target/release/kvstore cargo bench --bench dist -- --page $options --peers
}

find_python() {
  local candidate
  for candidate in python3 python3.11 python3.10 python3.9 python3.8; do
    "$candidate" -c 'import ensurepip, sys, venv
sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 11))' 2>/dev/null &&
      echo "$candidate" && return
  done
  return 1
}

install_peers() {
  local python
  python=$(find_python) || leave_out "MXNet 1.9.1 needs Python 3.8 to 3.11 with the module venv"
  echo "bench-peers: making $venv with ${packages[*]}"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check install "${packages[@]}" >"$log" 2>&1 ||
    leave_out "${packages[*]} cannot be installed here, see $log"
}

peers_work() {
  "$venv/bin/python" -c 'import mxnet' >>"$log" 2>&1
}

[ "$(uname -sm)" = "Linux x86_64" ] || leave_out "MXNet 1.9.1 was built for Linux on x86-64 only"
mkdir -p target/bench
peers_work || install_peers
peers_work || leave_out "MXNet 1.9.1 does not start here, see $log"
cargo bench --bench local -- --page $options peers
measure_jobs
