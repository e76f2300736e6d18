#!/usr/bin/env bash
# Runs a target of fuzz/ under libFuzzer. Git has the inputs of a target as one archive,
# fuzz/corpus/TARGET.tar; libFuzzer works on the folder fuzz/corpus/TARGET, which git ignores.
# Usage: scripts/fuzz.sh TARGET [TIME]   unpacks the archive and runs the target, for 600 seconds
#                                        unless TIME has another number of them (0: without a limit)
#        scripts/fuzz.sh unpack TARGET   adds the inputs of the archive to the folder
#        scripts/fuzz.sh cmin TARGET     drops inputs from the folder that add no coverage
#        scripts/fuzz.sh pack TARGET     makes the archive anew from the folder
#
# The bytes of an archive depend on the names and contents of the inputs alone. It is not compressed:
# git compresses it, and stores a new version as a difference from the old one.
# All commands need GNU tar; a run and cmin need a nightly toolchain and cargo-fuzz too.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

fail() {
  echo "scripts/fuzz.sh: $1" >&2
  exit 1
}

inputs() {
  find "$folder" -maxdepth 1 -type f -printf '%P\0' | LC_ALL=C sort -z
}

report() {
  echo "$target: $(inputs | tr -dc '\0' | wc -c) inputs in $1"
}

# Inputs that an earlier run has added stay. A new target has no archive yet.
unpack() {
  mkdir -p "$folder"
  [ ! -e "$archive" ] || tar --extract --file="$archive" --directory="$folder"
  report "$folder"
}

pack() {
  [ -d "$folder" ] || fail "no folder $folder: unpack $target first"
  [ -n "$(inputs | tr '\0' '\n')" ] || fail "no inputs in $folder"
  inputs | tar --create --file="$archive.new" --directory="$folder" --format=ustar \
    --blocking-factor=1 --mtime=@0 --mode=0644 --owner=0 --group=0 --numeric-owner \
    --null --verbatim-files-from --files-from=-
  mv "$archive.new" "$archive"
  report "$archive"
}

need_engine() {
  cargo +nightly --version >/dev/null 2>&1 ||
    fail "no nightly toolchain: rustup toolchain install nightly"
  cargo +nightly fuzz --version >/dev/null 2>&1 || fail "no cargo-fuzz: cargo install cargo-fuzz"
}

case ${1-} in
  unpack | cmin | pack) action=$1 target=${2-} time_s=0 ;;
  *) action=run target=${1-} time_s=${2-600} ;;
esac
[ -n "$target" ] && [ -e "fuzz/fuzz_targets/$target.rs" ] ||
  fail "no target '$target'; there are: $(cd fuzz/fuzz_targets && echo *.rs | sed 's/\.rs//g')"
[[ $time_s =~ ^[0-9]+$ ]] || fail "no number of seconds: '$time_s'"
folder=fuzz/corpus/$target
archive=$folder.tar

case $action in
  unpack) unpack ;;
  pack) pack ;;
  cmin)
    need_engine
    unpack
    cargo +nightly fuzz cmin "$target"
    report "$folder"
    ;;
  run)
    need_engine
    unpack
    cargo +nightly fuzz run "$target" -- "-max_total_time=$time_s"
    ;;
esac
