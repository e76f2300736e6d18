#!/usr/bin/env bash
# Builds and runs the consumers through pkg-config, shared and static. Usage: pkg_config.sh PREFIX
set -euo pipefail
. "$(dirname "$0")/common.sh"

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
cp "$here"/programs/consumer.* "$work"
cd "$work"

# build KIND [COMPILER_OPTION] [PKG_CONFIG_OPTION]
build() {
  local flags
  read -ra flags <<<"$(pkg-config ${3+"$3"} --cflags --libs kvstore) ${2-}"
  "$CC" consumer.c -o "c_$1" "${flags[@]}"
  "$CXX" -std=c++17 consumer.cpp -o "cpp_$1" "${flags[@]}"
}

[ "$(pkg-config --modversion kvstore)" = "$VERSION" ]
build shared
build archive "" --static
build static -static --static
for language in c cpp; do
  expect_kind shared "${language}_shared"
  expect_kind static "${language}_archive"
  expect_kind static "${language}_static"
  LD_LIBRARY_PATH=$prefix/lib expect_output "./${language}_shared"
  expect_output "./${language}_archive"
  expect_output "./${language}_static"
done
