#!/usr/bin/env bash
# Installs what the project needs and this machine lacks; instant when nothing is missing.
# Usage: scripts/bootstrap.sh [group...]   (without a group: all of them)
#
#   build   cmake, a C and a C++ compiler, pkg-config, and Rust where the system has it packaged
#   checks  rustfmt and clippy
#   go      Go 1.21 or newer
#   python  a virtual environment in build/venv with numpy, ml_dtypes, safetensors, pytest, mypy
#           and the schemas of Kubernetes
#   site    a virtual environment in build/site-venv with what makes the documentation site: Sphinx, its
#           theme furo, MyST for Markdown, and griffe for the comments of Python
#   wheel   a virtual environment in build/wheel/tools with what links and packs a wheel: cargo-zigbuild, zig
#           and zopfli; `make wheel` asks for it
#   tests   valgrind, libdlpack-dev, libucx0, dpkg-dev, and the launchers Slurm, Open MPI, MPICH and sshd;
#           tests that need them are left out where they are missing
#
# Debian packages are installed when the user is root; otherwise the command to run is printed.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

python_packages=(numpy ml_dtypes safetensors pytest mypy 'setuptools>=77' wheel kubernetes-validate)
site_packages=('sphinx>=7' furo myst-parser 'griffelib>=2')
wheel_packages=(cargo-zigbuild ziglang zopflipy 'setuptools>=77' wheel)
updated=no

fail() {
  printf 'bootstrap: %s\n' "$@" >&2
  exit 1
}

update_packages() {
  [ $updated = yes ] || apt-get -qq update
  updated=yes
}

# Installs Debian packages, or says how.
install_packages() {
  local command="apt-get install -y --no-install-recommends $*"
  command -v apt-get >/dev/null || { echo "bootstrap: please install: $*" >&2; return 1; }
  [ "$(id -u)" = 0 ] || { echo "bootstrap: please run: sudo $command" >&2; return 1; }
  echo "bootstrap: installing $*"
  update_packages
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

bootstrap_build() {
  local missing=()
  command -v cmake >/dev/null || missing+=(cmake)
  command -v cc >/dev/null || missing+=(gcc libc6-dev)
  command -v c++ >/dev/null || missing+=(g++)
  command -v pkg-config >/dev/null || missing+=(pkg-config)
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}" || exit 1
  check_cargo
}

