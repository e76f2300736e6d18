#!/usr/bin/env bash
# Compares what a language's tutorial program prints with the expected text, byte for byte.
# Usage: compare.sh LANGUAGE
set -euo pipefail
cd "$(dirname "$0")/../.."

output=$(mktemp)
trap 'rm -f "$output"' EXIT
bash scripts/example.sh "$1" tutorial >"$output"
cmp "$output" tests/golden/tutorial.txt || { diff "$output" tests/golden/tutorial.txt; exit 1; }
