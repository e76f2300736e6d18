#!/usr/bin/env bash
# Compares what a language's example prints with the expected text, byte for byte.
# Usage: compare.sh LANGUAGE PROGRAM [ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/../.."

expected=tests/golden/$2.txt
output=$(mktemp)
trap 'rm -f "$output"' EXIT
bash scripts/example.sh "$@" >"$output"
cmp "$output" "$expected" || { diff "$output" "$expected"; exit 1; }
