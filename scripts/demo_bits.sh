#!/usr/bin/env bash
# Shows that the bits of a training follow from its data alone: the digits as 1 x 4, 2 x 2 and
# 4 x 1 (workers x gradients of each), with 1 and 2 servers, over shared memory and TCP, have the same
# digest after each epoch. Then one bit of one gradient is flipped; kvstore diff finds it, and a
# picture shows that the loss does not.
# Usage: scripts/demo_bits.sh DATA FOLDER
set -euo pipefail
. "$(dirname "$0")/environment.sh"

data=$1 folder=$2
logs=$folder/logs
kvstore=$KVSTORE_PREFIX/bin/kvstore
export PYTHONPATH=$root/bindings/python KVSTORE_LIBRARY=$KVSTORE_PREFIX/lib/libkvstore.so
mkdir -p "$folder"
rm -rf "$logs"

# train NAME WORKERS SERVERS SHM [ARGUMENT...]: one run. Its digests are in $logs/NAME, and what the
# workers print in $folder/NAME.txt.
train() {
  local name=$1 workers=$2 servers=$3 shm=$4
  mkdir -p "$logs/$name"
  "$kvstore" run -n "$workers" -s "$servers" --set "shm=$shm" --set sum_order=tree \
    --set digests=all --set "digest_log=$logs/$name" --set peer_timeout_ms=60000 -- \
    "$python" examples/python/digits_bits.py "$data" "${@:5}" |
    sed -E 's/^worker [0-9]+ *\| //' >"$folder/$name.txt"
}

show() {
  echo "\$ kvstore diff $1 $2"
  (cd "$logs" && "$kvstore" diff "$1" "$2")
}

echo "Four workers with a gradient each (4 x 1), two servers, shared memory:"
train undisturbed 4 2 yes --losses "$folder/undisturbed.losses"
sed 's/^/  /' "$folder/undisturbed.txt"
epochs=$(grep -c '^epoch' "$folder/undisturbed.txt")

echo
echo "Workers x gradients of each, and how many of the $epochs digests are the same:"
failed=no
for workers in 1 2 4; do
  for servers in 1 2; do
    for shm in yes no; do
      name=${workers}x$((4 / workers))-$servers-$([ $shm = yes ] && echo shm || echo tcp)
      train "$name" $workers $servers $shm
      same=$(grep -cFxf "$folder/undisturbed.txt" "$folder/$name.txt" || true)
      [ "$same" = "$epochs" ] || failed=yes
      printf '  %d x %d   %d server%s   %-13s   %d\n' $workers $((4 / workers)) $servers \
        "$([ $servers = 1 ] && echo ' ' || echo s)" \
        "$([ $shm = yes ] && echo 'shared memory' || echo TCP)" "$same"
    done
  done
done
[ $failed = no ] || { echo "The same digests in all runs: FAILED"; exit 1; }

echo
echo "Digest logs of runs with other numbers of workers compare too:"
show 1x4-1-tcp undisturbed

echo
echo "The first run again, with one bit flipped in epoch 2:"
train flipped 4 2 yes --losses "$folder/flipped.losses" --flip 2,2
sed -nE 's/^round/  round/p' "$folder/flipped.txt"
echo
status=0
found=$(show undisturbed flipped) || status=$?
echo "$found"
expected='different: key "fc1.weight", round .*: the contribution of rank 2 differs'
[ $status = 1 ] && grep -q "$expected" <<<"$found" ||
  { echo "kvstore diff names the flipped bit: FAILED"; exit 1; }

echo
"$python" examples/python/plot_divergence.py "$logs/undisturbed" "$folder/undisturbed.losses" \
  "$logs/flipped" "$folder/flipped.losses" "$folder/bits.svg"
echo "Picture: $folder/bits.svg"
echo
echo "The same digests in all 13 runs, and the flipped bit found: passed"
