#!/usr/bin/env bash
# Every exported function runs inside a guard, which turns a panic into a status, except those that
# unguarded.txt lists with a reason. Usage: guards.sh FOLDER_OF_CAPI
set -euo pipefail

here=$(dirname "$0")
functions=$(awk '
  /^pub (unsafe )?extern "C" fn kv_/ {
    name = $0
    sub(/.*fn /, "", name)
    sub(/\(.*/, "", name)
    guarded = 0
  }
  name != "" && /(^|[^a-z_])guard(_store|_store_in_callback)?\(/ { guarded = 1 }
  name != "" && /^}/ { print (guarded ? "guarded" : "unguarded"), name; name = "" }
' "$1"/*.rs "$1"/*/*.rs | LC_ALL=C sort)

# Both lists below follow the code: an exception that is none any more fails as well.
diff <(grep -oE '^kv_[a-z_]+' "$here/unguarded.txt" | LC_ALL=C sort) \
  <(sed -n 's/^unguarded //p' <<<"$functions")
diff <(LC_ALL=C sort "$here/symbols.txt") <(sed 's/.* //' <<<"$functions" | LC_ALL=C sort)
! grep -E '^kv_[a-z_]+ *$' "$here/unguarded.txt"
