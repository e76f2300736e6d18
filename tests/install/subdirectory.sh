#!/usr/bin/env bash
# A project that takes the library in with add_subdirectory(): it gets the targets, none of our
# tests, and none of our files in its prefix. Usage: subdirectory.sh ROOT TARGET_DIR
set -euo pipefail
root=$1 target_dir=$2
. "$(dirname "$0")/common.sh"

mkdir "$work/source"
cp "$here/programs/consumer.c" "$work/source"
cat >"$work/source/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.20)
project(host LANGUAGES C)
include(CTest)
set(KVSTORE_CARGO_TARGET_DIR "$target_dir" CACHE PATH "")
add_subdirectory("$root" kvstore)
add_executable(consumer consumer.c)
target_link_libraries(consumer PRIVATE kvstore::kvstore)
add_test(NAME consumer COMMAND consumer)
install(TARGETS consumer)
END
"$CMAKE" -S "$work/source" -B "$work/build"
# Cargo would build crates with C code anew where these variables are other ones than before.
env -u CC -u CXX -u CMAKE -u VERSION "$CMAKE" --build "$work/build"
"$CMAKE" --install "$work/build" --prefix "$work/prefix"

tests=$("${CMAKE%cmake}ctest" --test-dir "$work/build" --show-only)
echo "$tests"
[[ $tests == *"Total Tests: 1" ]]
installed=$(cd "$work/prefix" && find . -type f)
echo "$installed"
[ "$installed" = ./bin/consumer ]
expect_kind shared "$work/build/consumer"
expect_output "$work/build/consumer"
