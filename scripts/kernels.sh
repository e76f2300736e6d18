#!/usr/bin/env bash
# Compiles the GPU kernels of kernels/ to PTX in src/device/ptx, which is committed. Needs Python 3
# and a package index, but neither a GPU nor the CUDA toolkit: the compiler is a pinned wheel in
# build/kernels.
# Usage: scripts/kernels.sh              generates kernels/rules.h from the formulas of src/optim, and
#                                        compiles; refuses instructions that would change results
#        scripts/kernels.sh --check      compiles and compares with src/device/ptx
#        scripts/kernels.sh --assemble   assembles src/device/ptx for every GPU from sm_70 on
#        scripts/kernels.sh --install    installs the compiler only
#
# Where the compiler cannot be installed, each of them says "not run" and ends with status 1. The
# test suite tries --install first, and leaves the check out without it.
#
# The wheels are tools of this script; the library has nothing of them.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

folder=build/kernels
ptx=src/device/ptx
compiler=nvidia-cuda-nvrtc-cu12==12.9.86
# The second assembler knows GPUs that the first does not, and the other way round.
assemblers=(nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-nvcc==13.5.37)
gpus=('sm_70 sm_75 sm_80 sm_86 sm_89 sm_90' 'sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_120')

fail() {
  echo "scripts/kernels.sh: $1" >&2
  exit 1
}

# install FOLDER PACKAGE: a virtual environment with one wheel, and nothing that it depends on.
install() {
  local stamp=$1/.complete
  [ "$(cat "$stamp" 2>/dev/null)" = "$2" ] && return
  rm -rf "$1"
  mkdir -p "$(dirname "$1")"
  python3 -m venv "$1" &&
    "$1/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps "$2" &&
    echo "$2" >"$stamp"
}

# The first file of a name in a virtual environment.
find_tool() {
  find "$1" -name "$2" | head -n 1
}

install_compiler() {
  install $folder/nvrtc $compiler >$folder.log 2>&1
}

compile() {
  local library
  library=$(find_tool $folder/nvrtc libnvrtc.so.12)
  LD_LIBRARY_PATH=$(dirname "$library") \
    $folder/nvrtc/bin/python kernels/compile.py "$library" $ptx "$@"
}

# Assembles all kernels as one module.
assemble() {
  local index gpu ptxas module=$folder/all.ptx
  head -n 3 $ptx/assign_f32.ptx >$module
  tail -q -n +4 $ptx/*.ptx >>$module
  for index in "${!assemblers[@]}"; do
    install "$folder/nvcc-$index" "${assemblers[index]}" >$folder.log 2>&1 ||
      fail "the assembler ${assemblers[index]} cannot be installed; see $folder.log"
    ptxas=$(find_tool "$folder/nvcc-$index" ptxas)
    for gpu in ${gpus[index]}; do
      "$ptxas" "-arch=$gpu" -o $folder/all.cubin $module || fail "$gpu: not assembled"
      echo "$gpu: assembled by ${assemblers[index]}"
    done
  done
}

mkdir -p build
case ${1-} in
  "" | --check | --install | --assemble) ;;
  *) fail "unknown option $1; see the top of this file" ;;
esac
install_compiler || fail "not run: $compiler cannot be installed; see $folder.log"
case ${1-} in
  --check) compile --check ;;
  --assemble) assemble ;;
  "")
    KV_UPDATE_RULES=1 cargo test --quiet -p libkvstore --no-default-features --lib gpu_kernels_are
    compile
    ;;
esac
