#!/usr/bin/env bash
# Measures kv_allreduce beside Open MPI's MPI_Allreduce, over shared memory and over TCP.
# Usage: scripts/bench_collectives.sh [processes, 2] [turns of both, 5]
# Without an MPI compiler it says so, and measures kv_allreduce alone.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

processes=${1:-2} turns=${2:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O2 benches/collectives/kvstore.c -o "$work/kvstore" -I"$KVSTORE_PREFIX/include" \
  -L"$KVSTORE_PREFIX/lib" -lkvstore -Wl,-rpath,"$KVSTORE_PREFIX/lib"
if mpicc -O2 benches/collectives/mpi.c -o "$work/mpi" 2>"$work/mpi.log"; then
  peer=yes
else
  peer=
  echo "no Open MPI: $(head -n 1 "$work/mpi.log" 2>/dev/null || echo 'mpicc is missing')"
fi

ours() { # "no" for TCP
  KV_SHM=$1 "$KVSTORE_PREFIX/bin/kvstore" run -n "$processes" -- "$work/kvstore" | sed 's/^.*| *//'
}

theirs() { # what carries the bytes
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    mpirun --oversubscribe --mca btl "$1,self" -n "$processes" "$work/mpi"
}

# Medians of all turns, beside each other.
table() { # the files of both
  sort -n "$1" | awk -v theirs="$2" '
    function median(list, count) { return list[int((count + 1) / 2)] }
    function finish() {
      if (count) printf "%12d %12.1f", bytes, median(all, count)
      if (count && bytes in peers) printf " %12.1f %8.2f", peers[bytes], median(all, count) / peers[bytes]
      if (count) print ""
    }
    BEGIN {
      while ((getline line < theirs) > 0) { split(line, cell, " "); at = ++seen[cell[1]]; value[cell[1], at] = cell[2] }
      for (size in seen) peers[size] = value[size, int((seen[size] + 1) / 2)]
    }
    $1 != bytes { finish(); bytes = $1; count = 0 }
    { all[++count] = $2 }
    END { finish() }'
}

for way in "shared memory:yes:vader" "TCP:no:tcp"; do
  IFS=: read -r name shm btl <<<"$way"
  : >"$work/ours" && : >"$work/theirs"
  for ((turn = 0; turn < turns; turn++)); do
    ours "$shm" >>"$work/ours"
    [ -z "$peer" ] || theirs "$btl" >>"$work/theirs"
  done
  sort -k1,1n -k2,2n -o "$work/ours" "$work/ours"
  sort -k1,1n -k2,2n -o "$work/theirs" "$work/theirs"
  echo "$name, $processes processes, medians of $turns turns"
  printf '%12s %12s %12s %8s\n' bytes "us" "Open MPI us" ratio
  table "$work/ours" "$work/theirs"
done
