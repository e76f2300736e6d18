#!/usr/bin/env bash
# Runs test suites, goes on after a failure, and ends with the line "N passed, N failed".
# Usage: scripts/test.sh [suite...]
#
#   all      what `make test` runs: every suite below but checks, site, gpu, frameworks, some_frameworks,
#            mixed, aarch64, packages and long
#   checks   formats and lints, each counted as one test
#   site     the documentation site: every page of it is read
#   rust     cargo test, with fault injection: unit tests, integration tests, whole jobs, documentation; jobs
#            again over other transports, local stores again alone; the stand-in for the CUDA driver
#   loom     all interleavings of small models
#   kernels  the GPU kernels compiled again, where the compiler can be installed
#   gpu      what scripts/test_gpu.sh runs on a GPU, on the stand-in driver
#   programs the C and C++ tests of ctest, also under the sanitizers and valgrind
#   go       go vet and go test, also with the race detector and cgocheck2
#   python   pytest: the Python package, the manifests for Kubernetes, jobs of real launchers
#   frameworks  pytest: the parts of the Python package for frameworks, on the real frameworks
#   some_frameworks  those for MXNet, PyTorch and Ray in jobs of two processes, as far as ten minutes go
#   examples every example that trains, started as a user would
#   miri     unit tests under Miri
#   mixed    jobs whose scheduler and servers are of another release than their workers
#   aarch64  the library built for aarch64, its kernels in an emulator
#   packages what `make dist` makes, twice; installed into new Debians, and as an image
#   long     rust, loom and stress with far more work, gpu, mixed, aarch64 and packages; hours
#   builds   what loom, programs, go, python and examples build, and no test of it: `all` has it done beside
#            the tests of rust, which wait more than they compute, with the lowest priority
#
# One line for each run says what it counted; the whole output is in build/test-logs. A run that
# fails without a failed test, or that finds no test, counts as one failure.
set -uo pipefail
. "$(dirname "$0")/environment.sh"
find_go || true

logs=build/test-logs
mkdir -p "$logs"
passed=0
failed=0
not_run=()
jobs=$(nproc)
limit_s=2400
builds=""
trap 'kill "$!" $builds 2>/dev/null; exit 130' INT TERM

# Counters read the output of a runner and print: passed failed skipped.

count_cargo() {
  awk '/^test result:/ { good += $4; bad += $6; skipped += $8 }
    END { print good + 0, bad + 0, skipped + 0 }'
}

count_ctest() {
  sed -nE 's/.* ([0-9]+) tests? failed out of ([0-9]+)$/\1 \2/p' |
    awk '{ bad += $1; good += $2 - $1 } END { print good + 0, bad + 0, 0 }'
}

count_go() {
  awk '/^--- PASS/ { good++ } /^--- FAIL/ { bad++ } /^--- SKIP/ { skipped++ }
    END { print good + 0, bad + 0, skipped + 0 }'
}

count_pytest() {
  tail -n 1 | awk '{ for (i = 2; i <= NF; i++) {
      if ($i ~ /^passed/) good += $(i - 1)
      if ($i ~ /^(failed|error)/) bad += $(i - 1)
      if ($i ~ /^skipped/) skipped += $(i - 1)
    } } END { print good + 0, bad + 0, skipped + 0 }'
}

# A command without a count of its own is one test.
count_status() {
  if ((status == 0)); then echo 1 0 0; else echo 0 1 0; fi
}

# A step that tests need is counted only when it fails.
count_step() {
  if ((status == 0)); then echo 0 0 0; else echo 0 1 0; fi
}

