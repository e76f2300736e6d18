#!/usr/bin/env bash
# Builds the library and installs it where examples and tests find it.
# Usage: scripts/stage.sh all|local [build]
#
#   all    into build/stage, with the distributed stores and the program kvstore
#   local  into build/stage-local, the local stores alone, with CUDA: 30 crates instead of 290
#
# With `build` nothing is installed.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

case ${1-} in
  all) build=build/cmake stage=build/stage options=() ;;
  local) build=build/local stage=build/stage-local
    options=(-DKVSTORE_DIST=OFF
    -DKVSTORE_CARGO_FEATURES=cuda "-DKVSTORE_CARGO_TARGET_DIR=$root/target/local") ;;
  *) echo "usage: scripts/stage.sh all|local [build]" >&2; exit 2 ;;
esac

bash scripts/bootstrap.sh build
configure $build . "${options[@]}" >/dev/null
cmake --build $build --target kvstore
[ "${2-}" = build ] || cmake --install $build --prefix $stage >/dev/null
