#!/usr/bin/env bash
# Makes in dist/ what a release has: the wheel, the Debian packages, an archive of the installation, the
# crates, the Go module, the licences and the bill of materials of what is linked, the documentation site,
# and checksums.
# Usage: scripts/dist.sh
set -euo pipefail
. "$(dirname "$0")/environment.sh"

version=$(sed -nE '/^\[workspace.package\]/,/^$/ s/^version = "(.*)"/\1/p' Cargo.toml)
name=libkvstore-$version-linux-$(uname -m)

# pack NAME: an archive of the folder in build/dist; the same bytes for the same files.
pack() {
  tar --create --xz --file="dist/$1.tar.xz" --directory=build/dist --sort=name --owner=0 --group=0 \
    --numeric-owner --mtime=@0 "$1"
}

rm -rf dist
bash scripts/wheel.sh
bash scripts/deb.sh
bash scripts/stage.sh all build
rm -rf "build/dist/$name"
cmake --install build/cmake --prefix "build/dist/$name" >/dev/null
cp README.md CHANGELOG.md LICENSE LICENSE-APACHE LICENSE-MIT "build/dist/$name"
"$python" scripts/supply_chain.py licences "build/dist/$name/THIRD-PARTY-LICENSES.txt"
pack "$name"
# Built from their own files by those who have built them: no other file of the tree is in them.
crates=(libkvstore-checksum libkvstore-protocol libkvstore libkvstore-cli)
cargo package --quiet --no-verify --allow-dirty "${crates[@]/#/-p}" 2>/dev/null
for crate in "${crates[@]}"; do
  cp "${CARGO_TARGET_DIR:-target}/package/$crate-$version.crate" dist
done
"$python" scripts/go_module.py "$version" dist/go
"$python" scripts/supply_chain.py sbom "dist/libkvstore-$version.cdx.json"
bash scripts/site.sh
rm -rf "build/dist/libkvstore-$version-site"
cp -r build/site "build/dist/libkvstore-$version-site"
pack "libkvstore-$version-site"
(cd dist && find . -type f -not -name SHA256SUMS -print0 | LC_ALL=C sort -z | xargs -0 sha256sum >SHA256SUMS)
ls -l dist
