#!/usr/bin/env bash
# A clone that was configured and then moved is configured anew. Usage: moved_clone.sh ROOT
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$1/scripts/environment.sh"

mkdir "$work/before"
printf 'cmake_minimum_required(VERSION 3.20)\nproject(moved LANGUAGES NONE)\n' \
  >"$work/before/CMakeLists.txt"
configure "$work/before/build" "$work/before"
touch "$work/before/build/kept"
configure "$work/before/build" "$work/before"

mv "$work/before" "$work/after"
! cmake -S "$work/after" -B "$work/after/build" 2>"$work/refused"
grep -q "different" "$work/refused"
configure "$work/after/build" "$work/after"
grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$work/after" "$work/after/build/CMakeCache.txt"
[ -e "$work/after/build/kept" ]