# True if version $2 is $1 or newer.
is_at_least() {
  [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

check_cargo() {
  local needed found
  needed=$(sed -nE 's/^rust-version = "(.*)"/\1/p' Cargo.toml)
  if ! command -v cargo >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    update_packages
    install_packaged_rust "$needed" || true
  fi
  found=$(cargo --version 2>/dev/null | cut -d ' ' -f 2) || fail \
    "Rust $needed or newer is missing; please run: curl -sSf https://sh.rustup.rs | sh -s -- -y"
  is_at_least "$needed" "$found" ||
    fail "Rust $found is too old for this project; please run: rustup update stable"
}

# Debian 13's rustup, which brings the newest Rust; else a packaged cargo that is new enough, of the
# distribution or of its backports.
install_packaged_rust() {
  if [ -n "$(candidate rustup)" ]; then
    install_packages rustup && rustup default stable
  elif is_at_least "$1" "$(candidate cargo)"; then
    install_packages cargo
  else
    install_backported cargo "$1"
  fi
}

# The version of a package that apt-get would install, without epoch and revision; empty if none.
candidate() {
  apt-cache policy "${@:2}" "$1" |
    sed -nE 's/^ *Candidate: ([0-9]+:)?([0-9][0-9.]*).*/\2/p'
}

bootstrap_checks() {
  command -v cargo-fmt >/dev/null && command -v cargo-clippy >/dev/null &&
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
  echo "bootstrap: adding rustfmt and clippy"
  rustup component add rustfmt clippy || fail "please run: rustup component add rustfmt clippy"
}

bootstrap_go() {
  find_go && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    update_packages
    install_packaged_go || install_backported golang-go 1.21 || true
  fi
  find_go || fail "Go 1.21 or newer is missing; please install it: Debian 13 has it as golang-go," \
    "Debian 12 in its backports (apt-get install -t bookworm-backports golang-go)"
}

# The distribution's own packages: golang-go, or the newest of golang-1.<minor>-go.
install_packaged_go() {
  local package minor
  minor=$(apt-cache policy golang-go | sed -nE 's/^ *Candidate: (.*:)?1\.([0-9]+).*/\2/p')
  package=golang-go
  if ((${minor:-0} < 21)); then
    package=$(apt-cache pkgnames golang-1. | grep -E '^golang-1\.[0-9]+-go$' | sort -V | tail -n 1)
    minor=$(grep -oE '[0-9]+-go$' <<<"$package" | grep -oE '^[0-9]+')
    ((${minor:-0} >= 21)) || return 1
  fi
  install_packages "$package"
}

# install_backported PACKAGE VERSION: the package from Debian's backports, if they have at least that
# version, from the mirror that this machine uses already. The list of sources is a temporary one:
# the machine's own stays as it is.
install_backported() {
  local package=$1 codename mirror folder options status=0
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  mirror=$(apt-cache policy | awk -v suite="$codename/main" '$3 == suite { print $2; exit }')
  [ -n "$mirror" ] || return 1
  folder=$(mktemp -d)
  printf 'deb %s %s main\n' "$mirror" "$codename" "$mirror" "$codename-backports" \
    >"$folder/sources.list"
  chmod -R a+rX "$folder"
  mkdir -p "$folder/lists/partial"
  options=(-qq -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$folder/lists")
  { apt-get "${options[@]}" update &&
    is_at_least "$2" "$(candidate "$package" "${options[@]:1}" -t "$codename-backports")" &&
    echo "bootstrap: installing $package of $codename-backports" &&
    DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y --no-install-recommends \
      -t "$codename-backports" "$package" >/dev/null; } || status=1
  rm -rf "$folder"
  return $status
}

# make_environment FOLDER PACKAGE...: a virtual environment with these packages.
make_environment() {
  local folder=$1 stamp=$1/.complete
  shift
  [ "$(cat "$stamp" 2>/dev/null)" = "$*" ] && [ -x "$folder/bin/python" ] && return
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv || exit 1
  echo "bootstrap: making $folder with $*"
  rm -rf "$folder"
  python3 -m venv "$folder"
  "$folder/bin/python" -m pip --quiet --disable-pip-version-check install "$@" ||
    fail "please run, with access to a package index: $folder/bin/python -m pip install ${*@Q}"
  echo "$*" >"$stamp"
}

bootstrap_python() {
  make_environment build/venv "${python_packages[@]}"
}

bootstrap_site() {
  make_environment build/site-venv "${site_packages[@]}"
}

bootstrap_wheel() {
  make_environment build/wheel/tools "${wheel_packages[@]}"
}

bootstrap_tests() {
  local missing=()
  command -v valgrind >/dev/null || missing+=(valgrind libc6-dbg)
  command -v dpkg-architecture >/dev/null || missing+=(dpkg-dev)
  echo '#include <dlpack/dlpack.h>' | cc -E - >/dev/null 2>&1 || missing+=(libdlpack-dev)
  ldconfig -p | grep -q 'libucp\.so\.0' || missing+=(libucx0)
  command -v mpirun.openmpi >/dev/null || missing+=(openmpi-bin)
  command -v mpiexec.hydra >/dev/null || missing+=(mpich)
  [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}" ||
    echo "bootstrap: going on without ${missing[*]}"
  bootstrap_daemons
}

# Slurm and sshd. Tests start them for themselves: the machine neither starts nor enables them.
bootstrap_daemons() {
  local missing=() services=() policy=/usr/sbin/policy-rc.d own_policy=no
  # Outside of the path of users.
  [ -x /usr/sbin/slurmd ] || missing+=(slurmctld slurmd slurm-client munge) services+=(slurmctld slurmd munge)
  [ -x /usr/sbin/sshd ] || missing+=(openssh-server openssh-client) services+=(ssh)
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ] && [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && own_policy=yes
  fi
  install_packages "${missing[@]}" || echo "bootstrap: going on without ${missing[*]}"
  if [ $own_policy = yes ]; then
    rm -f $policy
    systemctl --quiet disable "${services[@]}" 2>/dev/null || true
  fi
}

[ $# -gt 0 ] || set -- build checks go python site tests
for group in "$@"; do
  case $group in
    build | checks | go | python | site | wheel | tests) "bootstrap_$group" ;;
    *) fail "unknown group $group; the groups are build, checks, go, python, site, wheel and tests" ;;
  esac
done
