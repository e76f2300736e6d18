#!/usr/bin/env bash
# Makes a virtual environment with a framework in build/frameworks, and prints its Python.
# Usage: scripts/frameworks.sh torch|torch-oldest|mxnet|jax|ray|transformers|lightgbm|keras|sklearn
# Instant when it is there. Without a package index it says why on standard error, with status 1.
# PyTorch takes 5 GB; an index of builds for CPUs alone may be set in PIP_INDEX_URL.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

declare -A packages=(
  [torch]="torch numpy pytest"
  # The oldest version with hooks behind the accumulation of a gradient.
  [torch-oldest]="torch==2.1.2 numpy<2 pytest"
  # Its last release uses names that numpy 1.24 dropped.
  [mxnet]="mxnet==1.9.1 numpy<1.24 pytest"
  [jax]="jax numpy pytest"
  # The collectives of Ray itself need PyTorch.
  [ray]="ray torch numpy pytest"
  [transformers]="transformers torch accelerate numpy pytest"
  # scikit-learn is for LightGBM's own estimators.
  [lightgbm]="lightgbm scikit-learn numpy pytest"
  [keras]="keras jax torch numpy pytest"
  [sklearn]="scikit-learn numpy pytest"
)
framework=${1:?name a framework: ${!packages[*]}}
# Keras is imported with a back end, of which this one needs no further package.
export KERAS_BACKEND=numpy
venv=build/frameworks/$framework
log=$venv.log

fail() {
  echo "$1" >&2
  exit 1
}

[ -n "${packages[$framework]:-}" ] || fail "unknown framework $framework; there are: ${!packages[*]}"
if ! "$venv/bin/python" -c "import ${framework%-*}, numpy, pytest" >/dev/null 2>&1; then
  python3 -c 'import ensurepip, venv' 2>/dev/null || fail "python3 has no module venv"
  mkdir -p build/frameworks
  rm -rf "$venv"
  python3 -m venv "$venv"
  read -ra names <<<"${packages[$framework]}"
  "$venv/bin/python" -m pip --disable-pip-version-check install "${names[@]}" >"$log" 2>&1 ||
    fail "$framework cannot be installed here, see $log"
fi
echo "$root/$venv/bin/python"