# run NAME COUNTER COMMAND...: runs one suite, prints its line, adds to the sums.
run() {
  local name=$1 counter=$2 log start=$SECONDS status good bad skipped sums note=""
  log=$logs/${name//[ \/]/-}.log
  shift 2
  printf '%-32s' "$name"
  timeout --kill-after=10 $limit_s "$@" >"$log" 2>&1 </dev/null &
  wait $!
  status=$?
  read -r good bad skipped < <("$counter" <"$log")
  if ((status != 0 && bad == 0)); then
    bad=1 note=", ended with status $status"
  elif ((good + bad == 0)) && [ "$counter" != count_step ]; then
    bad=1 note=", found no test"
  fi
  ((skipped == 0)) || note+=", $skipped skipped"
  passed=$((passed + good)) failed=$((failed + bad))
  sums=$(printf '%5d passed %3d failed' "$good" "$bad")
  ((good + bad > 0)) || sums="ready"
  printf '%-23s %5d s%s\n' "$sums" $((SECONDS - start)) "$note"
  ((bad == 0)) || show_failures "$log"
}

# What failed: what the tests of cargo say of themselves, wherever it is in the log, and the log's end.
show_failures() {
  echo "--- what failed in $1, and its end"
  awk '/^failures:$/ { failed = 1 } /^test result:/ { failed = 0 } failed' "$1" | head -n 200
  tail -n 60 "$1"
  echo "---"
}

leave_out() {
  not_run+=("$1 ($2)")
}

suite_checks() {
  run "rust format" count_status cargo fmt --all --check
  run "rust lints" count_status cargo clippy --all-targets -- -D warnings
  run "rust lints, fault injection" count_status \
    cargo clippy -p libkvstore --all-targets --features fault-injection -- -D warnings
  run "rust lints, local stores only" count_status \
    cargo clippy -p libkvstore --all-targets --no-default-features -- -D warnings
  run "rust lints, Python extension" count_status \
    cargo clippy -p libkvstore-python -- -D warnings
  run "rust documentation" count_status env RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --quiet
  run "go format" count_status bash -c '! gofmt -l bindings/go examples tests/install/go | grep .'
  if "$python" -c 'import tomllib' 2>/dev/null; then
    run "supply chain" count_status "$python" scripts/supply_chain.py check
  else
    leave_out "supply chain" "Python 3.11 not installed"
  fi
  if command -v ruff >/dev/null; then
    run "python lints" count_status ruff check bindings/python examples/python examples/frameworks
  else
    run "python compiles" count_status "$python" -m compileall -q bindings/python examples/python \
      examples/frameworks
  fi
}

suite_site() {
  if [ ! -x "$python" ] || [ ! -x build/site-venv/bin/sphinx-build ]; then
    leave_out site "build/venv or build/site-venv is missing"
    return
  fi
  run "documentation site" count_step make -s site
  run "pytest, documentation site" count_pytest "$python" -m pytest -q -rs tests/site/test_site.py
}

# What panics at named points is built in, and asked for by the tests of it alone: one build for all.
with_faults=(--features libkvstore/fault-injection)
# In another folder than the other tests, so that it is built while they run.
local_only=(-p libkvstore -p libkvstore-checksum --no-default-features --target-dir target/local
  --lib --test safe_api --test lists)
loom=(env RUSTFLAGS="--cfg loom" cargo test -p libkvstore --profile models --lib --no-default-features
  --target-dir target/loom)

suite_rust() {
  local dist=(cargo test "${with_faults[@]}" --no-fail-fast --test dist)
  run "cargo test, build" count_step cargo test "${with_faults[@]}" --no-run
  run "cargo test" count_cargo cargo test "${with_faults[@]}" --no-fail-fast
  run "cargo test, jobs over TCP" count_cargo env KV_SHM=no "${dist[@]}"
  run "cargo test, jobs over TLS" count_cargo env KV_SHM=no KV_TEST_TLS=yes "${dist[@]}"
  if ldconfig -p | grep -q 'libucp\.so\.0'; then
    run "cargo test, jobs over the TCP of UCX" count_cargo \
      env KV_TRANSPORT=ucx UCX_TLS=tcp "${dist[@]}"
    run "cargo test, jobs over the shared memory of UCX, taken by auto" count_cargo \
      env KV_SHM=no KV_TEST_FABRICS=lo UCX_TLS=posix "${dist[@]}"
    run "cargo test, deaths over UCX" count_cargo env KV_TRANSPORT=ucx UCX_TLS=tcp \
      cargo test "${with_faults[@]}" --no-fail-fast --test processes -- kills
  else
    leave_out "jobs over UCX" "libucp.so.0 is not installed"
  fi
  run "cargo test, local stores only" count_cargo cargo test --no-fail-fast "${local_only[@]}"
}

suite_loom() {
  run "loom" count_cargo "${loom[@]}" loom
}

run_label() {
  run "ctest $1" count_ctest ctest --test-dir build/cmake --label-regex "^$1\$" --parallel "$jobs" \
    --fixture-exclude-setup build --output-on-failure --no-tests=error "${@:2}"
}

# run_optional_label LABEL REASON: CMake makes no such tests when it does not find their tool.
run_optional_label() {
  if [[ $(ctest --test-dir build/cmake --show-only --label-regex "^$1\$") == *"Total Tests: 0" ]]; then
    leave_out "$1" "$2"
  else
    run_label "$1"
  fi
}

suite_kernels() {
  if ! bash scripts/kernels.sh --install 2>/dev/null; then
    leave_out kernels "the compiler of GPU kernels cannot be installed"
    return
  fi
  run "GPU kernels" count_status bash scripts/kernels.sh --check
}

# The last line of the script: N passed, N failed, N skipped.
count_gpu() {
  tail -n 1 | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p'
}

suite_gpu() {
  run "GPU tests, stand-in driver" count_gpu bash scripts/test_gpu.sh --double
}

build_programs() {
  run "programs, configure" count_step \
    bash -c '. scripts/environment.sh && configure build/cmake . -DKVSTORE_TESTS=ON'
  run "programs, build" count_step cmake --build build/cmake --parallel "$jobs"
}

suite_programs() {
  local label
  build_programs
  # Python's tutorial is one of the programs.
  run "extension for python" count_step make -s extension
  for label in api leak stress fault cpp abi install tutorial asan; do
    run_label $label
  done
  run_optional_label tsan "no nightly toolchain with the component rust-src"
  run_optional_label valgrind "valgrind not installed"
  run_optional_label helgrind "valgrind not installed"
  echo '#include <dlpack/dlpack.h>' | cc -E - >/dev/null 2>&1 ||
    leave_out "comparison with DLPack's layout" "libdlpack-dev not installed"
}

suite_go() {
  local environment=(PKG_CONFIG_PATH="$KVSTORE_PREFIX/lib/pkgconfig"
    LD_LIBRARY_PATH="$KVSTORE_PREFIX/lib")
  if ! command -v go >/dev/null; then
    leave_out go "Go 1.21 not installed"
    return
  fi
  run "library for go" count_step make -s stage
  run "stand-in driver for go" count_step cargo build --release -p cuda-stand-in --lib
  environment+=(KV_CUDA="$root/target/release/libcuda_stand_in.so" KV_CUDA_STAND_IN_DEVICES=4)
  run "go vet" count_status env -C bindings/go "${environment[@]}" go vet ./...
  run "go vet, examples" count_status env -C examples/go "${environment[@]}" go vet ./...
  environment=(-C bindings/go "${environment[@]}")
  run "go test" count_go env "${environment[@]}" go test -v -count=1 ./...
  run "go test, race detector" count_go env "${environment[@]}" go test -v -count=1 -race ./...
  run "go test, cgocheck2" count_go env "${environment[@]}" GOEXPERIMENT=cgocheck2 \
    go test -v -count=1 ./...
}

suite_python() {
  if [ ! -x "$python" ]; then
    leave_out python "build/venv is missing"
    return
  fi
  run "library for python" count_step make -s python
  # The driver of tests with arrays in GPU memory.
  run "stand-in driver" count_step cargo build --quiet -p cuda-stand-in
  run "pytest" count_pytest "$python" -m pytest -q -rs bindings/python/tests tests/k8s \
    tests/launchers tests/packages tests/site/test_first_pages.py
  name_skipped '^$' "$logs/pytest.log"
}

# name_skipped PATTERN LOG...: says once for each reason, but those of a pattern, that tests were skipped.
name_skipped() {
  local reason
  while read -r reason; do
    leave_out "some of pytest" "$reason"
  done < <(sed -nE 's/^SKIPPED \[[0-9]+\] [^ ]+ //p' "${@:2}" | grep -v "$1" | sort -u)
}

# Each framework has an environment of its own: they want other versions of numpy.
suite_frameworks() {
  local torch version framework interpreter
  run "library for python" count_step make -s python
  run "pytest, no framework" count_pytest \
    "$python" -m pytest -q -rs bindings/python/tests/test_frameworks.py
  for version in torch torch-oldest; do
    if ! torch=$(bash scripts/frameworks.sh $version 2>&1); then
      leave_out "kvstore.torch, $version" "$torch"
      continue
    fi
    run "pytest, $version" count_pytest \
      "$torch" -m pytest -q -rs bindings/python/tests_frameworks
    run "pytest, tensors of $version" count_pytest "$torch" -m pytest -q -rs \
      bindings/python/tests/test_torch.py bindings/python/tests/test_torch_optimizers.py
  done
  for framework in mxnet jax ray transformers lightgbm keras sklearn; do
    if interpreter=$(bash scripts/frameworks.sh $framework 2>&1); then
      run "pytest, $framework" count_pytest \
        "$interpreter" -m pytest -q -rs bindings/python/tests_frameworks -k "test_$framework"
    else
      leave_out "kvstore.$framework" "$interpreter"
    fi
  done
  name_skipped "could not import" "$logs"/pytest,-*.log
}

# Their packages are fetched first, and removed again if they were not there: PyTorch's take 5 GB.
suite_some_frameworks() {
  local end framework interpreter folder left free was_there
  # Seconds that are kept for what comes after, and gigabytes of the packages.
  local -A later=([mxnet]=400 [torch]=200 [ray]=0) size=([mxnet]=1 [torch]=8 [ray]=8)
  run "library for python" count_step make -s python
  end=$((SECONDS + 600))
  for framework in mxnet torch ray; do
    folder=build/frameworks/$framework was_there=yes
    [ -d "$folder" ] || was_there=no
    free=$(df --output=avail -B G build | tr -dc 0-9)
    if [ $was_there = no ] && ((free < 2 * ${size[$framework]})); then
      leave_out "kvstore.$framework" "$free GB are free, and its packages take ${size[$framework]}"
      continue
    fi
    left=$((end - SECONDS - ${later[$framework]}))
    if ((left < 60)); then
      leave_out "kvstore.$framework" "no time left"
    elif interpreter=$(timeout $left bash scripts/frameworks.sh $framework 2>&1); then
      left=$((end - SECONDS - ${later[$framework]}))
      run "pytest, some of $framework" count_pytest \
        env KV_TEST_PROCESSES=2 KV_TEST_END=$(($(date +%s) + left)) \
        "$interpreter" -m pytest -q -rs bindings/python/tests_frameworks -k "test_$framework"
      name_skipped "could not import" "$logs/pytest,-some-of-$framework.log"
    else
      leave_out "kvstore.$framework" "${interpreter:-its packages did not come within $left s}"
    fi
    [ $was_there = yes ] || rm -rf "$folder"
  done
}

suite_examples() {
  local demo stand_in="$root/target/release/libcuda_stand_in.so"
  for demo in demo demo-cpp demo-go demo-python demo-rust demo-embedding demo-dist demo-bits; do
    run "make $demo" count_status make -s "$demo"
  done
  run "stand-in driver" count_step cargo build --release -p cuda-stand-in --lib
  run "make demo-gpu, stand-in driver" count_status \
    env KV_CUDA="$stand_in" KV_CUDA_STAND_IN_DEVICES=4 make -s demo-gpu
  if "$python" -c 'import torch' 2>/dev/null; then
    run "make demo-torch" count_status make -s demo-torch
  else
    leave_out demo-torch "torch not installed"
  fi
}

# Only modules without what Miri does not know, and that end without threads left over.
suite_miri() {
  if ! cargo +nightly miri --version >/dev/null 2>&1; then
    leave_out miri "no nightly toolchain with the component miri"
    return
  fi
  run "miri" count_cargo env MIRIFLAGS=-Zmiri-disable-isolation KV_TEST_SCALE=small \
    cargo +nightly miri test -p libkvstore --lib --no-default-features -- \
    capi:: config:: key:: panics:: store::lock:: tensor::
}

# A build with the feature wire-next stands for a later release; a test program opens the library of the other
# release as users do, and runs the scheduler and the servers of its jobs in it.
suite_mixed() {
  local builds=$root/build/mixed release
  local -A features=([plain]=dist [next]=wire-next) other=([plain]=next [next]=plain)
  mkdir -p "$builds"
  for release in plain next; do
    run "library, $release" count_step cargo build -p libkvstore --features "${features[$release]}"
    cp target/debug/libkvstore.so "$builds/$release.so"
  done
  for release in plain next; do
    run "jobs, workers of $release" count_cargo env KV_TEST_BUILD="$builds/${other[$release]}.so" \
      cargo test -p libkvstore --no-fail-fast --features "${features[$release]}" --test dist
  done
}

# The library built for another processor; its kernels run in an emulator.
suite_aarch64() {
  local target=aarch64-unknown-linux-gnu
  if [ ! -d "$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src" ] ||
    ! command -v aarch64-linux-gnu-gcc >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
    leave_out aarch64 "no nightly toolchain with rust-src, gcc-aarch64-linux-gnu or qemu-user"
    return
  fi
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
  run "aarch64, library" count_step cargo +nightly build -p libkvstore -Zbuild-std --release \
    --no-default-features --target $target --target-dir target/aarch64
  run "aarch64, kernels" count_cargo env KV_TEST_SCALE=small cargo +nightly test -p libkvstore -Zbuild-std \
    --lib --no-default-features --target $target --target-dir target/aarch64 -- kernel:: codec::
}

# Its log has the time of each test.
suite_packages() {
  run "packages" count_pytest env KV_TEST_OPERATIONS=1 \
    "$python" -m pytest -q -rs --durations=0 --durations-min=1 tests/packages/test_release.py
}

suite_long() {
  limit_s=36000
  export KV_TEST_OPERATIONS=10000000 LOOM_MAX_PREEMPTIONS=4
  export KV_SIM_SEEDS=1000000 KV_SIM_FIRST=9000000000 KV_TEST_SEEDS=20000
  run "cargo test, long" count_cargo cargo test --release --no-fail-fast
  run "jobs of many processes, and over long links" count_cargo \
    cargo test --release -p libkvstore-cli --no-fail-fast --test processes -- --ignored
  run "simulator, other seeds" count_cargo env KV_SIM_FIRST=7000000000 \
    cargo test --release -p libkvstore-protocol sim::tests
  suite_loom
  build_programs
  run_label stress --repeat until-fail:100 --timeout 3600
  suite_gpu
  suite_mixed
  suite_aarch64
  suite_packages
}

suite_builds() {
  build_programs
  run "loom, build" count_step "${loom[@]}" --no-run
  run "extension for python" count_step make -s extension
  run "local stores, build" count_step cargo test "${local_only[@]}" --no-run
  run "library of the demos" count_step make -s stage-local
  run "examples in Rust" count_step bash scripts/example.sh rust features
}

suite_all() {
  timeout --kill-after=10 $((2 * limit_s)) nice -n 19 bash scripts/test.sh builds \
    >"$logs/builds.log" 2>&1 </dev/null &
  builds=$!
  suite_rust
  # What failed there fails again where it is needed, and is counted there.
  run "builds beside the tests" count_step tail --pid=$builds -f /dev/null
  builds=""
  suite_loom
  suite_kernels
  suite_programs
  suite_go
  suite_python
  suite_examples
  suite_miri
}

main() {
  local suite line
  for suite in "$@"; do
    if ! declare -F "suite_$suite" >/dev/null; then
      echo "unknown suite $suite; see the top of scripts/test.sh" >&2
      exit 2
    fi
    "suite_$suite"
  done
  for line in "${not_run[@]}"; do
    echo "not run: $line"
  done
  echo "$passed passed, $failed failed"
  ((failed == 0 && passed > 0))
}

# On one line: a file that changes while it runs is not read further.
main "${@:-all}"; exit
