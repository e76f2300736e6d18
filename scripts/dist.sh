#!/usr/bin/env bash
# Makes in dist/ what a release has: the wheel, the Debian packages, archives of the sources and of the
# installation, the crates, the Go module, the bill of materials of what is linked, the documentation site,
# and checksums.
# Usage: scripts/dist.sh
set -euo pipefail
. "$(dirname "$0")/environment.sh"

umask 022
name=libkvstore-$version-linux-$(uname -m)

# pack NAME OPTION... [FILE...]: packs what tar is told to into dist/NAME.tar.xz.
pack() {
  XZ_OPT=--threads=1 tar --create --xz --file="dist/$1.tar.xz" --sort=name --owner=0 --group=0 \
    --numeric-owner --mode=u=rwX,go=rX --mtime="@$(release_date)" "${@:2}"
}

rm -rf dist
bash scripts/wheel.sh
bash scripts/deb.sh
bash scripts/stage.sh all build
rm -rf "build/dist/$name"
cmake --install build/cmake --prefix "build/dist/$name" >/dev/null
cp README.md CHANGELOG.md LICENSE LICENSE-APACHE LICENSE-MIT "build/dist/$name"
"$python" scripts/supply_chain.py licences "build/dist/$name/THIRD-PARTY-LICENSES.txt"
pack "$name" --directory=build/dist "$name"
git ls-files -z --cached --others --exclude-standard |
  pack "libkvstore-$version" --null --no-recursion --files-from=- --transform="s|^|libkvstore-$version/|S"

# Built from their own files by those who have built them: no other file of the tree is in them.
crates=(libkvstore-checksum libkvstore-protocol libkvstore libkvstore-cli)
cargo package --quiet --no-verify --allow-dirty "${crates[@]/#/-p}"
for crate in "${crates[@]}"; do
  cp "${CARGO_TARGET_DIR:-target}/package/$crate-$version.crate" dist
done
"$python" scripts/go_module.py "$version" dist/go
"$python" scripts/supply_chain.py sbom "dist/libkvstore-$version.cdx.json"
bash scripts/site.sh
rm -rf "build/dist/libkvstore-$version-site"
cp -r build/site "build/dist/libkvstore-$version-site"
pack "libkvstore-$version-site" --directory=build/dist "libkvstore-$version-site"
(cd dist && find . -type f -not -name SHA256SUMS -print0 | LC_ALL=C sort -z | xargs -0 sha256sum >SHA256SUMS)
ls -l dist
