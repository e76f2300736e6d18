#!/usr/bin/env bash
# Builds and runs the consumers through find_package(). Usage: find_package.sh PREFIX
set -euo pipefail
. "$(dirname "$0")/common.sh"

cp -r "$here/programs" "$work/source"
"$CMAKE" -S "$work/source" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" \
  -DKVSTORE_VERSION="$VERSION"
"$CMAKE" --build "$work/build"
for language in c cpp; do
  expect_kind shared "$work/build/${language}_kvstore"
  expect_kind static "$work/build/${language}_static"
  expect_output "$work/build/${language}_kvstore"
  expect_output "$work/build/${language}_static"
done
