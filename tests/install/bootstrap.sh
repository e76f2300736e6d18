#!/usr/bin/env bash
# What scripts/bootstrap.sh does on a machine without Rust, with a system that scripts play.
# Usage: bootstrap.sh ROOT
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/home"

# play NAME BODY: a program of the played system.
play() {
  printf '#!/bin/bash\n%s\n' "$2" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

# Runs the bootstrap with the played programs and those of a bare system; output and status.
bootstrap() {
  HOME=$work/home PATH=$work/bin status=0
  export HOME
  output=$("$work/bin/bash" "$root/scripts/bootstrap.sh" build 2>&1) || status=$?
  PATH=/usr/local/bin:/usr/bin:/bin
  echo "$output"
}

# expect STATUS TEXT
expect() {
  [ "$status" = "$1" ] && [[ $output == *"$2"* ]] || { echo "expected $1: $2"; exit 1; }
}

for tool in bash dirname wc sed sort head cut env realpath rm; do
  ln -s "$(command -v $tool)" "$work/bin/$tool"
done
for tool in cmake cc c++ pkg-config; do play $tool 'exit 0'; done
needed=$(sed -nE 's/^rust-version = "(.*)"/\1/p' "$root/Cargo.toml")

echo "A user who is not root is told one line to type:"
play id 'echo 1000'
bootstrap
expect 1 "bootstrap: Rust $needed or newer is missing; please run: curl"
[ "$(wc -l <<<"$output")" = 1 ]

echo "Root gets rustup's package, and with it the newest Rust:"
play id 'echo 0'
play apt-get 'echo "apt-get $*" >>"'"$work"'/log"'
play apt-cache 'echo "  Candidate: 1.27.1-1"'
play rustup "[ \"\$*\" = 'default stable' ] && /bin/ln -s rust '$work/bin/cargo'"
play rust 'echo "cargo 99.0.0"'
bootstrap
expect 0 "installing rustup"
grep -q 'install.* rustup' "$work/log"

echo "Where only an old cargo is packaged, root is told the line too:"
rm "$work/bin/cargo" "$work/bin/rustup"
play apt-cache 'case $* in *rustup) ;; *cargo) echo "  Candidate: 0.66.0-1" ;; esac'
bootstrap
expect 1 "please run: curl"
