#!/usr/bin/env bash
# Runs a pack of scripts/test_gpu.sh on a machine with a GPU and a driver; Python is used where it is
# there. Ends with `N passed, N failed, N skipped`.
# Usage: bash run.sh [--stand-in]
#
# Needs no compiler and no network. Allocates plain device memory only, no managed memory.
set -uo pipefail
cd "$(dirname "$0")" || exit 1

passed=0 failed=0 skipped=0
# The end of all of it, in seconds since the start.
most=570
logs=$PWD/logs
mkdir -p "$logs"
if [ "${1-}" = --stand-in ]; then
  driver=$PWD/bin/libcuda_stand_in.so
  unset KV_TEST_CUDA
  # Races are looked for by `cargo test`; every pattern of 16 bits takes half the time without.
  export KV_CUDA_STAND_IN_RACES=no
  elements=65536 sum_elements=65536 bench=(--stand-in --quick --scale 4096)
else
  driver=auto
  export KV_TEST_CUDA=auto
  # A slow GPU takes fewer elements, and KV_TEST_GPU_BENCH="--scale 16".
  elements=${KV_TEST_GPU_ELEMENTS:-$((1 << 20))} sum_elements=${KV_TEST_GPU_ELEMENTS:-$((1 << 24))}
  read -ra bench <<<"${KV_TEST_GPU_BENCH-}"
fi
export KV_CUDA=$driver LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# Seconds of a step, of which there are no more than are left.
limit() { echo $(($1 < most - SECONDS ? $1 : (most > SECONDS ? most - SECONDS : 1))); }

good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)) && echo "FAILED $1; see $logs"; }
skip() { skipped=$((skipped + 1)) && echo "SKIPPED $1: $2"; }

# run_tests NAME SECONDS ARGUMENT...: runs tests of bin/device and adds their counts.
run_tests() {
  local name=$1 limit=$2 log=$logs/$1.log status count=0 wrong=0 left=0
  shift 2
  timeout --kill-after=10 "$(limit "$limit")" bin/device --nocapture --test-threads=4 "$@" >"$log" 2>&1
  status=$?
  # The last one: a child that fails has its own before it.
  read -r count wrong < <(
    sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed.*/\1 \2/p' "$log" | tail -n 1
  )
  grep -oE 'SKIPPED [a-z_:]+: .*' "$log"
  left=$(grep -cE 'SKIPPED [a-z_:]+: ' "$log")
  if ((status != 0 && ${wrong:-0} == 0)) || ((${count:-0} + ${wrong:-0} == 0)); then
    wrong=$((${wrong:-0} + 1))
    echo "FAILED $name: status $status; see $log"
  elif ((wrong > 0)); then
    tail -n 60 "$log"
  fi
  passed=$((passed + ${count:-0} - left)) failed=$((failed + wrong)) skipped=$((skipped + left))
}

run_sanitizer() {
  local sanitizer tool test log tests
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
  if [ "$driver" != auto ] || [ -z "$sanitizer" ]; then
    skip "compute-sanitizer" "$([ "$driver" = auto ] && echo "not installed" || echo "needs a GPU")"
    return
  fi
  # Those that use the GPU, without planted faults; each tool finds its own kind of error in the kernels.
  mapfile -t tests < <(bin/device --list | sed -nE 's/^((dense|rules|layouts|order|bits)::.*): test$/\1/p' |
    grep -vE 'every_pattern_is_visited|memory_alone_touch_no_driver' | head -n 20)
  for tool in memcheck initcheck racecheck synccheck; do
    for test in "${tests[@]}"; do
      log=$logs/$tool-${test//::/-}.log
      if ((SECONDS > most - 60)); then
        skip "$tool $test" "no time is left"
        continue
      fi
      KV_DEVICE_TEST=yes timeout 60 "$sanitizer" --tool $tool --error-exitcode 9 --quiet \
        bin/device "$test" --exact --nocapture >"$log" 2>&1
      case $? in
        0) good ;;
        77) skip "$tool $test" "needs the stand-in" ;;
        124) skip "$tool $test" "takes more than 60 s" ;;
        *) bad "$tool $test" ;;
      esac
      # All under the first tool; a few under the others, for the time that they take.
      [ $tool = memcheck ] || [ "$test" != "${tests[4]-}" ] || break
    done
  done
}

run_programs() {
  local program
  for program in bin/api_*; do
    if timeout 120 env -u KV_CUDA "$program" >"$logs/$(basename "$program").log" 2>&1; then
      good
    else
      bad "$program"
    fi
  done
}

# Each line of a check is `ok NAME`, `FAILED NAME: why` or `SKIPPED NAME: why`.
run_python() {
  local framework log
  if ! command -v python3 >/dev/null; then
    skip "Python" "python3 is not installed"
    return
  fi
  for framework in driver torch cupy jax; do
    log=$logs/python-$framework.log
    timeout "$(limit 150)" python3 python/frameworks.py $framework "$PWD/lib/libkvstore.so" >"$log" 2>&1
    local status=$?
    passed=$((passed + $(grep -c '^ok ' "$log")))
    skipped=$((skipped + $(grep -c '^SKIPPED ' "$log")))
    failed=$((failed + $(grep -c '^FAILED ' "$log")))
    grep -E '^(SKIPPED|FAILED) ' "$log"
    ((status == 0)) || grep -q '^FAILED ' "$log" || bad "python $framework, status $status"
  done
}

# Prints a table of the library beside PyTorch, or the line that says why there is none.
run_peers() {
  local log=$logs/peers.log
  if ! command -v python3 >/dev/null; then
    skip "peers" "python3 is not installed"
  elif ! timeout "$(limit 120)" python3 python/peers.py "$PWD/lib/libkvstore.so" >"$log" 2>&1; then
    bad "peers"
  elif grep -q '^SKIPPED ' "$log"; then
    skipped=$((skipped + 1))
    cat "$log"
  else
    good
    cat "$log"
  fi
}

run_bench() {
  local log=$logs/bench.log
  if ! timeout "$(limit 200)" bin/bench "${bench[@]}" >"$log" 2>&1; then
    bad "benches/device"
  elif ! grep -q '^| 100 pushpulls of 100 keys on CUDA tensors | 0 |$' "$log"; then
    bad "benches/device: a loop of CUDA tensors waits for the GPU, or was not measured"
  else
    good
  fi
  [ "$driver" != auto ] || cat "$log"
}

main() {
  if command -v nvidia-smi >/dev/null && [ "$driver" = auto ]; then
    nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader
  fi
  bin/bench "${bench[@]}" --describe || { echo "0 passed, 1 failed, 0 skipped" && exit 1; }
  run_tests tests 240 --skip bits::
  KV_TEST_GPU_ELEMENTS=$sum_elements run_tests sums 150 bits::sums
  KV_TEST_GPU_ELEMENTS=$elements run_tests rules 200 bits::rules
  run_programs
  run_python
  run_bench
  run_peers
  run_sanitizer
  echo "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0 && passed > 0))
}

# On one line: a file that changes while it runs is not read further.
main; exit
