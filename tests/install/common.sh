# For the install tests: a folder outside the tree that goes away at the end, and the one check.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Runs a program, which must print what every consumer prints.
expect_output() {
  local output
  output=$("$@")
  [ "$output" = "pulled 2 2" ] || { echo "$1 printed: $output"; exit 1; }
}

# Fails unless the program asks the loader for the library (shared) or does not (static).
expect_kind() {
  local kind=static
  if readelf --dynamic "$2" 2>/dev/null | grep -qF 'Shared library: [libkvstore.so.'; then
    kind=shared
  fi
  [ "$kind" = "$1" ] || { echo "$2 is linked $kind, not $1"; exit 1; }
}
