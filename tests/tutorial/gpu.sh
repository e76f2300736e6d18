#!/usr/bin/env bash
# Runs the training on GPUs on the stand-in driver, with one GPU and with several; then without a
# driver and without GPUs, where it must say why in one line and end with status 77.
# Usage: gpu.sh STAND_IN
set -euo pipefail
cd "$(dirname "$0")/../.."

stand_in=$1
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# Runs the program with a driver, into $output; gives its status.
train() {
  local status=0
  KV_CUDA=$1 bash scripts/example.sh c train_digits_gpu examples/data/digits.csv >"$output" 2>&1 ||
    status=$?
  echo "$status"
}

fail() {
  echo "$1:"
  cat "$output"
  exit 1
}

for devices in 1 2 4; do
  export KV_CUDA_STAND_IN_DEVICES=$devices KV_CUDA_STAND_IN_SEED=$devices
  status=$(train "$stand_in")
  if grep -q 'this build has no CUDA devices' "$output"; then
    exit 77
  fi
  [ "$status" = 0 ] || fail "status $status with $devices GPUs"
  grep -qF "on $devices of $devices GPUs" "$output" || fail "not on $devices GPUs"
  [ "$(grep -c ' GPU [0-9]$' "$output")" = 4 ] || fail "the values are not on GPUs"
  [ "$(grep -c ': passed$' "$output")" = 2 ] || fail "the results are not as required"
done

# expect_refusal DRIVER REASON
expect_refusal() {
  local status
  status=$(train "$1")
  [ "$status" = 77 ] || fail "status $status with the driver $1"
  [ "$(wc -l <"$output")" = 1 ] || fail "more than one line with the driver $1"
  grep -q "no GPU can be used: .*$2" "$output" || fail "no reason with the driver $1"
}

expect_refusal /no/such/driver.so /no/such/driver.so
expect_refusal no KV_CUDA
export KV_CUDA_STAND_IN_DEVICES=0
expect_refusal "$stand_in" CUDA_ERROR_NO_DEVICE
