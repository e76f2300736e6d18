#!/usr/bin/env bash
# Makes the Debian packages libkvstore0, libkvstore-dev and kvstore in dist/, for this system and newer
# ones: the library, what programs are built with, the program.
# Usage: scripts/deb.sh
#
# Needs dpkg-dev, and Python 3.11 for the licences of what is linked.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

fail() {
  echo "scripts/deb.sh: $1" >&2
  exit 1
}

command -v dpkg-architecture >/dev/null || fail "please run: apt-get install dpkg-dev"
bash scripts/bootstrap.sh build python
umask 022
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
arch=$(dpkg-architecture -qDEB_HOST_ARCH)
folder=build/deb
all=$root/$folder/all

# The target folder of `make stage`: nothing is compiled twice.
configure $folder/cmake . -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR:STRING="lib/$multiarch" >/dev/null
cmake --build $folder/cmake --target kvstore
rm -rf "$all" $folder/libkvstore0 $folder/libkvstore-dev $folder/kvstore
DESTDIR=$all cmake --install $folder/cmake --prefix /usr >/dev/null
gzip --best --no-name "$all"/usr/share/man/man1/*
"$python" scripts/supply_chain.py licences $folder/third-party

# take PACKAGE PATH...: moves files of the whole installation into a package.
take() {
  local package=$1 path
  shift
  for path in "$@"; do
    mkdir -p "$folder/$package/$(dirname "$path")"
    mv "$all/$path" "$folder/$package/$path"
  done
}

# The newest symbol version of the system that a file needs.
glibc() {
  objdump -T "$1" | sed -nE 's/.*GLIBC_([0-9.]+).*/\1/p' | sort -V | tail -n 1
}

# The size of the files below a folder in KiB, each rounded up, whatever the file system takes for them.
installed_kib() {
  find "$1" -path "$1/DEBIAN" -prune -o -printf '%s %y\n' |
    awk '{ sum += $2 == "f" ? int(($1 + 1023) / 1024) : 1 } END { print sum }'
}

# pack PACKAGE SECTION DEPENDS SUMMARY: adds the control file and the documentation, and packs.
pack() {
  local package=$1 section=$2 depends=$3 summary=$4 content=$folder/$1 doc
  doc=$content/usr/share/doc/$package
  mkdir -p "$doc" "$content/DEBIAN"
  {
    cat LICENSE LICENSE-MIT LICENSE-APACHE
    [ "$package" = libkvstore-dev ] || cat $folder/third-party
  } >"$doc/copyright"
  gzip --best --no-name <CHANGELOG.md >"$doc/changelog.gz"
  cat >"$content/DEBIAN/control" <<CONTROL
Package: $package
Source: libkvstore
Version: $version
Architecture: $arch
Maintainer: libkvstore <libkvstore@users.noreply.github.com>
Installed-Size: $(installed_kib "$content")
Depends: $depends
Section: $section
Priority: optional
Multi-Arch: ${5:-same}
Homepage: https://github.com/libkvstore/libkvstore
Description: $summary
 The key-value store of data-parallel training: init, push, pull. Values
 pushed to one key by several devices or machines are added up in one
 documented order, go through an optimizer, and are handed out.
CONTROL
  [ "$package" != libkvstore0 ] || echo "activate-noawait ldconfig" >"$content/DEBIAN/triggers"
  chmod -R u=rwX,go=rX "$content"
  find "$content" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  # With more threads xz divides what it compresses into blocks, by their number.
  dpkg-deb --root-owner-group --build -Zxz --threads-max=1 "$content" dist >/dev/null
  ls -l "dist/${package}_${version}_$arch.deb"
}

mkdir -p dist
export SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH=$(release_date)
library=usr/lib/$multiarch
real=$(basename "$(readlink -f "$all/$library/libkvstore.so.0")")
take libkvstore0 "$library/libkvstore.so.0" "$library/$real"
take libkvstore-dev "$library"/{libkvstore.so,libkvstore.a,cmake,pkgconfig} usr/include
take kvstore usr/bin usr/share
[ -z "$(find "$all" -not -type d)" ] || fail "in no package: $(find "$all" -not -type d)"

needs="libc6 (>= $(glibc $folder/libkvstore0/$library/"$real")), libgcc-s1"
pack libkvstore0 libs "$needs" "parameter server as a library"
pack libkvstore-dev libdevel "libkvstore0 (= $version), libc6-dev" "parameter server as a library (development files)"
pack kvstore science "libc6 (>= $(glibc $folder/kvstore/usr/bin/kvstore)), libgcc-s1" \
  "launcher and tools of the parameter server libkvstore" foreign
