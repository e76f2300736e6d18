#!/usr/bin/env bash
# The main job, distributed: trains the digits with four worker processes and two servers, momentum on
# the servers, then with other numbers of servers and sizes of slices, and compares the weights, byte
# by byte, with those of one process and a local store.
# Usage: scripts/demo_dist.sh DATA FOLDER
set -euo pipefail
. "$(dirname "$0")/environment.sh"

data=$1 folder=$2
build=build/examples/stage
program=$build/train_digits_job_c
export LD_LIBRARY_PATH=$KVSTORE_PREFIX/lib
mkdir -p "$folder"

configure $build examples -DCMAKE_BUILD_TYPE=Release \
  -Dkvstore_DIR="$KVSTORE_PREFIX/lib/cmake/kvstore" >/dev/null
cmake --build $build --target train_digits_job_c >/dev/null

echo "One process, a local store, four gradients in each push:"
"$program" local "$data" "$folder/local.weights"

echo
echo "The same program, four workers and two servers:"
"$KVSTORE_PREFIX/bin/kvstore" run -n 4 -s 2 -- \
  "$program" dist_sync "$data" "$folder/dist.weights" "$folder/digits-dist.svg"

echo
echo "Other numbers of servers, other slices, and whether the weights are the same bytes:"
same=yes
compare() {
  if cmp -s "$folder/local.weights" "$folder/dist.weights"; then result=same; else result=DIFFERENT same=no; fi
  printf '  %-44s %s\n' "$1" "$result"
}
compare "2 servers, slices of 262144 bytes"
for servers in 1 2 3; do
  for slice in 8192 16384 65536; do
    rm -f "$folder/dist.weights"
    KV_SLICE_BYTES=$slice "$KVSTORE_PREFIX/bin/kvstore" run -n 4 -s $servers -- \
      "$program" dist_sync "$data" "$folder/dist.weights" >/dev/null
    compare "$servers servers, slices of $slice bytes"
  done
done
[ $same = yes ] && echo "Bit-identical weights in all 11 runs: passed" ||
  { echo "Bit-identical weights in all 11 runs: FAILED"; exit 1; }
