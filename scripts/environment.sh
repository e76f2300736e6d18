# For the other scripts: goes to the root of the repository and finds the tools. Source it.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
root=$PWD

# Where the library is installed that examples and bindings use.
export KVSTORE_PREFIX=${KVSTORE_PREFIX:-$root/build/stage}
python=$root/build/venv/bin/python
# That of all packages.
version=$(sed -nE '/^\[workspace.package\]/,/^$/ s/^version = "(.*)"/\1/p' Cargo.toml)

# The date of files in packages: that of the commit. Tools that pack read it as SOURCE_DATE_EPOCH; a build that
# had it would compile some crates again at every commit.
release_date() {
  git log -1 --format=%ct 2>/dev/null || date --reference=CHANGELOG.md +%s
}

# True if the Go command is 1.21 or newer, the first with runtime.Pinner.
go_is_new_enough() {
  local version
  version=$("$1" env GOVERSION 2>/dev/null) && [[ $version =~ ^go1\.([0-9]+) ]] &&
    ((BASH_REMATCH[1] >= 21))
}

# Puts the first Go that is new enough in front: the one on the PATH, or one that is installed
# beside it (Debian's versioned packages, the archive of the Go project).
find_go() {
  local candidate
  for candidate in go /usr/local/go/bin/go /usr/lib/go-1.*/bin/go; do
    if candidate=$(command -v "$candidate") && go_is_new_enough "$candidate"; then
      PATH=$(dirname "$candidate"):$PATH
      return 0
    fi
  done
  return 1
}

if ! command -v cargo >/dev/null; then
  PATH=$PATH:$HOME/.cargo/bin
fi
export PATH

# configure FOLDER SOURCE [OPTION...]: configures SOURCE with CMake in FOLDER. What a clone that has
# been moved since had configured there names files that are gone, and is made anew.
configure() {
  local folder=$1 source=$2 home
  home=$(sed -nE 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$folder/CMakeCache.txt" 2>/dev/null || true)
  if [ -n "$home" ] && [ "$home" != "$(realpath "$source")" ]; then
    rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
  fi
  cmake -S "$source" -B "$folder" "${@:3}"
}
