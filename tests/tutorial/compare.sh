#!/usr/bin/env bash
# Compares what a language's example prints with the expected text, byte for byte. In a job only worker 0 prints.
# Usage: compare.sh EXPECTED [OPTION...] LANGUAGE PROGRAM [ARGUMENT...], all but EXPECTED as for scripts/example.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

expected=$1
shift
output=$(mktemp)
trap 'rm -f "$output"' EXIT
# Ended by a signal, `kvstore run` ends its processes. The test's own limit is later.
timeout --kill-after=10 570 bash scripts/example.sh "$@" | sed -E 's/^worker 0 +\| //' >"$output"
cmp "$output" "$expected" || { diff "$output" "$expected"; exit 1; }
