#!/usr/bin/env bash
# Checks one promise of the installed shared library.
# Usage: library.sh PROMISE LIBRARY HEADER
set -euo pipefail

promise=$1 library=$2 header=$3
here=$(dirname "$0")
# All of it: local stores, 4.3 MB for distributed ones, 0.5 MB for the feature cuda.
most_bytes=8050000 most_local_bytes=2950000
[ -f "$library" ]

exported() {
  nm -D --defined-only "$library" | awk '{print $NF}' | LC_ALL=C sort
}

# The functions of a header. kv_tensor_cpu is inline.
declared() {
  sed -nE 's/^[a-z].*[ *](kv_[a-z_]+)\(.*/\1/p' "$1" | grep -v '^kv_tensor_cpu$' | LC_ALL=C sort -u
}

abi_version() {
  sed -nE 's/^#define KV_ABI_VERSION ([0-9]+)$/\1/p' "$1"
}

dynamic() {
  readelf --dynamic --wide "$library"
}

case $promise in
  symbols)
    # Every name the library gives to others, whatever its kind.
    diff <(LC_ALL=C sort "$here/symbols.txt") <(exported)
    ! grep -v '^kv_' "$here/symbols.txt"
    ;;
  declared)
    # A function is exported if and only if the header declares it.
    diff <(declared "$header") <(exported)
    ;;
  releases)
    # What headers of earlier releases with this number declare is exported.
    for earlier in "$here"/../golden/releases/*/kvstore.h; do
      if [ "$(abi_version "$earlier")" = "$(abi_version "$header")" ]; then
        missing=$(LC_ALL=C comm -23 <(declared "$earlier") <(exported))
        [ -z "$missing" ] || { echo "$earlier declares $missing"; exit 1; }
      fi
    done
    ;;
  soname)
    dynamic | grep -F "Library soname: [libkvstore.so.$(abi_version "$header")]"
    ;;
  nodelete)
    dynamic | grep -E 'FLAGS_1.*NODELETE'
    ;;
  needed)
    # ldd also lists what those need in turn; the kernel's vdso is not a file.
    names=$(ldd "$library" | awk '{print $1}' | sed 's|.*/||')
    echo "$names"
    ! grep -vE '^(libc\.so\.6|libm\.so\.6|libgcc_s\.so\.1|ld-linux.*\.so\.[0-9]|linux-vdso\.so\.1)$' \
      <<<"$names"
    ;;
  size)
    bytes=$(stat -c %s "$library")
    echo "$bytes bytes"
    [ "$bytes" -lt "$most_bytes" ]
    ;;
  local_size)
    stripped=$(mktemp)
    trap 'rm -f "$stripped"' EXIT
    strip --strip-unneeded -o "$stripped" "$library"
    bytes=$(stat -c %s "$stripped")
    echo "$bytes bytes"
    [ "$bytes" -lt "$most_local_bytes" ]
    ;;
  stripped)
    ! readelf --sections --wide "$library" | grep -E ' \.(symtab|debug_[a-z]+) '
    ;;
  *)
    echo "unknown promise: $promise"
    exit 1
    ;;
esac
