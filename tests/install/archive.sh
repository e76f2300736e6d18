#!/usr/bin/env bash
# The size of the installed archive, and of a program that is linked with it by the line that
# docs/use/c-api.md gives. Usage: archive.sh PREFIX
set -euo pipefail
. "$(dirname "$0")/common.sh"

most_archive_bytes=$((60 << 20)) most_program_bytes=$((14 << 20))

# Fails if the file is larger than that.
expect_size() {
  local bytes
  bytes=$(stat -c %s "$1")
  echo "$(basename "$1"): $bytes bytes, at most $2"
  [ "$bytes" -le "$2" ]
}

expect_size "$prefix/lib/libkvstore.a" $most_archive_bytes
! readelf --sections --wide "$prefix/lib/libkvstore.a" 2>/dev/null |
  grep -E ' \.(llvmbc|llvmcmd|debug_[a-z]+) '

line=$(sed -n '/^The static library/,/^CMake:/p' "$here/../../docs/use/c-api.md" |
  sed -n '/^```sh$/,/^```$/{/^```/d;p}')
[[ $line == *--static* ]]
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
cp "$here/programs/consumer.c" "$work/program.c"
cd "$work"
eval "${line/#cc /\$CC }"
expect_kind static program
expect_output ./program
expect_size program $most_program_bytes
