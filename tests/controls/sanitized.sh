#!/usr/bin/env bash
# Fails unless every given program calls AddressSanitizer and UndefinedBehaviorSanitizer.
# Usage: sanitized.sh NM PROGRAM...
set -euo pipefail

nm=$1
shift
[ $# -gt 0 ] || { echo "no program given"; exit 1; }
for program in "$@"; do
  symbols=$("$nm" "$program")
  for symbol in __asan_init __ubsan_handle_; do
    grep -q " $symbol" <<<"$symbols" || { echo "$program: no $symbol"; exit 1; }
  done
done
echo "$# programs call the sanitizers"
